package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// resetTimeout bounds kubeadm reset on a control plane that leaves.
const resetTimeout = 10 * time.Minute

// ScaleDownInput says what to remove: nodes by name, or a number of workers.
type ScaleDownInput struct {
	Cluster string   `json:"cluster"`
	Nodes   []string `json:"nodes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Strict  bool     `json:"strict,omitempty"` // refuse when pods would find no room, instead of warning
}

// ScaleDownResult is what became of each node, and the size of the cluster now.
type ScaleDownResult struct {
	Removed   []string `json:"removed"`             // no longer in the cluster
	Destroyed []string `json:"destroyed"`           // their machine as well
	Remaining []string `json:"remaining,omitempty"` // should have gone and are still in the cluster
	Size      int      `json:"size"`                // nodes of the cluster after it
}

// ScaleDown removes nodes from a cluster and destroys their machines. Until every
// node is drained, any failure takes everything back and nothing is removed;
// from then on it goes through to the end.
func ScaleDown(ctx workflow.Context, in ScaleDownInput) (ScaleDownResult, error) {
	o, err := begin(ctx, KindScaleDown, in.Cluster, "")
	if err != nil {
		return ScaleDownResult{}, err
	}
	// 1. Take the cluster.
	if err := o.claim(ctx, clusterstate.Scaling); err != nil {
		return ScaleDownResult{}, err
	}
	// 2. Choose the nodes, before anything is touched.
	scale := o.survey.Scale
	nodes, err := plan.SelectScaleDown(o.survey.Nodes, plan.ScaleDownRequest{Names: in.Nodes, Count: in.Count, MinWorkers: scale.MinWorkers})
	if err != nil {
		return ScaleDownResult{}, o.giveBack(ctx, err)
	}
	o.follow(ctx, nodes)
	// 3. A machine that is down has nothing to drain.
	up, err := o.machinesUp(ctx, nodes)
	if err != nil {
		return ScaleDownResult{}, o.giveBack(ctx, err)
	}
	// 4. A control plane leaves only a healthy one behind, and pods need room.
	err = o.checkControlPlanes(ctx, nodes)
	if err == nil {
		err = o.checkCapacity(ctx, nodes, in.Strict)
	}
	if err != nil {
		return ScaleDownResult{}, o.giveBack(ctx, err)
	}
	// 5. Cordon them all, then drain them; or take it all back.
	o.status.Deadline = workflow.Now(ctx).Add(scale.Timeout)
	if err := o.evacuate(ctx, up, scale.MaxParallel, scale.Attempts); err != nil {
		return ScaleDownResult{}, o.end(ctx, err, ErrRolledBack, o.from, "rolled back: nothing was removed, "+o.uncordon(ctx, up))
	}
	// 6. Remove them. Neither the deadline nor a cancellation stops this any more.
	result := ScaleDownResult{Size: len(o.survey.Nodes)}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	if err := o.remove(ctx, nodes, &result); err != nil {
		return ScaleDownResult{}, o.removalFailed(ctx, err, nodes, result)
	}
	// 7. Give the cluster back.
	if err := o.finish(ctx, o.from, "", "removed "+strings.Join(result.Removed, ", ")); err != nil {
		return ScaleDownResult{}, err
	}
	return result, nil
}

func (o *operation) machinesUp(ctx workflow.Context, nodes []plan.Node) ([]plan.Node, error) {
	o.step(ctx, "looking at the machines")
	var up []plan.Node
	for _, n := range nodes {
		machine, err := call(onAPI(ctx, "is the machine of "+n.Name+" up?"), act.Machine, activities.MachineInput{Cluster: o.cluster, Node: n})
		switch {
		case err != nil:
			return nil, err
		case !machine.Down:
			up = append(up, n)
		case n.Role != plan.Worker:
			return nil, &plan.Refusal{Reason: fmt.Sprintf("the machine of control plane %s is down, so that it cannot leave etcd: start it first", n.Name)}
		default:
			o.mark(ctx, n.Name, Drained, 0, "its machine is down: nothing to drain")
		}
	}
	return up, nil
}

// versionLeaving is the change that added the look at the control planes that stay.
const versionLeaving = "leaving-control-plane"

// checkControlPlanes refuses to take a control plane away from an etcd, or from
// other control planes, that are not healthy.
func (o *operation) checkControlPlanes(ctx workflow.Context, leaving []plan.Node) error {
	for _, n := range leaving {
		if n.Role == plan.Worker {
			continue
		}
		if workflow.GetVersion(ctx, versionLeaving, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
			return nil
		}
		faults, err := o.controlPlaneFaults(ctx, n.Name)
		if err == nil && len(faults) > 0 {
			err = &plan.Refusal{Reason: fmt.Sprintf("control plane %s cannot leave: %s", n.Name, strings.Join(faults, "; "))}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// versionCapacity is the change that added the capacity check.
const versionCapacity = "capacity"

// checkCapacity forecasts whether the pods of the nodes find room elsewhere. What
// does not is a warning, or with strict a refusal.
func (o *operation) checkCapacity(ctx workflow.Context, nodes []plan.Node, strict bool) error {
	if workflow.GetVersion(ctx, versionCapacity, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return nil
	}
	found, err := call(onAPI(ctx, "do their pods find room elsewhere?"), act.Capacity, activities.CapacityInput{Cluster: o.cluster, Nodes: plan.Names(nodes)})
	switch {
	case err != nil:
		return err
	case strict && found.Warning != "":
		return &plan.Refusal{Reason: found.Warning + "; nothing was touched, because of --strict"}
	}
	o.status.Warning = found.Warning
	return nil
}

// remove takes the drained nodes out of the cluster one after another, and stops
// at the first that does not go.
func (o *operation) remove(ctx workflow.Context, nodes []plan.Node, result *ScaleDownResult) error {
	for _, n := range nodes {
		if err := o.gate(ctx); err != nil {
			return err
		}
		o.step(ctx, "removing %s", n.Name)
		o.mark(ctx, n.Name, Removing, 0, "")
		in := activities.MachineInput{Cluster: o.cluster, Node: n}
		if n.Role != plan.Worker {
			deadline := workflow.Now(ctx).Add(resetTimeout)
			if _, err := call(until(ctx, deadline, "kubeadm reset on "+n.Name), act.RunScript, activities.ScriptInput{
				NodeInput: o.on(n), On: n, Phase: activities.PhaseReset, Attempt: 1, Deadline: deadline,
			}); err != nil {
				return err
			}
		}
		if _, err := call(onAPI(ctx, "delete node "+n.Name), act.DeleteNode, in); err != nil {
			return err
		}
		result.Removed, result.Size = append(result.Removed, n.Name), result.Size-1
		if _, err := call(onInfra(ctx, "destroy the machine of "+n.Name), act.DestroyMachine, in); err != nil {
			return err
		}
		result.Destroyed = append(result.Destroyed, n.Name)
		o.mark(ctx, n.Name, Done, 0, "")
	}
	return nil
}

// removalFailed leaves the cluster in Alert, with the nodes that are still in it
// schedulable again.
func (o *operation) removalFailed(ctx workflow.Context, cause error, nodes []plan.Node, result ScaleDownResult) error {
	remaining := nodes[len(result.Removed):]
	result.Remaining = plan.Names(remaining)
	done := fmt.Sprintf("removed %s, destroyed %s, still in the cluster %s (%s); the cluster has %d nodes",
		names(result.Removed), names(result.Destroyed), names(result.Remaining), o.uncordon(ctx, remaining), result.Size)
	return o.end(ctx, cause, ErrFailed, clusterstate.Alert, done)
}

func names(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
