package activities

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/nodeaccess"
	"ebb/internal/nodessh"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/scripts"
	"ebb/internal/tail"
	"ebb/internal/version"
	"ebb/internal/wait"
)

// Phases of a script on a node.
const (
	PhaseStage   = "stage"   // fetch what the upgrade needs; nothing that runs is changed
	PhaseUpgrade = "upgrade" // upgrade the drained node
	PhaseReset   = "reset"   // take a control plane out of etcd and off the node
)

// exitRetry is the exit code by which a script asks to be run again (EX_TEMPFAIL of sysexits.h).
const exitRetry = 75

// outputTail is how many bytes of output an error carries: what the CloudStack
// drain helper settled on.
const outputTail = 2000

// stopGrace is how long a script that ran out of time gets after its SIGTERM.
const stopGrace = 10 * time.Second

// resetScript removes a control plane's etcd member and its static pods.
// kubeadm is idempotent here: a node that was reset already has nothing to do.
const resetScript = "#!/bin/sh\nexec kubeadm reset --force\n"

// ScriptInput says which script to run where.
type ScriptInput struct {
	NodeInput
	On       policy.Node     `json:"on"`
	Phase    string          `json:"phase"`
	Target   version.Version `json:"target,omitempty"`
	Hop      int             `json:"hop,omitempty"` // of an upgrade in hops; each is a run of its own on the node
	Attempt  int             `json:"attempt"`       // 1 for the first; each attempt is a run of its own on the node
	Deadline time.Time       `json:"deadline"`
}

// ScriptResult is the end of a script.
type ScriptResult struct {
	Again  bool   `json:"again,omitempty"`  // it asked for a retry (exit 75)
	Output string `json:"output,omitempty"` // the last 2,000 bytes
}

// RunScript runs a script on a node, detached and at most once for each
// operation, node, phase and attempt: after a lost connection or a dead worker it
// reattaches to the run that is there. A script that fails is a permanent error
// with the end of its output; one that runs past the deadline is stopped first. One
// that had ended by itself counts as it has ended, however late that is found.
func (a *Activities) RunScript(ctx context.Context, in ScriptInput) (ScriptResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return ScriptResult{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return ScriptResult{}, err
	}
	target, err := nodeaccess.Resolve(ctx, c, in.On, a.Log)
	if err != nil {
		return ScriptResult{}, err
	}
	body := []byte(resetScript)
	if in.Phase != PhaseReset {
		if body, err = scripts.Load(settings.Upgrade.Script); err != nil {
			return ScriptResult{}, permanent(operation.TypeConfig, err)
		}
	}
	name := in.runName()
	run := &scriptRun{
		target: target, log: a.Log.With(zap.String("operation", in.Operation), zap.String("node", in.Node), zap.String("phase", in.Phase)),
		spec: nodessh.Run{
			Dir:    path.Join(settings.SSH.RunDir, name),
			Script: body,
			Env: map[string]string{
				"EBB_PHASE": in.Phase, "EBB_ROLE": string(in.On.Role), "EBB_NODE": in.Node, "EBB_OPERATION": in.Operation,
				"EBB_TARGET_VERSION": string(in.Target), "EBB_CURRENT_VERSION": string(in.On.Version),
				"EBB_KUBEADM_FLAGS": strings.Join(flagsOf(in.On.Role, settings.Upgrade), " "), "EBB_BUNDLE_DIR": settings.Upgrade.BundleDir,
			},
		},
	}
	run.deadline, run.output = in.Deadline, a.recorder(ctx, in, run.spec.Dir)
	defer keepAlive(ctx, func() any { return run.output.progress() })()
	status, err := run.toEnd(ctx, localTime(a.Now(), activity.GetInfo(ctx).StartedTime, in.Deadline))
	if err != nil {
		return ScriptResult{}, err
	}
	return conclude(in, status, run.output.progress().Output)
}

// flagsOf are those of the kubeadm command that upgrades a node of that role.
func flagsOf(role policy.Role, u config.Upgrade) []string {
	if role == policy.FirstControlPlane {
		return u.ApplyFlags()
	}
	return u.NodeFlags()
}

// recorder goes on where the last worker that had this activity stopped.
func (a *Activities) recorder(ctx context.Context, in ScriptInput, dir string) *recorder {
	workflow := activity.GetInfo(ctx).WorkflowExecution
	r := &recorder{
		run:  operation.Output{Node: in.Node, Phase: in.Phase, Hop: in.Hop, Attempt: in.Attempt},
		rest: path.Join(dir, "output"),
		send: func(ctx context.Context, o operation.Output) error {
			return a.Engine.Signal(ctx, workflow.ID, workflow.RunID, operation.SignalOutput, o)
		},
	}
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &r.arrived); err != nil {
			r.arrived = operation.ScriptProgress{}
		}
	}
	r.arrived.Node = in.Node
	return r
}

// runName names a run on its node; it is the same for whoever reattaches to it.
func (in ScriptInput) runName() string {
	phase := in.Phase
	if in.Hop > 0 {
		phase += fmt.Sprintf("-hop%d", in.Hop+1)
	}
	return fmt.Sprintf("%s-%s-%s-%d", in.Operation, in.On.UID, phase, in.Attempt)
}

// conclude turns the end of a run into the activity's result.
func conclude(in ScriptInput, status nodessh.RunStatus, output string) (ScriptResult, error) {
	what := fmt.Sprintf("script (%s) on node %s", in.Phase, in.Node)
	switch {
	case status.State == nodessh.RunLost:
		return ScriptResult{}, permanentf(operation.TypeScript, "%s was interrupted and did not end: did the machine restart? Output: %s", what, output)
	case status.ExitCode == exitRetry:
		return ScriptResult{Again: true, Output: output}, nil
	case status.ExitCode != 0:
		return ScriptResult{}, permanentf(operation.TypeScript, "%s: exit status %d: %s", what, status.ExitCode, output)
	}
	return ScriptResult{Output: output}, nil
}

// scriptRun follows one run on one node over as many connections as it takes.
type scriptRun struct {
	target nodessh.Target
	spec   nodessh.Run
	log    *zap.Logger

	deadline time.Time // as the operation has it
	output   *recorder
}

// reconnectPause grows from its first to its last value between connections that fail.
const (
	reconnectFirst = 250 * time.Millisecond
	reconnectLast  = 5 * time.Second
)

// toEnd starts the run, or finds it, and follows it until it ends, or until the deadline
// by the clock of this worker.
func (r *scriptRun) toEnd(ctx context.Context, deadline time.Time) (nodessh.RunStatus, error) {
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	pause := reconnectFirst
	for {
		status, err := r.attach(bounded)
		switch {
		case err == nil:
			return status, nil
		case ctx.Err() != nil:
			return nodessh.RunStatus{}, ctx.Err()
		case bounded.Err() != nil:
			return r.late(ctx)
		case nodessh.Permanent(err):
			return nodessh.RunStatus{}, err
		}
		r.log.Warn("connection to the script lost, attaching again", zap.Error(err))
		_ = wait.Sleep(bounded, pause) // the next attempt sees its end
		pause = min(2*pause, reconnectLast)
	}
}

func (r *scriptRun) attach(ctx context.Context) (nodessh.RunStatus, error) {
	client, err := nodessh.Dial(ctx, r.target)
	if err != nil {
		return nodessh.RunStatus{}, fmt.Errorf("node %s at %s: %w", r.target.Node, r.target.Address, err)
	}
	defer r.close(client)
	if err := client.Start(ctx, r.spec); err != nil {
		return nodessh.RunStatus{}, fmt.Errorf("start the script: %w", err)
	}
	return r.follow(ctx, client)
}

// follow passes the output on until the run has ended.
func (r *scriptRun) follow(ctx context.Context, client *nodessh.Client) (nodessh.RunStatus, error) {
	r.output.begin()
	stop := r.output.keepSending(ctx)
	status, err := client.Follow(ctx, r.spec.Dir, r.output.progress().Offset, func(chunk []byte) error { return r.output.write(ctx, chunk) })
	stop()
	if unsent := r.output.flush(ctx, err == nil); err == nil {
		err = unsent
	}
	return status, err
}

// late ends the run when the deadline has passed. The node is only let go of once the run
// is known to have ended; a run that had ended by itself, while nobody followed it, has
// the end that it has.
func (r *scriptRun) late(ctx context.Context) (nodessh.RunStatus, error) {
	client, err := nodessh.Dial(ctx, r.target)
	if err != nil {
		return nodessh.RunStatus{}, fmt.Errorf("look at the script that is past its deadline: node %s at %s: %w", r.target.Node, r.target.Address, err)
	}
	defer r.close(client)
	status, err := client.Status(ctx, r.spec.Dir)
	switch {
	case err != nil:
		return nodessh.RunStatus{}, fmt.Errorf("look at the script that is past its deadline: %w", err)
	case status.State == nodessh.RunAbsent:
		return nodessh.RunStatus{}, permanentf(operation.TypeScript, "the script on node %s could not be started before the deadline %s",
			r.target.Node, r.deadline.Format(time.RFC3339))
	case status.State == nodessh.RunRunning:
		if status, err = client.Stop(ctx, r.spec.Dir, stopGrace); err != nil {
			return nodessh.RunStatus{}, fmt.Errorf("stop the script that is past its deadline: %w", err)
		}
		if status.State != nodessh.RunExited || status.ExitCode != 0 { // or it came to its end in this moment
			return nodessh.RunStatus{}, permanentf(operation.TypeScript, "the script on node %s did not end before the deadline %s and was stopped (exit status %d): %s",
				r.target.Node, r.deadline.Format(time.RFC3339), status.ExitCode, r.output.progress().Output)
		}
	}
	return r.follow(ctx, client)
}

func (r *scriptRun) close(client *nodessh.Client) {
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		r.log.Debug("close the SSH connection", zap.Error(err))
	}
}

// CheckVersionInput names a node and the version it should be at.
type CheckVersionInput struct {
	Cluster string          `json:"cluster"`
	Node    policy.Node     `json:"node"`
	Version version.Version `json:"version"`
}

// CheckVersionResult is empty.
type CheckVersionResult struct{}

// CheckVersion asks the kubelet on the node itself for its version after an
// upgrade; another version than the wanted one is a permanent error.
func (a *Activities) CheckVersion(ctx context.Context, in CheckVersionInput) (CheckVersionResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return CheckVersionResult{}, err
	}
	output, _, err := nodeaccess.Exec(ctx, c, in.Node, a.Log, "kubelet --version 2>&1")
	if err != nil {
		return CheckVersionResult{}, err
	}
	if !in.Version.EndsLine(output) {
		return CheckVersionResult{}, permanentf(operation.TypeVersion, "node %s: the script ended well but the kubelet is not at %s: %s",
			in.Node.Name, in.Version, tail.Of(strings.TrimSpace(output), 300))
	}
	return CheckVersionResult{}, nil
}
