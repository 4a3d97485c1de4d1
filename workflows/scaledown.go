package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// resetTimeout bounds kubeadm reset on a control plane that leaves.
const resetTimeout = 10 * time.Minute

// volumeDetachTimeout is for a survey by a worker that did not know scale.volumeDetachTimeout.
const volumeDetachTimeout = 5 * time.Minute

// ScaleDown removes nodes from a cluster and destroys their machines. Until every
// node is drained, any failure takes everything back and nothing is removed;
// from then on it goes through to the end.
func ScaleDown(ctx workflow.Context, in operation.ScaleDownInput) (operation.ScaleDownResult, error) {
	e, err := begin(ctx, operation.KindScaleDown, in.Cluster, "")
	if err != nil {
		return operation.ScaleDownResult{}, err
	}
	// 1. Take the cluster.
	if err := e.claim(ctx, clusterstate.Scaling, version.Route{}); err != nil {
		return operation.ScaleDownResult{}, err
	}
	// 2. Choose the nodes, before anything is touched.
	scale := e.survey.Scale
	nodes, err := policy.SelectScaleDown(e.survey.Nodes, policy.ScaleDownRequest{
		Names: in.Nodes, Count: in.Count, MinWorkers: scale.MinWorkers, TextOrder: in.Count > 0 && textOrder(ctx), AnyState: !readyCounts(ctx),
	})
	if err != nil {
		return operation.ScaleDownResult{}, e.abort(ctx, err)
	}
	e.follow(ctx, nodes)
	// 3. A machine that is down has nothing to drain.
	up, err := e.machinesUp(ctx, nodes)
	if err != nil {
		return operation.ScaleDownResult{}, e.abort(ctx, err)
	}
	// 4. A control plane leaves only a healthy one behind, and pods need room and budgets.
	err = e.checkControlPlanes(ctx, nodes)
	if err == nil {
		err = e.checkPods(ctx, nodes, up, in.Strict)
	}
	if err != nil {
		return operation.ScaleDownResult{}, e.abort(ctx, err)
	}
	// 5. Cordon them all, then drain them; or take it all back.
	e.status.Deadline = workflow.Now(ctx).Add(scale.Timeout)
	if err := e.cordonAndDrain(ctx, up, scale.MaxParallel, scale.Attempts); err != nil {
		return operation.ScaleDownResult{}, e.rollBack(ctx, err, up)
	}
	// 6. Remove them. Neither the deadline nor a cancellation stops this any more.
	result := operation.ScaleDownResult{Size: len(e.survey.Nodes)}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	err = e.remove(ctx, nodes, up, &result)
	result.Warnings = e.left.bounded()
	if err != nil {
		return operation.ScaleDownResult{}, e.removalFailed(ctx, err, nodes, result)
	}
	// 7. Give the cluster back.
	if err := e.complete(ctx, e.from, "", operation.Outcome{Removal: &result}); err != nil {
		return operation.ScaleDownResult{}, err
	}
	return result, nil
}

// textOrder reports whether this execution began when names were compared as text.
func textOrder(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "names-are-counted", workflow.DefaultVersion, 1) == workflow.DefaultVersion
}

// readyCounts reports whether the execution tells nodes that are Ready from others, as all do
// but those that have begun with an earlier version.
func readyCounts(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "ready-counts", workflow.DefaultVersion, 1) == 1
}

func (e *execution) machinesUp(ctx workflow.Context, nodes []policy.Node) ([]policy.Node, error) {
	e.step(ctx, "looking at the machines")
	down, err := e.downAmong(ctx, nodes)
	if err != nil {
		return nil, err
	}
	var up []policy.Node
	for _, n := range nodes {
		switch {
		case !slices.Contains(down, n.Name):
			up = append(up, n)
		case n.Role != policy.Worker:
			return nil, &policy.Refusal{Reason: fmt.Sprintf("the machine of control plane %s is down, so that it cannot leave etcd: start it first", n.Name)}
		default:
			e.mark(ctx, n.Name, operation.PhaseDrained, 0, "its machine is down: nothing to drain")
		}
	}
	return up, nil
}

// downAmong returns the names of those whose machine is down. Executions that began with an
// earlier version have asked for one after another.
func (e *execution) downAmong(ctx workflow.Context, nodes []policy.Node) (down []string, err error) {
	if workflow.GetVersion(ctx, "machines-at-once", workflow.DefaultVersion, 1) == 1 {
		return machinesDown(ctx, e.cluster, nodes, e.survey.Infra)
	}
	for _, n := range nodes {
		machine, err := call(onAPI(ctx, "is the machine of "+n.Name+" up?"), act.Machine, activities.MachineInput{Cluster: e.cluster, Node: n})
		if err != nil {
			return nil, err
		}
		if machine.Down {
			down = append(down, n.Name)
		}
	}
	return down, nil
}

// checkControlPlanes refuses to take a control plane away from an etcd, or from
// other control planes, that are not healthy.
func (e *execution) checkControlPlanes(ctx workflow.Context, leaving []policy.Node) error {
	for _, n := range leaving {
		if n.Role == policy.Worker {
			continue
		}
		faults, err := e.controlPlaneFaults(ctx, n.Name)
		if err == nil && len(faults) > 0 {
			err = &policy.Refusal{Reason: fmt.Sprintf("control plane %s cannot leave", n.Name), Faults: faults}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPods forecasts whether the pods of the nodes find room elsewhere, and what speaks
// against the drains of those whose machines are up: all in one report, a warning, or with
// strict a refusal.
func (e *execution) checkPods(ctx workflow.Context, nodes, up []policy.Node, strict bool) error {
	room, err := e.checkCapacity(ctx, nodes)
	if err != nil {
		return err
	}
	down := slices.DeleteFunc(slices.Clone(nodes), func(n policy.Node) bool { return slices.Contains(policy.Names(up), n.Name) })
	drains, err := e.checkDrains(ctx, up, down)
	if err != nil {
		return err
	}
	return e.settle(ctx, append(room, drains...), strict)
}

// remove takes the drained nodes out of the cluster one after another, and stops
// at the first that does not go.
func (e *execution) remove(ctx workflow.Context, nodes, up []policy.Node, result *operation.ScaleDownResult) error {
	for _, n := range nodes {
		if err := e.awaitResume(ctx); err != nil {
			return err
		}
		e.step(ctx, "removing %s", n.Name)
		e.mark(ctx, n.Name, operation.PhaseRemoving, 0, "")
		drained := slices.ContainsFunc(up, func(u policy.Node) bool { return u.Name == n.Name })
		if err := e.removeNode(ctx, n, drained, result); err != nil {
			return err
		}
	}
	return nil
}

// awaitDetached waits until no volume is attached to a machine that is up: one that is down
// does not let go of its volumes before it is destroyed.
func (e *execution) awaitDetached(ctx workflow.Context, n policy.Node) error {
	if workflow.GetVersion(ctx, "volumes-are-detached-first", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil
	}
	deadline := workflow.Now(ctx).Add(cmp.Or(e.survey.Scale.VolumeDetachTimeout, volumeDetachTimeout))
	done, err := call(until(ctx, deadline, "wait until no volume is attached to "+n.Name), act.WaitDetached,
		activities.WaitDetachedInput{Cluster: e.cluster, Node: n, Deadline: deadline})
	if len(done.Attached) > 0 {
		e.leave(ctx, []string{fmt.Sprintf("the machine of %s is destroyed with volumes attached: %s", n.Name, strings.Join(done.Attached, ", "))})
	}
	return err
}

// removeNode takes one node out of the cluster and destroys its machine, unless the node
// is not the one any more that was drained.
func (e *execution) removeNode(ctx workflow.Context, n policy.Node, drained bool, result *operation.ScaleDownResult) error {
	in := activities.MachineInput{Cluster: e.cluster, Node: n}
	now, err := e.lookAgain(ctx, n, drained)
	if err == nil && drained && now == (activities.LookAgainResult{}) {
		err = e.awaitDetached(ctx, n)
	}
	if err == nil && n.Role != policy.Worker && now == (activities.LookAgainResult{}) {
		err = e.reset(ctx, n)
	}
	if err == nil && n.Role != policy.Worker && !now.Replaced {
		err = e.leaveEtcd(ctx, n)
	}
	if err != nil {
		return err
	}
	replaced := now.Replaced
	if !replaced {
		deleted, err := call(onAPI(ctx, "delete node "+n.Name), act.DeleteNode, in)
		if err != nil {
			return err
		}
		replaced = deleted.Replaced
	}
	result.Removed = append(result.Removed, n.Name)
	if replaced {
		e.mark(ctx, n.Name, operation.PhaseSkipped, 0, anotherNode)
		return nil
	}
	result.Size--
	if _, err := call(e.onInfra(ctx, "destroy the machine of "+n.Name, infraRetryFor), act.DestroyMachine, in); err != nil {
		return err
	}
	result.Destroyed = append(result.Destroyed, n.Name)
	e.mark(ctx, n.Name, operation.PhaseDone, 0, "")
	return nil
}

// reset takes a control plane out of etcd and off its node.
func (e *execution) reset(ctx workflow.Context, n policy.Node) error {
	deadline := workflow.Now(ctx).Add(resetTimeout)
	_, err := call(until(ctx, deadline, "kubeadm reset on "+n.Name), act.RunScript, activities.ScriptInput{
		NodeInput: e.on(n), On: n, Phase: activities.PhaseReset, Attempt: 1, Deadline: deadline,
	})
	return err
}

// leaveEtcd sees to it that a control plane has left etcd: kubeadm reset says that it ended
// well also when it could not.
func (e *execution) leaveEtcd(ctx workflow.Context, n policy.Node) error {
	if workflow.GetVersion(ctx, "control-planes-leave-etcd", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil
	}
	options := with(ctx, "has "+n.Name+" left etcd?", nodeCallTimeout, apiRetryFor, 0)
	left, err := call(options, act.LeaveEtcd, activities.LeaveEtcdInput{Cluster: e.cluster, Node: n})
	if left.Removed {
		e.leave(ctx, []string{fmt.Sprintf("control plane %s had not left etcd after kubeadm reset: its member was removed through another one", n.Name)})
	}
	return err
}

// anotherNode is the detail of a node that was registered anew while the operation ran.
const anotherNode = "it is gone, and another node has its name now, which is left alone"

// lookAgain looks at a node right before it is removed: hours may have gone by since it
// was chosen. Its error says why it must not be.
func (e *execution) lookAgain(ctx workflow.Context, n policy.Node, drained bool) (activities.LookAgainResult, error) {
	if !looksAgain(ctx) {
		return activities.LookAgainResult{}, nil
	}
	in := activities.MachineInput{Cluster: e.cluster, Node: n}
	now, err := call(onAPI(ctx, "is "+n.Name+" still the same node?"), act.LookAgain, in)
	if err != nil || now.Gone || now.Replaced {
		return now, err
	}
	if n.Role != policy.Worker {
		return now, e.checkControlPlanes(ctx, []policy.Node{n})
	}
	if !drained {
		machine, err := call(e.onInfra(ctx, "is the machine of "+n.Name+" still down?", apiRetryFor), act.Machine, in)
		if err == nil && !machine.Down {
			err = fmt.Errorf("the machine of %s was down and is up again, and the node was not drained: start the scale-down again", n.Name)
		}
		return now, err
	}
	return now, nil
}

func looksAgain(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "look-again", workflow.DefaultVersion, 1) == 1
}

// removalFailed leaves the cluster in Alert, with the nodes that are still in it
// schedulable again.
func (e *execution) removalFailed(ctx workflow.Context, cause error, nodes []policy.Node, result operation.ScaleDownResult) error {
	remaining := nodes[len(result.Removed):]
	result.Remaining = policy.Names(remaining)
	o := e.outcome(operation.TypeFailed, cause)
	o.Uncordon, o.Removal = e.uncordon(ctx, remaining), &result
	return e.fail(ctx, o)
}
