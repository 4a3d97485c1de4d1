package randomised

import (
	"context"
	"errors"
	"slices"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// activityModel does to the model what the activity of one name does to a cluster.
// It is called when an attempt begins, does what has its effect then (a script is
// started), and returns how long the attempt takes when nothing goes wrong with it,
// and a function for its end.
type activityModel func(m *model, in any) (time.Duration, func() (any, error))

// immediate is the model of an activity whose only effect is at its end.
func immediate[I, O any](do func(*model, I) (O, error)) activityModel {
	return func(m *model, in any) (time.Duration, func() (any, error)) {
		return 0, func() (any, error) { return do(m, in.(I)) }
	}
}

// longRunning is the model of an activity that goes on for a while.
func longRunning[I, O any](do func(*model, I) (time.Duration, func() (O, error))) activityModel {
	return func(m *model, in any) (time.Duration, func() (any, error)) {
		takes, end := do(m, in.(I))
		return takes, func() (any, error) { return end() }
	}
}

// activityModels has every activity that the workflows call, by its type. An
// activity that is new in a workflow has to be added here.
var activityModels = map[string]activityModel{
	"Claim":          immediate((*model).claim),
	"Advance":        immediate((*model).advance),
	"Capacity":       immediate((*model).capacity),
	"CheckDrains":    immediate((*model).checkDrains),
	"WaitDetached":   immediate((*model).waitDetached),
	"AttachISO":      immediate((*model).attachISO),
	"DetachISO":      immediate((*model).detachISO),
	"Etcd":           immediate((*model).etcd),
	"LeaveEtcd":      immediate((*model).leaveEtcd),
	"Diagnose":       immediate((*model).diagnose),
	"Rest":           immediate((*model).rest),
	"Release":        immediate((*model).release),
	"Survey":         immediate((*model).survey),
	"Node":           immediate((*model).node),
	"Health":         immediate((*model).health),
	"Preflight":      immediate((*model).preflight),
	"Machine":        immediate((*model).machine),
	"Machines":       immediate((*model).machines),
	"Cordon":         immediate((*model).cordon),
	"Uncordon":       immediate((*model).uncordon),
	"LeaveCordoned":  immediate((*model).leaveCordoned),
	"TakeCordonOver": immediate((*model).takeCordonOver),
	"UncordonAll":    immediate((*model).uncordonAll),
	"DrainSettings":  immediate((*model).drainSettings),
	"Drain":          longRunning((*model).drain),
	"RunScript":      longRunning((*model).runScript),
	"CheckVersion":   immediate((*model).checkVersion),
	"WaitReady":      longRunning((*model).waitReady),
	"RecordVersion":  immediate((*model).recordVersion),
	"LookAgain":      immediate((*model).lookAgain),
	"DeleteNode":     immediate((*model).deleteNode),
	"DestroyMachine": immediate((*model).destroyMachine),
}

// What the models report when it is drawn that something is wrong.
const (
	podsWithoutRoom = "3 pods find no room"
	etcdFault       = "etcd member cp9 is not healthy"
)

func refusedError(err error) error {
	return permanentError(operation.TypeRefused, "cluster prod: "+err.Error())
}

// claim makes the real decisions, of internal/lease and internal/policy, on the
// model's facts.
func (m *model) claim(in activities.ClaimInput) (activities.ClaimResult, error) {
	held := m.record().Holder == in.Operation
	if m.mustAsk(in) {
		return activities.ClaimResult{Ask: &activities.AskMachines{Nodes: m.nodeList(), Infra: activities.InfraCalls{Timeout: time.Minute, Lists: m.random("lists").chance(50)}}}, nil
	}
	got, err := m.store.Acquire(context.Background(), lease.Claim{
		Operation: in.Operation, Engine: "engine/default", To: in.State,
		Accept: func(r clusterstate.Record) (version.Version, error) { return m.acceptUpgrade(in, r) },
		Dead:   func(_ context.Context, r clusterstate.Record) (bool, error) { return !m.running[r.Holder], nil },
	})
	var refusal *policy.Refusal
	switch {
	case errors.As(err, &refusal), errors.Is(err, lease.ErrHeld):
		return activities.ClaimResult{}, refusedError(err)
	case err != nil:
		return activities.ClaimResult{}, err
	}
	if !held {
		m.takenOver, m.upgradingTo = got.TakenOver, m.record().Target
		m.emit(eventClaimed, in.Operation, "", got.TakenOver)
	}
	return activities.ClaimResult{
		From: got.From, TakenOver: got.TakenOver, Next: got.Target, Retry: in.State == clusterstate.Upgrading && got.From == clusterstate.Alert,
	}, nil
}

// mustAsk reports whether a claim is a retry of which the machines are not known yet.
func (m *model) mustAsk(in activities.ClaimInput) bool {
	r := m.record()
	if in.Machines == nil || in.Machines.Asked || r.Holder != "" || r.State != clusterstate.Alert {
		return false
	}
	_, err := policy.AcceptUpgrade(policy.UpgradeFacts{Record: r, Nodes: m.nodeList(), Route: in.Route})
	return err == nil
}

// acceptUpgrade returns the version that an upgrade goes to first, or why it is refused.
func (m *model) acceptUpgrade(in activities.ClaimInput, r clusterstate.Record) (version.Version, error) {
	if in.State != clusterstate.Upgrading {
		return "", nil
	}
	facts := policy.UpgradeFacts{Record: r, Nodes: m.nodeList(), Route: in.Route}
	if r.State == clusterstate.Alert {
		facts.Down = m.machinesDown()
		if in.Machines != nil && in.Machines.Asked {
			facts.Down = in.Machines.Down
		}
	}
	accepted, err := policy.AcceptUpgrade(facts)
	return accepted.Next, err
}

func (m *model) advance(in activities.AdvanceInput) (activities.AdvanceResult, error) {
	was := m.record()
	err := m.store.Advance(context.Background(), in.Operation, in.Version, in.Target)
	if errors.Is(err, lease.ErrLost) {
		return activities.AdvanceResult{}, refusedError(err)
	}
	if err == nil && was.Target != in.Target {
		m.upgradingTo = in.Target
		m.emit(eventHopComplete, in.Operation, "", string(in.Version))
	}
	return activities.AdvanceResult{}, err
}

func (m *model) release(in activities.ReleaseInput) (activities.ReleaseResult, error) {
	held := m.record().Holder == in.Operation
	_, err := m.store.Release(context.Background(), lease.Outcome{
		Operation: in.Operation, To: in.State, Message: in.Message, Version: in.Version,
	})
	if errors.Is(err, lease.ErrLost) {
		return activities.ReleaseResult{}, nil
	}
	if err == nil && held {
		m.schedulePaused = m.schedulePaused && m.record().State != clusterstate.Alert
		m.emit(eventReleased, in.Operation, "", string(m.record().State))
	}
	return activities.ReleaseResult{Held: err == nil}, err
}

func (m *model) survey(activities.SurveyInput) (activities.Survey, error) {
	survey := m.settings
	survey.Nodes = m.nodeList()
	m.emit(eventSurveyed, m.operation, "", "")
	return survey, nil
}

func (m *model) checkDrains(activities.CheckDrainsInput) (activities.CheckDrainsResult, error) {
	return activities.CheckDrainsResult{}, nil
}

func (m *model) waitDetached(activities.WaitDetachedInput) (activities.WaitDetachedResult, error) {
	return activities.WaitDetachedResult{}, nil
}

func (m *model) capacity(activities.CapacityInput) (activities.CapacityResult, error) {
	if m.s.noCapacity && !m.faultsOff {
		return activities.CapacityResult{Warning: podsWithoutRoom}, nil
	}
	return activities.CapacityResult{}, nil
}

func (m *model) health(in activities.HealthInput) (activities.HealthResult, error) {
	faults, kind := policy.UnfitControlPlanes(m.nodeList(), in.Except, in.Operation), eventControlPlaneHealthy
	if len(faults) > 0 {
		kind = eventControlPlaneFaulty
	}
	m.emit(kind, m.operation, "", in.Except)
	return activities.HealthResult{Faults: faults}, nil
}

func (m *model) etcd(in activities.EtcdInput) (activities.EtcdResult, error) {
	m.etcdChecks++
	if m.nodeFault(m.random("etcd", in.Except, m.etcdChecks), 0.3) {
		m.emit(eventEtcdFaulty, m.operation, "", in.Except)
		return activities.EtcdResult{Faults: []string{etcdFault}}, nil
	}
	m.emit(eventEtcdHealthy, m.operation, "", in.Except)
	return activities.EtcdResult{}, nil
}

// leaveEtcd removes a member that is still there.
func (m *model) leaveEtcd(in activities.LeaveEtcdInput) (activities.LeaveEtcdResult, error) {
	n := m.nodes[in.Node.Name]
	removed := n.inEtcd
	n.inEtcd = false
	return activities.LeaveEtcdResult{Removed: removed}, nil
}

// diagnose is the reconciler's look at the cluster.
func (m *model) diagnose(activities.DiagnoseInput) (activities.Diagnosis, error) {
	r, nodes := m.record(), m.nodeList()
	m.diagnosedHealthy = r.Holder == m.operation && m.healthy(r.Target)
	diagnosis := activities.Diagnosis{State: r.State, Faults: policy.Unrecovered(r, nodes)}
	if r.Target != "" && nodes[0].Version == r.Target {
		diagnosis.Version = r.Target
	}
	return diagnosis, nil
}

// rest pauses the reconciler's schedule, unless the cluster needs it.
func (m *model) rest(activities.RestInput) (activities.RestResult, error) {
	needed := []clusterstate.State{clusterstate.Alert, clusterstate.Recovering}
	m.schedulePaused = !slices.Contains(needed, m.record().State)
	return activities.RestResult{Resting: m.schedulePaused}, nil
}
