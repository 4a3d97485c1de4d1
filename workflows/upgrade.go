package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// preflightParallel bounds how many nodes are looked at, or fetch packages, at once.
const preflightParallel = 10

// UpgradeInput names the version to bring every node of a cluster to.
type UpgradeInput struct {
	Cluster string   `json:"cluster"`
	Target  string   `json:"target"`
	Hops    []string `json:"hops,omitempty"` // versions to stop at on the way, one minor apart
}

// UpgradeResult lists what was done to which node. Of an upgrade in hops it is
// the last one's.
type UpgradeResult struct {
	Version  string   `json:"version"`
	Hops     []string `json:"hops,omitempty"` // versions that were reached on the way
	Upgraded []string `json:"upgraded"`
	Skipped  []string `json:"skipped,omitempty"` // at the target already
}

// Upgrade brings every node of a kubeadm cluster to a version, control planes
// first, each node drained, upgraded, uncordoned and found Ready before the next.
// When a node fails, the cluster goes to Alert, and the same upgrade started again
// goes on with that node.
func Upgrade(ctx workflow.Context, in UpgradeInput) (UpgradeResult, error) {
	o, err := begin(ctx, KindUpgrade, in.Cluster, plan.Canonical(in.Target))
	if err != nil {
		return UpgradeResult{}, err
	}
	// 1. Take the cluster; a retry is told from a fresh upgrade here, and which hop is next.
	if err := o.claim(ctx, clusterstate.Upgrading, in.Hops...); err != nil {
		return UpgradeResult{}, err
	}
	stations := append(slices.Clone(in.Hops), in.Target)
	var reached []string
	for hop := o.station; hop < len(stations)-1; hop++ {
		// 2. Take the hops on the way, each a whole upgrade.
		if _, err := o.climb(ctx, hop, plan.Canonical(stations[hop]), reached); err != nil {
			return UpgradeResult{}, err
		}
		reached = append(reached, plan.Canonical(stations[hop]))
		if err := o.advance(ctx, reached, plan.Canonical(stations[hop+1])); err != nil {
			return UpgradeResult{}, err
		}
	}
	// 3. The target.
	result, err := o.climb(ctx, len(stations)-1, o.status.Target, reached)
	if err != nil {
		return UpgradeResult{}, err
	}
	// 4. Give the cluster back, Running at the new version.
	if err := o.finish(ctx, clusterstate.Running, o.status.Target, "every node is at "+o.status.Target); err != nil {
		return UpgradeResult{}, err
	}
	return result, nil
}

// climb brings every node to one version. Its error has ended the operation.
func (o *operation) climb(ctx workflow.Context, hop int, version string, reached []string) (UpgradeResult, error) {
	c := &climb{operation: o, hop: hop, version: version, result: UpgradeResult{Version: version, Hops: reached}}
	controlPlanes, workers := plan.UpgradeOrder(o.survey.Nodes)
	nodes := slices.Concat(controlPlanes, workers)
	o.follow(ctx, nodes)
	// 1. Check every node that has work to do, all faults in one report.
	unfinished := c.unfinished(nodes)
	if err := c.preflight(ctx, unfinished); err != nil {
		return UpgradeResult{}, c.notStarted(ctx, err, ErrRefused, "nothing was changed")
	}
	// 2. Fetch what they need before anything is drained.
	o.status.Deadline = workflow.Now(ctx).Add(o.upgradeTimeout(len(nodes)))
	if err := c.stage(ctx, unfinished); err != nil {
		return UpgradeResult{}, c.notStarted(ctx, err, ErrRolledBack, "no node was touched")
	}
	// 3. Control planes one at a time, then workers.
	err := c.upgradeAll(ctx, controlPlanes, 1)
	if err == nil {
		err = c.upgradeAll(ctx, workers, o.survey.Upgrade.MaxUnavailable)
	}
	// 4. A node that joined meanwhile has to be at the target too.
	if err == nil {
		err = c.verify(ctx)
	}
	if err != nil {
		return UpgradeResult{}, c.failed(ctx, err, len(nodes))
	}
	return c.result, nil
}

// advance records the hop that is complete, and looks at the cluster anew. From
// here on an upgrade that does not go through leaves a whole cluster.
func (o *operation) advance(ctx workflow.Context, reached []string, next string) error {
	version := reached[len(reached)-1]
	o.step(ctx, "every node is at %s; next is %s", version, next)
	_, err := call(onAPI(ctx, "record that the cluster is at "+version), act.Advance,
		activities.AdvanceInput{Cluster: o.cluster, Operation: o.id, Version: version, Target: next})
	if err == nil {
		o.from = clusterstate.Running
		o.survey, err = call(onAPI(ctx, "survey cluster "+o.cluster), act.Survey, activities.SurveyInput{Cluster: o.cluster})
	}
	if err != nil {
		return o.end(ctx, err, ErrFailed, clusterstate.Alert, "every node is at "+version)
	}
	return nil
}

// climb is an upgrade to one version, the target or a hop on the way.
type climb struct {
	*operation
	hop     int
	version string
	result  UpgradeResult
}

func (c *climb) unfinished(nodes []plan.Node) []plan.Node {
	var left []plan.Node
	for _, n := range nodes {
		if !plan.Finished(n, c.version) {
			left = append(left, n)
		}
	}
	return left
}

func (o *operation) upgradeTimeout(nodes int) time.Duration {
	if t := o.survey.Upgrade.Timeout; t > 0 {
		return t
	}
	return time.Duration(nodes) * (o.survey.Upgrade.NodeTimeout + o.survey.Upgrade.ReadyTimeout)
}

// preflight checks the control plane and every node, and reports all faults at once.
func (c *climb) preflight(ctx workflow.Context, nodes []plan.Node) error {
	c.step(ctx, "checking %d nodes before anything is touched", len(nodes))
	faults, err := c.controlPlaneFaults(ctx, plan.NextControlPlane(nodes))
	if err != nil {
		return err
	}
	err = each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n plan.Node) error {
		c.mark(ctx, n.Name, Checking, 0, "")
		result, err := call(overSSH(ctx, "check "+n.Name), act.Preflight, activities.PreflightInput{Cluster: c.cluster, Node: n})
		if err != nil && ctx.Err() == nil {
			result.Faults = []string{reason(err)}
		}
		faults = append(faults, result.Faults...)
		c.mark(ctx, n.Name, Pending, 0, strings.Join(result.Faults, "; "))
		return ctx.Err()
	})
	if err == nil && len(faults) > 0 {
		err = &plan.Refusal{Reason: fmt.Sprintf("the cluster is not fit for an upgrade: %s", strings.Join(faults, "; "))}
	}
	return err
}

// versionEtcd is the change that added the look at etcd's members.
const versionEtcd = "etcd"

// controlPlaneFaults is what keeps the control plane from doing without one of
// its nodes.
func (o *operation) controlPlaneFaults(ctx workflow.Context, except string) ([]string, error) {
	health, err := call(onAPI(ctx, "is the control plane healthy?"), act.Health, activities.HealthInput{Cluster: o.cluster, Except: except})
	if err != nil || workflow.GetVersion(ctx, versionEtcd, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return health.Faults, err
	}
	etcd, err := call(overSSH(ctx, "are the members of etcd the control planes, and healthy?"), act.Etcd, activities.EtcdInput{Cluster: o.cluster, Except: except})
	if err != nil && ctx.Err() == nil {
		etcd.Faults, err = []string{"etcd cannot be looked at: " + reason(err)}, nil
	}
	return append(health.Faults, etcd.Faults...), err
}

func (c *climb) stage(ctx workflow.Context, nodes []plan.Node) error {
	c.step(ctx, "fetching %s on %d nodes", c.version, len(nodes))
	return each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n plan.Node) error {
		s := script{phase: activities.PhaseStage, shown: Staging, target: c.version, hop: c.hop, retries: c.survey.Upgrade.Retries}
		err := c.run(ctx, s, n, earlier(workflow.Now(ctx).Add(c.survey.Upgrade.NodeTimeout), c.status.Deadline))
		if err != nil {
			c.mark(ctx, n.Name, Failed, 0, reason(err))
			return err
		}
		c.mark(ctx, n.Name, Pending, 0, "")
		return nil
	})
}

// upgradeAll upgrades nodes, so many at a time.
func (c *climb) upgradeAll(ctx workflow.Context, nodes []plan.Node, parallel int) error {
	return each(ctx, nodes, parallel, func(ctx workflow.Context, n plan.Node) error {
		if err := c.gate(ctx); err != nil {
			return err
		}
		if c.control.skipped[n.Name] {
			return nil
		}
		if !workflow.Now(ctx).Before(c.status.Deadline) {
			return failure(fmt.Sprintf("node %s was not started: the deadline %s has passed", n.Name, c.status.Deadline.UTC().Format(time.RFC3339)))
		}
		return c.upgrade(ctx, n)
	})
}

// upgrade upgrades one node, in a child workflow.
func (c *climb) upgrade(ctx workflow.Context, n plan.Node) error {
	c.step(ctx, "upgrading %s", n.Name)
	c.mark(ctx, n.Name, RunScript, 0, "")
	own, stop := workflow.WithCancel(ctx)
	c.control.stop[n.Name] = stop
	defer delete(c.control.stop, n.Name)
	var done UpgradeNodeResult
	err := workflow.ExecuteChildWorkflow(c.child(own, n), UpgradeNode, UpgradeNodeInput{
		Cluster: c.cluster, Operation: c.id, Node: n, Target: c.version, Hop: c.hop,
		Retries: c.survey.Upgrade.Retries, ReadyTimeout: c.survey.Upgrade.ReadyTimeout, Steady: c.survey.Upgrade.SteadyInterval,
		Deadline: earlier(workflow.Now(ctx).Add(c.survey.Upgrade.NodeTimeout), c.status.Deadline),
	}).Get(own, &done)
	switch {
	case temporal.IsCanceledError(err) && c.control.skipped[n.Name] && ctx.Err() == nil:
		c.mark(ctx, n.Name, Skipped, 0, leftOut)
	case err != nil:
		c.mark(ctx, n.Name, Failed, 0, reason(err))
		return err
	case done.Skipped:
		c.result.Skipped = append(c.result.Skipped, n.Name)
		c.mark(ctx, n.Name, Skipped, 0, "at "+c.version+" already")
	default:
		c.result.Upgraded = append(c.result.Upgraded, n.Name)
		c.mark(ctx, n.Name, Done, 0, "")
	}
	return nil
}

func (c *climb) child(ctx workflow.Context, n plan.Node) workflow.Context {
	reuse := enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
	if c.hop > 0 { // the node had its turn on the hop before
		reuse = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	}
	return workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:            c.id + "/" + n.Name,
		StaticSummary:         fmt.Sprintf("upgrade %s %s to %s", n.Role, n.Name, c.version),
		WorkflowIDReusePolicy: reuse,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		WaitForCancellation:   true,
	})
}

// verify looks at the whole cluster once more.
func (c *climb) verify(ctx workflow.Context) error {
	survey, err := call(onAPI(ctx, "is every node at "+c.version+"?"), act.Survey, activities.SurveyInput{Cluster: c.cluster})
	if err != nil {
		return err
	}
	var behind, leftOut []string
	for _, n := range survey.Nodes {
		switch {
		case n.Manual || plan.SameVersion(n.Version, c.version):
		case c.control.skipped[n.Name]:
			leftOut = append(leftOut, n.Name)
		default:
			behind = append(behind, fmt.Sprintf("node %s is at %s: it joined during the upgrade", n.Name, plan.Canonical(n.Version)))
		}
	}
	if len(leftOut) > 0 {
		behind = append(behind, strings.Join(leftOut, ", ")+" was left out by the operator: start the upgrade again for it, or label it ebb/manual-upgrade=true first")
	}
	if len(behind) > 0 {
		return failure(strings.Join(behind, "; "))
	}
	return nil
}

// notStarted ends an upgrade before the first node of this climb was touched.
func (c *climb) notStarted(ctx workflow.Context, cause error, kind, done string) error {
	if len(c.result.Hops) > 0 {
		kind, done = ErrFailed, fmt.Sprintf("every node is at %s, the step to %s was not begun", c.result.Hops[len(c.result.Hops)-1], c.version)
	}
	return c.end(ctx, cause, kind, c.from, done)
}

// failed leaves the cluster in Alert with its target, so that the upgrade can be
// started again; one that was ended before its first node goes back.
func (c *climb) failed(ctx workflow.Context, cause error, total int) error {
	started := false
	for _, n := range c.status.Nodes {
		started = started || n.Phase != Pending && n.Phase != Skipped
	}
	if !started {
		return c.notStarted(ctx, cause, ErrRolledBack, "no node was touched")
	}
	done := fmt.Sprintf("%d of %d nodes are at %s; find the cause, then start the upgrade again: it goes on where it stopped",
		len(c.result.Upgraded)+len(c.result.Skipped), total, c.version)
	if problem := c.detachISOs(ctx); problem != "" {
		done += "; " + problem
	}
	return c.end(ctx, cause, ErrFailed, clusterstate.Alert, done)
}

// versionDetachISO is the change that added the detaching of ISOs.
const versionDetachISO = "detach-iso"

// detachISOs takes the ISO with the binaries out of the machines, before the
// upgrade can be started again: a late job would take it away from that one.
func (c *climb) detachISOs(ctx workflow.Context) (problem string) {
	if workflow.GetVersion(ctx, versionDetachISO, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return ""
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	for _, n := range c.survey.Nodes {
		detach := with(ctx, "detach the ISO from the machine of "+n.Name, infraTimeout, detachFor, 0)
		result, err := call(detach, act.DetachISO, activities.DetachISOInput{Cluster: c.cluster, Node: n})
		if err != nil {
			return fmt.Sprintf("the ISO is still attached to the machine of %s: %s", n.Name, reason(err))
		}
		if !result.Detached {
			break // the infrastructure has no ISOs
		}
	}
	return ""
}

func failure(text string) error { return errors.New(text) }
