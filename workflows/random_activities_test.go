package workflows

import (
	"context"
	"errors"
	"slices"
	"time"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// modelled is the activity of one name as the model does it: how long an attempt
// takes that goes well, and what it does at its end. What it does at its
// beginning, for example to start a script, it does when it is called.
type modelled func(m *model, in any) (time.Duration, func() (any, error))

// atOnce is an activity that only takes its one effect.
func atOnce[I, O any](do func(*model, I) (O, error)) modelled {
	return func(m *model, in any) (time.Duration, func() (any, error)) {
		return 0, func() (any, error) { return do(m, in.(I)) }
	}
}

// lasting is an activity that goes on for a while.
func lasting[I, O any](do func(*model, I) (time.Duration, func() (O, error))) modelled {
	return func(m *model, in any) (time.Duration, func() (any, error)) {
		after, end := do(m, in.(I))
		return after, func() (any, error) { return end() }
	}
}

// modelledActivities has every activity that the workflows call, by its type. An
// activity that is new in a workflow has to be added here.
var modelledActivities = map[string]modelled{
	"Claim":          atOnce((*model).claim),
	"Advance":        atOnce((*model).advanceTo),
	"Capacity":       atOnce((*model).capacity),
	"DetachISO":      atOnce((*model).detachISO),
	"Etcd":           atOnce((*model).etcd),
	"Diagnose":       atOnce((*model).diagnose),
	"Rest":           atOnce((*model).rest),
	"Release":        atOnce((*model).release),
	"Survey":         atOnce((*model).survey),
	"Node":           atOnce((*model).node),
	"Health":         atOnce((*model).health),
	"Preflight":      atOnce((*model).preflight),
	"Machine":        atOnce((*model).machine),
	"Cordon":         atOnce((*model).cordon),
	"Uncordon":       atOnce((*model).uncordon),
	"UncordonAll":    atOnce((*model).uncordonAll),
	"DrainSettings":  atOnce((*model).drainSettings),
	"Drain":          lasting((*model).drain),
	"RunScript":      lasting((*model).runScript),
	"CheckVersion":   atOnce((*model).checkVersion),
	"WaitReady":      lasting((*model).waitReady),
	"RecordVersion":  atOnce((*model).recordVersion),
	"DeleteNode":     atOnce((*model).deleteNode),
	"DestroyMachine": atOnce((*model).destroyMachine),
}

func refused(err error) error {
	return fails(activities.TypeRefused, "cluster prod: "+err.Error())
}

func (m *model) claim(in activities.ClaimInput) (activities.ClaimResult, error) {
	held := m.record().Holder == in.Operation
	got, err := m.store.Acquire(context.Background(), clusterstate.Claim{
		Operation: in.Operation, Engine: "engine/default", To: in.State,
		Accept: func(r clusterstate.Record) (string, error) {
			station, err := m.accepts(in, r)
			return plan.Canonical(append(slices.Clone(in.Hops), in.Target)[station]), err
		},
		Dead: func(_ context.Context, r clusterstate.Record) (bool, error) { return !m.alive[r.Holder], nil },
	})
	var refusal *plan.Refusal
	switch {
	case errors.As(err, &refusal), errors.Is(err, clusterstate.ErrHeld):
		return activities.ClaimResult{}, refused(err)
	case err != nil:
		return activities.ClaimResult{}, err
	}
	if !held {
		m.takenOver, m.aim = got.TakenOver, m.record().Target
		m.happened(eClaimed, in.Operation, "", got.TakenOver)
	}
	station := slices.Index(append(slices.Clone(in.Hops), in.Target), got.Target)
	return activities.ClaimResult{
		From: got.From, TakenOver: got.TakenOver, Station: max(station, 0), Retry: in.State == clusterstate.Upgrading && got.From == clusterstate.Alert,
	}, nil
}

// accepts is the real decision on the model's facts, and which station is next.
func (m *model) accepts(in activities.ClaimInput, r clusterstate.Record) (int, error) {
	if in.State != clusterstate.Upgrading {
		return 0, nil
	}
	facts := plan.UpgradeFacts{Record: r, Nodes: m.planned(), Hops: in.Hops, Target: in.Target}
	if r.State == clusterstate.Alert {
		facts.Down = m.machinesDown()
	}
	accepted, err := plan.AcceptUpgrade(facts)
	return accepted.Station, err
}

func (m *model) advanceTo(in activities.AdvanceInput) (activities.AdvanceResult, error) {
	was := m.record()
	err := m.store.Advance(context.Background(), in.Operation, in.Version, in.Target)
	if errors.Is(err, clusterstate.ErrLost) {
		return activities.AdvanceResult{}, refused(err)
	}
	if err == nil && was.Target != in.Target {
		m.aim = in.Target
		m.happened(eAdvanced, in.Operation, "", in.Version)
	}
	return activities.AdvanceResult{}, err
}

func (m *model) capacity(activities.CapacityInput) (activities.CapacityResult, error) {
	if m.s.crowded && !m.calm {
		return activities.CapacityResult{Warning: noRoom}, nil
	}
	return activities.CapacityResult{}, nil
}

// etcd looks at the members; what it saw is an event.
func (m *model) etcd(in activities.EtcdInput) (activities.EtcdResult, error) {
	m.looks++
	if m.goesWrong(m.dice("etcd", in.Except, m.looks), 0.3) {
		m.happened(eEtcdSick, m.operation, "", "")
		return activities.EtcdResult{Faults: []string{sickMember}}, nil
	}
	m.happened(eEtcdWell, m.operation, "", "")
	return activities.EtcdResult{}, nil
}

func (m *model) detachISO(in activities.DetachISOInput) (activities.DetachISOResult, error) {
	return activities.DetachISOResult{Detached: m.dice("iso", in.Node.Name).chance(50)}, nil
}

func (m *model) release(in activities.ReleaseInput) (activities.ReleaseResult, error) {
	held := m.record().Holder == in.Operation
	_, err := m.store.Finish(context.Background(), clusterstate.Outcome{
		Operation: in.Operation, To: in.State, Message: in.Message, Version: plan.Canonical(in.Version),
	})
	if errors.Is(err, clusterstate.ErrLost) {
		return activities.ReleaseResult{}, nil
	}
	if err == nil && held {
		m.resting = m.resting && m.record().State != clusterstate.Alert
		m.happened(eReleased, in.Operation, "", string(m.record().State))
	}
	return activities.ReleaseResult{Held: err == nil}, err
}

func (m *model) survey(activities.SurveyInput) (activities.Survey, error) {
	survey := m.settings
	survey.Nodes = m.planned()
	return survey, nil
}

func (m *model) node(in activities.NodeInput) (activities.NodeResult, error) {
	n := m.nodes[in.Node]
	if n == nil || n.gone {
		return activities.NodeResult{}, fails(activities.TypeConfig, "node "+in.Node+" is not in cluster prod any more")
	}
	return activities.NodeResult{Node: n.Node}, nil
}

func (m *model) health(in activities.HealthInput) (activities.HealthResult, error) {
	var result activities.HealthResult
	for _, n := range m.planned() {
		switch {
		case n.Role == plan.Worker || n.Name == in.Except:
		case !n.Ready:
			result.Faults = append(result.Faults, "control plane "+n.Name+" is not Ready")
		case n.Unschedulable:
			result.Faults = append(result.Faults, "control plane "+n.Name+" is cordoned")
		}
	}
	return result, nil
}

func (m *model) preflight(in activities.PreflightInput) (result activities.PreflightResult, _ error) {
	if m.goesWrong(m.dice("preflight", in.Node.Name), 0.1) {
		result.Faults = []string{"node " + in.Node.Name + ": kubeadm is not installed"}
	}
	return result, nil
}

func (m *model) machine(in activities.MachineInput) (activities.MachineResult, error) {
	return activities.MachineResult{Down: m.nodes[in.Node.Name].down}, nil
}

func (m *model) cordon(in activities.NodeInput) (activities.CordonResult, error) {
	n := m.nodes[in.Node]
	switch {
	case n.gone:
		return activities.CordonResult{}, fails(activities.TypeConfig, "cordon node "+in.Node+": it is not in cluster prod any more")
	case n.Unschedulable:
		return activities.CordonResult{Ours: n.CordonedBy == in.Operation}, nil
	}
	n.Unschedulable, n.CordonedBy, n.by = true, in.Operation, in.Operation
	m.happened(eCordoned, in.Operation, in.Node, "")
	if d := m.dice("operator", in.Operation, in.Node); d.chance(m.s.uncordons) && !m.calm {
		m.later(m.clock.Add(d.span(time.Second, 10*time.Minute)), func() { m.operatorUncordons(n) })
	}
	return activities.CordonResult{Ours: true}, nil
}

// operatorUncordons is kubectl uncordon: the annotation stays.
func (m *model) operatorUncordons(n *modelNode) {
	if n.gone || !n.Unschedulable {
		return
	}
	n.Unschedulable, n.by = false, ""
	m.happened(eOperator, "", n.Name, "")
}

func (m *model) uncordon(in activities.NodeInput) (activities.UncordonResult, error) {
	return activities.UncordonResult{Uncordoned: m.takeBack(in.Node, in.Operation)}, nil
}

func (m *model) takeBack(node, operation string) bool {
	n := m.nodes[node]
	if n.gone || !n.Unschedulable || n.CordonedBy != operation {
		return false
	}
	by := n.by
	n.Unschedulable, n.CordonedBy, n.by = false, "", ""
	m.happened(eUncordoned, operation, node, by)
	return true
}

func (m *model) uncordonAll(in activities.UncordonAllInput) (result activities.UncordonAllResult, err error) {
	for _, n := range m.planned() {
		if slices.Contains(clusterstate.Names(in.Operation), n.CordonedBy) && m.takeBack(n.Name, n.CordonedBy) {
			result.Nodes = append(result.Nodes, n.Name)
		}
	}
	return result, m.store.Cleaned(context.Background(), in.Holder, in.Operation)
}

func (m *model) drainSettings(activities.DrainSettingsInput) (activities.DrainSettings, error) {
	return m.s.drain, nil
}
