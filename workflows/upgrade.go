package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// preflightParallel bounds how many nodes are looked at, or fetch packages, at once.
const preflightParallel = 10

// UpgradeInput names the version to bring every node of a cluster to.
type UpgradeInput struct {
	Cluster string `json:"cluster"`
	Target  string `json:"target"`
}

// UpgradeResult lists what was done to which node.
type UpgradeResult struct {
	Version  string   `json:"version"`
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
	// 1. Take the cluster; a retry is told from a fresh upgrade here.
	if err := o.claim(ctx, clusterstate.Upgrading); err != nil {
		return UpgradeResult{}, err
	}
	controlPlanes, workers := plan.UpgradeOrder(o.survey.Nodes)
	nodes := slices.Concat(controlPlanes, workers)
	o.follow(ctx, nodes)
	// 2. Check every node that has work to do, all faults in one report.
	unfinished := o.unfinished(nodes)
	if err := o.preflight(ctx, unfinished); err != nil {
		return UpgradeResult{}, o.giveBack(ctx, err)
	}
	// 3. Fetch what they need before anything is drained.
	o.status.Deadline = workflow.Now(ctx).Add(o.upgradeTimeout(len(nodes)))
	if err := o.stage(ctx, unfinished); err != nil {
		return UpgradeResult{}, o.end(ctx, err, ErrRolledBack, o.from, "no node was touched")
	}
	// 4. Control planes one at a time, then workers.
	result := UpgradeResult{Version: o.status.Target}
	err = o.upgradeAll(ctx, controlPlanes, 1, &result)
	if err == nil {
		err = o.upgradeAll(ctx, workers, o.survey.Upgrade.MaxUnavailable, &result)
	}
	// 5. A node that joined meanwhile has to be at the target too.
	if err == nil {
		err = o.verify(ctx)
	}
	if err != nil {
		return UpgradeResult{}, o.upgradeFailed(ctx, err, result, len(nodes))
	}
	// 6. Give the cluster back, Running at the new version.
	if problem := o.release(ctx, clusterstate.Running, "", o.status.Target); problem != "" {
		return UpgradeResult{}, failure(problem)
	}
	o.step(ctx, "every node is at %s", o.status.Target)
	return result, nil
}

func (o *operation) unfinished(nodes []plan.Node) []plan.Node {
	var left []plan.Node
	for _, n := range nodes {
		if !plan.Finished(n, o.status.Target) {
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
func (o *operation) preflight(ctx workflow.Context, nodes []plan.Node) error {
	o.step(ctx, "checking %d nodes before anything is touched", len(nodes))
	health, err := call(onAPI(ctx, "is the control plane healthy?"), act.Health, activities.HealthInput{Cluster: o.cluster, Except: failedControlPlane(nodes)})
	if err != nil {
		return err
	}
	faults := health.Faults
	err = each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n plan.Node) error {
		o.mark(ctx, n.Name, Checking, 0, "")
		result, err := call(overSSH(ctx, "check "+n.Name), act.Preflight, activities.PreflightInput{Cluster: o.cluster, Node: n})
		if err != nil && ctx.Err() == nil {
			result.Faults = []string{reason(err)}
		}
		faults = append(faults, result.Faults...)
		o.mark(ctx, n.Name, Pending, 0, strings.Join(result.Faults, "; "))
		return ctx.Err()
	})
	if err == nil && len(faults) > 0 {
		err = &plan.Refusal{Reason: fmt.Sprintf("the cluster is not fit for an upgrade: %s", strings.Join(faults, "; "))}
	}
	return err
}

// failedControlPlane is the control plane whose own upgrade is to be done or
// retried next: that it is not healthy is no reason not to upgrade it.
func failedControlPlane(unfinished []plan.Node) string {
	for _, n := range unfinished {
		if n.Role != plan.Worker {
			return n.Name
		}
	}
	return ""
}

func (o *operation) stage(ctx workflow.Context, nodes []plan.Node) error {
	o.step(ctx, "fetching %s on %d nodes", o.status.Target, len(nodes))
	return each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n plan.Node) error {
		o.mark(ctx, n.Name, Staging, 1, "")
		s := script{operation: o.id, cluster: o.cluster, target: o.status.Target, retries: o.survey.Upgrade.Retries}
		err := s.run(ctx, n, activities.PhaseStage, earlier(workflow.Now(ctx).Add(o.survey.Upgrade.NodeTimeout), o.status.Deadline), nil)
		if err != nil {
			o.mark(ctx, n.Name, Failed, 0, reason(err))
			return err
		}
		o.mark(ctx, n.Name, Pending, 0, "")
		return nil
	})
}

// upgradeAll upgrades nodes, so many at a time, each in a child workflow.
func (o *operation) upgradeAll(ctx workflow.Context, nodes []plan.Node, parallel int, result *UpgradeResult) error {
	return each(ctx, nodes, parallel, func(ctx workflow.Context, n plan.Node) error {
		now := workflow.Now(ctx)
		if !now.Before(o.status.Deadline) {
			return failure(fmt.Sprintf("node %s was not started: the deadline %s has passed", n.Name, o.status.Deadline.UTC().Format(time.RFC3339)))
		}
		o.step(ctx, "upgrading %s", n.Name)
		o.mark(ctx, n.Name, RunScript, 0, "")
		child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
			WorkflowID:            o.id + "/" + n.Name,
			StaticSummary:         fmt.Sprintf("upgrade %s %s to %s", n.Role, n.Name, o.status.Target),
			WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
			ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
			WaitForCancellation:   true,
		})
		var done UpgradeNodeResult
		err := workflow.ExecuteChildWorkflow(child, UpgradeNode, UpgradeNodeInput{
			Cluster: o.cluster, Operation: o.id, Node: n, Target: o.status.Target,
			Retries: o.survey.Upgrade.Retries, ReadyTimeout: o.survey.Upgrade.ReadyTimeout, Steady: o.survey.Upgrade.SteadyInterval,
			Deadline: earlier(now.Add(o.survey.Upgrade.NodeTimeout), o.status.Deadline),
		}).Get(ctx, &done)
		switch {
		case err != nil:
			o.mark(ctx, n.Name, Failed, 0, reason(err))
			return err
		case done.Skipped:
			result.Skipped = append(result.Skipped, n.Name)
			o.mark(ctx, n.Name, Skipped, 0, "at "+o.status.Target+" already")
		default:
			result.Upgraded = append(result.Upgraded, n.Name)
			o.mark(ctx, n.Name, Done, 0, "")
		}
		return nil
	})
}

func (o *operation) verify(ctx workflow.Context) error {
	survey, err := call(onAPI(ctx, "is every node at "+o.status.Target+"?"), act.Survey, activities.SurveyInput{Cluster: o.cluster})
	if err != nil {
		return err
	}
	for _, n := range survey.Nodes {
		if !n.Manual && !plan.SameVersion(n.Version, o.status.Target) {
			return failure(fmt.Sprintf("node %s is at %s: it joined during the upgrade", n.Name, plan.Canonical(n.Version)))
		}
	}
	return nil
}

// upgradeFailed leaves the cluster in Alert with its target, so that the upgrade
// can be started again; one that was ended before its first node goes back.
func (o *operation) upgradeFailed(ctx workflow.Context, cause error, result UpgradeResult, total int) error {
	started := false
	for _, n := range o.status.Nodes {
		started = started || n.Phase != Pending && n.Phase != Skipped
	}
	if !started {
		return o.end(ctx, cause, ErrRolledBack, o.from, "no node was touched")
	}
	done := fmt.Sprintf("%d of %d nodes are at %s; find the cause, then start the upgrade again: it goes on where it stopped",
		len(result.Upgraded)+len(result.Skipped), total, o.status.Target)
	return o.end(ctx, cause, ErrFailed, clusterstate.Alert, done)
}

func failure(text string) error { return errors.New(text) }
