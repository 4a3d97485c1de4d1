package faults

import (
	"cmp"
	"fmt"
	"slices"
)

// when is a moment of a step.
type when string

const (
	before when = "before" // the activity is about to be called
	inside when = "inside" // the first effect has happened at the other end, and the activity has not seen the answer
	after  when = "after"  // the activity has returned, and the engine does not know its result
)

var whens = []when{before, inside, after}

// fault is what is done at a point.
type fault string

const (
	killWorker fault = "worker"    // SIGKILL; another one is started at once
	killEngine fault = "engine"    // SIGKILL; started again at once on its file
	killAPI    fault = "apiserver" // SIGKILL; started again after apiDowntime
	cutSSH     fault = "ssh"       // connections cut; the node takes none for sshDowntime
)

var faults = []fault{killWorker, killEngine, killAPI, cutSSH}

// step is a kind of step: an activity type and, for a script, its phase.
type step struct{ Activity, Phase string }

func (s step) String() string {
	if s.Phase != "" {
		return s.Activity + "(" + s.Phase + ")"
	}
	return s.Activity
}

// Ordinals of the execution of a step that a point is at. The second is a later
// node: a worker where the first was the control plane, and with one more to come.
const (
	first = 1
	later = 2
)

// effect is how a step touches the world.
type effect string

const (
	command effect = "ssh"   // a command has ended on the node
	machine effect = "infra" // the infrastructure has acted
	write   effect = "write" // the API server has answered a request that changes something
	read    effect = "read"  // ... one that does not
	beat    effect = "beat"  // the activity says that it lives; what it does goes through shared watches
)

// effects are those that a point inside a step can be at, the weightiest first.
var effects = []effect{command, machine, write, read, beat}

// execution is one execution of a step in a run, over all its attempts.
type execution struct {
	Step    step
	Ordinal int // among those of its step, from 1
	Node    string
	Effects map[effect]bool
}

// at is the effect that a point inside is at; "" = it has none.
func (e *execution) at() effect {
	for _, candidate := range effects {
		if e.Effects[candidate] {
			return candidate
		}
	}
	return ""
}

// point is where in an operation a fault strikes.
type point struct {
	Operation operation
	Step      step
	Ordinal   int
	When      when
	Effect    effect // of a point inside
	SSH       bool   // the step uses an SSH connection
	Node      string // in the undisturbed run, for a reader
}

func (p point) String() string {
	name := map[int]string{first: "first", later: "later"}[p.Ordinal]
	return fmt.Sprintf("%-10s %-17s %-5s %-6s", p.Operation, p.Step, name, p.When)
}

// hits says whether a fault can strike at a point.
func (p point) hits(f fault) bool { return f != cutSSH || p.SSH }

// pointsOf are all points of an operation, made from what its undisturbed run did.
func pointsOf(op operation, trace []execution) []point {
	var points []point
	for _, e := range trace {
		if e.Ordinal != first && e.Ordinal != later {
			continue
		}
		for _, w := range whens {
			p := point{Operation: op, Step: e.Step, Ordinal: e.Ordinal, When: w, SSH: e.Effects[command], Node: e.Node}
			if w == inside {
				if p.Effect = e.at(); p.Effect == "" {
					continue
				}
			}
			points = append(points, p)
		}
	}
	return points
}

// run is one operation with one fault at one point.
type run struct {
	point
	fault
}

func (r run) String() string { return fmt.Sprintf("%s %-9s", r.point, r.fault) }

// runsOf are the runs of all points with all faults.
func runsOf(points []point) []run {
	var runs []run
	for _, p := range points {
		for _, f := range faults {
			if p.hits(f) {
				runs = append(runs, run{p, f})
			}
		}
	}
	return runs
}

// quick are the runs of an ordinary test: one for every step, most with the
// worker's death, every third with another fault, and every fault at least once.
// Which ones is a matter of the order, not of chance.
func quick(points []point) []run {
	var runs []run
	seen, used := map[step]bool{}, map[fault]int{}
	for _, p := range points {
		if seen[p.Step] {
			continue
		}
		seen[p.Step] = true
		same := slices.DeleteFunc(slices.Clone(points), func(o point) bool { return o.Operation != p.Operation || o.Step != p.Step })
		chosen := same[len(runs)%len(same)]
		how := killWorker
		if rarest := rarestFault(chosen, used); used[rarest] == 0 && rarest == cutSSH || len(runs)%3 == 2 {
			how = rarest
		}
		used[how]++
		runs = append(runs, run{chosen, how})
	}
	return runs
}

// rarestFault is the one that was used least of those, but the worker's death, that
// can strike at a point.
func rarestFault(p point, used map[fault]int) fault {
	others := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f == killWorker || !p.hits(f) })
	return slices.MinFunc(others, func(a, b fault) int { return cmp.Compare(used[a], used[b]) })
}
