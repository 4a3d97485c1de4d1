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
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// preflightParallel bounds how many nodes are looked at, or fetch packages, at once.
const preflightParallel = 10

// Upgrade brings every node of a kubeadm cluster to a version, control planes
// first, each node drained, upgraded, uncordoned and found Ready before the next.
// When a node fails, the cluster goes to Alert, and the same upgrade started again
// goes on with that node.
func Upgrade(ctx workflow.Context, in operation.UpgradeInput) (operation.UpgradeResult, error) {
	e, err := begin(ctx, operation.KindUpgrade, in.Cluster, in.Target)
	if err != nil {
		return operation.UpgradeResult{}, err
	}
	// 1. Take the cluster; a retry is told from a fresh upgrade here, and which stop of
	// the route comes first.
	if err := e.claim(ctx, clusterstate.Upgrading, in.Route); err != nil {
		return operation.UpgradeResult{}, err
	}
	// 2. Bring every node to one stop after another; the last is the target.
	stops := in.Stops()
	h := &hop{execution: e, strict: in.Strict}
	for i := max(slices.Index(stops, e.next), 0); i < len(stops); i++ {
		if err := h.to(ctx, i, stops); err != nil {
			return operation.UpgradeResult{}, err
		}
	}
	// 3. Give the cluster back, Running at the new version.
	done := operation.Outcome{Upgrade: &operation.UpgradeProgress{Version: in.Target}}
	if err := e.complete(ctx, clusterstate.Running, in.Target, done); err != nil {
		return operation.UpgradeResult{}, err
	}
	h.result.Warnings = e.left.bounded()
	return h.result, nil
}

// hop is an upgrade to one version, the target or a stop on the way.
type hop struct {
	*execution
	strict  bool
	index   int // among the stops of the route
	version version.Version
	iso     bool          // the infrastructure attaches an ISO for the script
	withISO []policy.Node // whose machines may have it
	staged  bool          // nodes have had a workflow of their own already, which has staged them
	reserve time.Duration // that is left before the deadline when a node is drained: the time of its script
	result  operation.UpgradeResult
	back    operation.Uncordon // what became of the cordons of nodes that were not upgraded
}

// to is the way to the stop with this index, which begins where the one before has
// ended. Its error has ended the operation.
func (h *hop) to(ctx workflow.Context, index int, stops []version.Version) error {
	if reached := h.version; reached != "" {
		if err := h.advance(ctx, reached, stops[index]); err != nil {
			return err
		}
		h.result.Hops = append(h.result.Hops, reached)
	}
	h.index, h.version = index, stops[index]
	h.result = operation.UpgradeResult{Version: h.version, Hops: h.result.Hops}
	return h.run(ctx)
}

// run brings every node to the version of the hop. Its error has ended the operation.
func (h *hop) run(ctx workflow.Context) error {
	controlPlanes, workers := policy.UpgradeOrder(h.survey.Nodes)
	atOnce := h.survey.Upgrade.MaxUnavailable
	if readyCounts(ctx) {
		workers, atOnce = policy.NotReadyFirst(workers), policy.WorkersAtOnce(h.survey.Nodes, atOnce)
	}
	nodes := slices.Concat(controlPlanes, workers)
	h.follow(ctx, nodes)
	// 1. Check every node that has work to do, all faults in one report.
	unfinished := h.unfinished(nodes)
	if err := h.preflight(ctx, unfinished); err != nil {
		return h.notStarted(ctx, err, operation.TypeRefused)
	}
	// 2. Fetch what they need before anything is drained.
	if workflow.GetVersion(ctx, "script-has-its-own-clock", workflow.DefaultVersion, 1) == 1 {
		h.reserve = h.survey.Upgrade.NodeTimeout
	}
	h.iso = attachesISO(ctx, h.survey.Upgrade.ISO)
	h.status.Deadline = workflow.Now(ctx).Add(h.upgradeTimeout(len(nodes)))
	if err := h.stage(ctx, unfinished); err != nil {
		return h.notStarted(ctx, err, operation.TypeRolledBack)
	}
	// 3. Control planes one at a time, then workers.
	err := h.upgradeAll(ctx, controlPlanes, 1)
	if err == nil {
		err = h.upgradeAll(ctx, workers, atOnce)
	}
	// 4. A node that joined meanwhile has to be at the target too.
	if err == nil {
		err = h.verify(ctx)
	}
	if err != nil {
		return h.stop(ctx, err, len(nodes))
	}
	h.leaveISO(ctx, h.detachLeft(ctx))
	return nil
}

// advance records the hop that is complete, and looks at the cluster anew. From
// here on an upgrade that does not go through leaves a whole cluster.
func (e *execution) advance(ctx workflow.Context, reached, next version.Version) error {
	e.step(ctx, "every node is at %s; next is %s", reached, next)
	_, err := call(onAPI(ctx, fmt.Sprintf("record that the cluster is at %s", reached)), act.Advance,
		activities.AdvanceInput{Cluster: e.cluster, Operation: e.id, Version: reached, Target: next})
	if err == nil {
		e.from = clusterstate.Running
		e.survey, err = call(onAPI(ctx, "survey cluster "+e.cluster), act.Survey, activities.SurveyInput{Cluster: e.cluster})
	}
	if err != nil {
		o := e.outcome(operation.TypeFailed, err)
		o.Upgrade = &operation.UpgradeProgress{Version: next, Reached: reached}
		return e.fail(ctx, o)
	}
	return nil
}

func (h *hop) unfinished(nodes []policy.Node) []policy.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n policy.Node) bool { return policy.Finished(n, h.version) })
}

// upgradeTimeout is how long the hop may take: as configured, or for each node the time of
// its drain, of its script, and of its kubelet.
func (h *hop) upgradeTimeout(nodes int) time.Duration {
	if t := h.survey.Upgrade.Timeout; t > 0 {
		return t
	}
	return time.Duration(nodes) * (h.survey.Upgrade.NodeTimeout + h.reserve + h.survey.Upgrade.ReadyTimeout)
}

// preflight checks the control plane and every node, and reports all faults at once.
func (h *hop) preflight(ctx workflow.Context, nodes []policy.Node) error {
	h.step(ctx, "checking %d nodes before anything is touched", len(nodes))
	found, err := h.checkDrains(ctx, nodes, nil)
	if err != nil {
		return err
	}
	faults, err := h.controlPlaneFaults(ctx, policy.NextControlPlane(nodes))
	if err != nil {
		return err
	}
	ofNode := map[string][]string{}
	err = each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n policy.Node) error {
		h.mark(ctx, n.Name, operation.PhaseChecking, 0, "")
		result, err := call(overSSH(ctx, "check "+n.Name), act.Preflight, activities.PreflightInput{Cluster: h.cluster, Node: n})
		if err != nil && ctx.Err() == nil {
			result.Faults = []string{reason(err)}
		}
		ofNode[n.Name] = result.Faults
		h.mark(ctx, n.Name, operation.PhasePending, 0, strings.Join(result.Faults, "; "))
		return ctx.Err()
	})
	for _, n := range policy.ByName(nodes) {
		faults = append(faults, ofNode[n.Name]...)
	}
	switch {
	case err != nil:
		return err
	case len(faults) == 0:
		return h.settle(ctx, found, h.strict)
	case h.strict:
		faults = append(faults, found...)
	}
	return &policy.Refusal{Reason: "the cluster is not fit for an upgrade", Faults: faults}
}

// controlPlaneFaults returns what keeps the control plane from doing without one of
// its nodes.
func (e *execution) controlPlaneFaults(ctx workflow.Context, except string) ([]string, error) {
	health, err := call(onAPI(ctx, "is the control plane healthy?"), act.Health, activities.HealthInput{Cluster: e.cluster, Except: except, Operation: e.id})
	if err != nil {
		return nil, err
	}
	etcd, err := call(overSSH(ctx, "are the members of etcd the control planes, and healthy?"), act.Etcd, activities.EtcdInput{Cluster: e.cluster, Except: except})
	if err != nil && ctx.Err() == nil {
		etcd.Faults, err = []string{"etcd cannot be looked at: " + reason(err)}, nil
	}
	return append(health.Faults, etcd.Faults...), err
}

func (h *hop) stage(ctx workflow.Context, nodes []policy.Node) error {
	h.step(ctx, "fetching %s on %d nodes", h.version, len(nodes))
	stageNode := h.stageHere
	if workflow.GetVersion(ctx, "nodes-stage-themselves", workflow.DefaultVersion, 1) == 1 {
		stageNode = h.stageNode
		defer func() { h.staged = true }()
	}
	return each(ctx, nodes, preflightParallel, func(ctx workflow.Context, n policy.Node) error {
		if err := stageNode(ctx, n); err != nil {
			h.mark(ctx, n.Name, operation.PhaseFailed, 0, reason(err))
			return err
		}
		h.mark(ctx, n.Name, operation.PhasePending, 0, "")
		return nil
	})
}

// stageNode stages one node, in a child workflow.
func (h *hop) stageNode(ctx workflow.Context, n policy.Node) error {
	h.mark(ctx, n.Name, operation.PhaseStaging, 0, "")
	if h.iso {
		h.withISO = append(h.withISO, n)
	}
	in := h.nodeInput(n)
	in.Deadline = h.stageBy(ctx)
	child := h.child(ctx, n, fmt.Sprintf("fetch %s on %s", h.version, n.Name))
	return workflow.ExecuteChildWorkflow(child, StageNode, operation.StageNodeInput{UpgradeNodeInput: in}).Get(ctx, nil)
}

// stageHere stages one node in this workflow, as in executions that began with an earlier
// version of Ebb.
func (h *hop) stageHere(ctx workflow.Context, n policy.Node) error {
	if err := h.stageISO(ctx, n); err != nil {
		return err
	}
	s := script{phase: activities.PhaseStage, shown: operation.PhaseStaging, target: h.version, hop: h.index, retries: h.survey.Upgrade.Retries}
	return h.runScript(ctx, s, n, h.stageBy(ctx))
}

// stageBy is by when a node that begins now has to be staged.
func (h *hop) stageBy(ctx workflow.Context) time.Time {
	return earlier(workflow.Now(ctx).Add(h.survey.Upgrade.NodeTimeout), h.status.Deadline)
}

// nodeInput is what the workflows of a node are told of this hop.
func (h *hop) nodeInput(n policy.Node) operation.UpgradeNodeInput {
	return operation.UpgradeNodeInput{
		Cluster: h.cluster, Operation: h.id, Node: n, Target: h.version, Hop: h.index,
		Retries: h.survey.Upgrade.Retries, ReadyTimeout: h.survey.Upgrade.ReadyTimeout, Steady: h.survey.Upgrade.SteadyInterval,
		ScriptTimeout: h.reserve, InfraTimeout: h.survey.Infra.Timeout, ISO: h.iso,
	}
}

// upgradeAll upgrades nodes, so many at a time.
func (h *hop) upgradeAll(ctx workflow.Context, nodes []policy.Node, parallel int) error {
	return each(ctx, nodes, parallel, func(ctx workflow.Context, n policy.Node) error {
		if err := h.awaitResume(ctx); err != nil {
			return err
		}
		if h.control.skipped[n.Name] {
			return nil
		}
		if !workflow.Now(ctx).Before(h.lastDrain()) {
			return fmt.Errorf("node %s was not started: there is no time for its script (%s) before the deadline %s",
				n.Name, h.reserve, h.status.Deadline.UTC().Format(time.RFC3339))
		}
		return h.upgrade(ctx, n)
	})
}

// lastDrain is until when nodes are drained: a script that has been started is not cut off
// by the deadline of the upgrade.
func (h *hop) lastDrain() time.Time { return h.status.Deadline.Add(-h.reserve) }

// upgrade upgrades one node, in a child workflow.
func (h *hop) upgrade(ctx workflow.Context, n policy.Node) error {
	h.step(ctx, "upgrading %s", n.Name)
	h.mark(ctx, n.Name, operation.PhaseUpgrading, 0, "")
	own, stop := workflow.WithCancel(ctx)
	h.control.stop[n.Name] = stop
	defer delete(h.control.stop, n.Name)
	var done operation.UpgradeNodeResult
	in := h.nodeInput(n)
	in.Deadline = earlier(workflow.Now(ctx).Add(h.survey.Upgrade.NodeTimeout), h.lastDrain())
	child := h.child(own, n, fmt.Sprintf("upgrade %s %s to %s", n.Role, n.Name, h.version))
	err := workflow.ExecuteChildWorkflow(child, UpgradeNode, in).Get(own, &done)
	if err == nil {
		h.withoutISO(n)
	}
	h.putBack(err)
	h.leave(ctx, done.Warnings)
	switch {
	case temporal.IsCanceledError(err) && h.control.skipped[n.Name] && ctx.Err() == nil:
		h.mark(ctx, n.Name, operation.PhaseSkipped, 0, leftOut)
	case err != nil:
		if note := h.vanished(ctx, n); note != "" {
			h.mark(ctx, n.Name, operation.PhaseSkipped, 0, note)
			return nil
		}
		h.mark(ctx, n.Name, operation.PhaseFailed, 0, reason(err))
		return err
	case done.Skipped:
		h.result.Skipped = append(h.result.Skipped, n.Name)
		h.mark(ctx, n.Name, operation.PhaseSkipped, 0, fmt.Sprintf("at %s already", h.version))
	default:
		h.result.Upgraded = append(h.result.Upgraded, n.Name)
		h.mark(ctx, n.Name, operation.PhaseDone, 0, "")
	}
	return nil
}

// vanished returns what is to be said of a node that could not be upgraded as it is not in
// the cluster any more; "" = it is.
func (h *hop) vanished(ctx workflow.Context, n policy.Node) string {
	if ctx.Err() != nil || !looksAgain(ctx) {
		return ""
	}
	now, err := call(onAPI(ctx, "is "+n.Name+" still in the cluster?"), act.LookAgain, activities.MachineInput{Cluster: h.cluster, Node: n})
	switch {
	case err != nil:
		return ""
	case now.Gone:
		return "it is gone from the cluster"
	case now.Replaced:
		return anotherNode
	}
	return ""
}

func (h *hop) child(ctx workflow.Context, n policy.Node, summary string) workflow.Context {
	reuse := enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
	if h.index > 0 || h.staged { // the node had a workflow before this one
		reuse = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	}
	return workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:            h.id + "/" + n.Name,
		StaticSummary:         summary,
		WorkflowIDReusePolicy: reuse,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		WaitForCancellation:   true,
	})
}

// verify looks at the whole cluster once more.
func (h *hop) verify(ctx workflow.Context) error {
	survey, err := call(onAPI(ctx, fmt.Sprintf("is every node at %s?", h.version)), act.Survey, activities.SurveyInput{Cluster: h.cluster})
	if err != nil {
		return err
	}
	var behind, leftOut []string
	for _, n := range policy.ByName(survey.Nodes) {
		switch {
		case n.Manual || n.Version == h.version:
		case h.control.skipped[n.Name]:
			leftOut = append(leftOut, n.Name)
		default:
			behind = append(behind, fmt.Sprintf("node %s is at %s: it joined during the upgrade", n.Name, n.Version))
		}
	}
	if len(leftOut) > 0 {
		behind = append(behind, strings.Join(leftOut, ", ")+" was left out by the operator: start the upgrade again for it, or label it ebb/manual-upgrade=true first")
	}
	if len(behind) > 0 {
		return errors.New(strings.Join(behind, "; "))
	}
	return nil
}

// notStarted ends an upgrade before the first node of this hop was touched: it goes
// back, or after a complete hop to Alert, with the next one as the target.
func (h *hop) notStarted(ctx workflow.Context, cause error, kind string) error {
	progress := &operation.UpgradeProgress{Version: h.version}
	if n := len(h.result.Hops); n > 0 {
		kind, progress.Reached = operation.TypeFailed, h.result.Hops[n-1]
	}
	progress.ISOAttached = h.detachLeft(ctx)
	o := h.outcome(kind, cause)
	o.State, o.Upgrade = h.from, progress
	return h.fail(ctx, o)
}

// stop leaves the cluster in Alert with its target, so that the upgrade can be
// started again; one that was ended before its first node goes back.
func (h *hop) stop(ctx workflow.Context, cause error, total int) error {
	if !h.touched() {
		return h.notStarted(ctx, cause, operation.TypeRolledBack)
	}
	o := h.outcome(operation.TypeFailed, cause)
	o.Uncordon = h.back
	o.Upgrade = &operation.UpgradeProgress{
		Version: h.version, Done: len(h.result.Upgraded) + len(h.result.Skipped), Total: total, Touched: true, ISOAttached: h.detachISOs(ctx),
	}
	if n := len(h.result.Hops); n > 0 {
		o.Upgrade.Reached = h.result.Hops[n-1]
	}
	return h.fail(ctx, o)
}

// touched reports whether work on a node has begun.
func (h *hop) touched() bool {
	return slices.ContainsFunc(h.status.Nodes, func(n operation.NodeStatus) bool {
		return n.Phase != operation.PhasePending && n.Phase != operation.PhaseSkipped
	})
}

// detachISOs takes the ISO with the binaries out of the machines, before the
// upgrade can be started again: a late job would take it away from that one. It
// returns the first that could not be detached.
func (h *hop) detachISOs(ctx workflow.Context) *operation.NodeFault {
	if h.iso {
		return h.detachLeft(ctx)
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	for _, n := range h.survey.Nodes {
		detach := h.onInfra(ctx, "detach the ISO from the machine of "+n.Name, isoRetryFor)
		result, err := call(detach, act.DetachISO, activities.DetachISOInput{Cluster: h.cluster, Node: n})
		if err != nil {
			return &operation.NodeFault{Node: n.Name, Text: reason(err)}
		}
		if !result.Detached {
			break // the infrastructure has no ISOs
		}
	}
	return nil
}
