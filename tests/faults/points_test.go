package faults

import (
	"cmp"
	"fmt"
	"slices"
)

// timing is when in a step a fault is injected.
type timing string

const (
	before timing = "before" // the activity is about to be called
	inside timing = "inside" // the first effect has happened at the other end, and the activity does not know it
	after  timing = "after"  // the activity has returned, and the engine does not know its result
)

var timings = []timing{before, inside, after}

// fault is what is injected at a point.
type fault string

const (
	killWorker fault = "worker"    // SIGKILL; another one is started at once
	killEngine fault = "engine"    // SIGKILL; started again at once on its file
	killAPI    fault = "apiserver" // SIGKILL; started again after apiDowntime
	cutSSH     fault = "ssh"       // connections are cut, and the node takes none for sshDowntime
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
	command        effect = "ssh"   // a command has ended on the node
	infrastructure effect = "infra" // the infrastructure has done something to the machine
	write          effect = "write" // the API server has answered a request that changes something
	read           effect = "read"  // ... one that does not
	heartbeat      effect = "beat"  // what the activity does goes through shared watches; its heartbeat stands for it
)

// effects are those that a point inside a step can be at, the most important first.
var effects = []effect{command, infrastructure, write, read, heartbeat}

// stepExecution is one execution of a step in a run, over all its attempts.
type stepExecution struct {
	Step    step
	Ordinal int // among those of its step, from 1
	Node    string
	Effects map[effect]bool
}

// mainEffect returns the effect that a point inside is at; "" = it has none.
func (e *stepExecution) mainEffect() effect {
	for _, candidate := range effects {
		if e.Effects[candidate] {
			return candidate
		}
	}
	return ""
}

// point is where in an operation a fault is injected.
type point struct {
	Operation scenario
	Step      step
	Ordinal   int
	When      timing
	Effect    effect // of a point inside
	SSH       bool   // the step uses an SSH connection
	Node      string // in the run without a fault, for a reader
}

func (p point) String() string {
	name := map[int]string{first: "first", later: "later"}[p.Ordinal]
	return fmt.Sprintf("%-10s %-17s %-5s %-6s", p.Operation, p.Step, name, p.When)
}

// allows reports whether a fault makes sense at a point.
func (p point) allows(f fault) bool { return f != cutSSH || p.SSH }

// pointsOf returns all points of an operation, made from the trace of its run without a fault.
func pointsOf(op scenario, trace []stepExecution) []point {
	var points []point
	for _, e := range trace {
		if e.Ordinal != first && e.Ordinal != later {
			continue
		}
		for _, w := range timings {
			p := point{Operation: op, Step: e.Step, Ordinal: e.Ordinal, When: w, SSH: e.Effects[command], Node: e.Node}
			if w == inside {
				if p.Effect = e.mainEffect(); p.Effect == "" {
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

// runsOf returns the runs of all points with all faults.
func runsOf(points []point) []run {
	var runs []run
	for _, p := range points {
		for _, f := range faults {
			if p.allows(f) {
				runs = append(runs, run{p, f})
			}
		}
	}
	return runs
}

// sampleRuns returns the runs of an ordinary test: one for every step, most with the
// worker's death, every third with another fault, and every fault at least once.
// Which ones is a matter of the order, not of chance.
func sampleRuns(points []point) []run {
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
		if rarest := leastUsedFault(chosen, used); used[rarest] == 0 && rarest == cutSSH || len(runs)%3 == 2 {
			how = rarest
		}
		used[how]++
		runs = append(runs, run{chosen, how})
	}
	return runs
}

// leastUsedFault returns the fault that a point allows and that was used least, the
// worker's death apart.
func leastUsedFault(p point, used map[fault]int) fault {
	others := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f == killWorker || !p.allows(f) })
	return slices.MinFunc(others, func(a, b fault) int { return cmp.Compare(used[a], used[b]) })
}
