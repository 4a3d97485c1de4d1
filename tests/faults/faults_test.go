// Package faults proves that an operation ends the same whatever dies meanwhile.
//
// A scale-down by three and an upgrade of one control plane and four workers are run
// without a fault first. That gives the expected end state, and the points at which
// faults are injected: before, inside and after every kind of step, at the first
// node it touches and at a later one. Then the operation is run once for each point
// and fault, and has to end in the same state.
//
// `make faults` makes all the runs, `go test` a few that the code chooses. README.md
// has more.
package faults

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/ops"
	"ebb/internal/workers"
)

// activitiesNotUsed are the activity types that neither operation comes to, and why. A new
// activity that is in no trace and not here fails the test.
var activitiesNotUsed = map[string]string{
	"Attend":         "resumes the reconciler, when the activity Release could not",
	"AttachISO":      "called for scripts that need an ISO; TestUpgradeFromTheBinariesISO is killed while one is attached",
	"Advance":        "an upgrade over several minors calls it between two hops",
	"DetachISO":      "called for a failed upgrade, and by the provider cloudstack only",
	"Machine":        "called again for a machine that was down",
	"LeaveEtcd":      "called for a control plane that is removed",
	"Diagnose":       "the reconciler's, which looks at clusters in Alert",
	"Rest":           "the reconciler's, which looks at clusters in Alert",
	"LeaveCordoned":  "called for a node whose new kubelet does not live",
	"TakeCordonOver": "called for a node that an earlier upgrade has left cordoned",
	"UncordonAll":    "cleans up after an operation that was terminated",
}

// activitiesWithoutEffect are those that have no effect of their own that a fault
// could follow: their points are before and after.
var activitiesWithoutEffect = map[string]string{
	"Capacity":      "decides on what the shared watches have seen",
	"CheckDrains":   "decides on what the shared watches have seen",
	"DrainSettings": "reads ebb.yaml on the worker",
	"Machines":      "asks the infrastructure for many machines at once, which changes nothing",
}

func TestMain(m *testing.M) {
	if socket := os.Getenv(injectorEnv); socket != "" {
		if err := runWorker(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// environmentCount returns how many runs are made side by side: much of a run is
// waiting.
func environmentCount() int {
	if n, err := strconv.Atoi(os.Getenv("FAULTS_PARALLEL")); err == nil && n > 0 {
		return n
	}
	return 2 * runtime.NumCPU()
}

func TestFaults(t *testing.T) {
	environments := newPool(t)
	expected, points := runWithoutFault(t, environments)
	requireEveryActivity(t, points)
	runs := selectRuns(t, points)
	m := newMatrix(points, runs)
	environments.runAll(t.Context(), runs, func(env *environment, r run) error {
		began := time.Now()
		got, _, err := env.runWithFault(t.Context(), r.Operation, &r.point, r.fault)
		diff := ""
		if err != nil {
			diff = err.Error()
		} else {
			diff = difference(expected[r.Operation], got)
		}
		m.record(r, diff, time.Since(began))
		return err
	})
	m.print(os.Stdout)
	for _, r := range m.differing() {
		t.Errorf("%s\n%s", r, m.differences[r])
	}
	require.Equal(t, len(runs), m.done(), "every run was made")
}

// selectRuns returns the list of runs that FAULTS asks for: all, those whose name matches
// a regular expression (such as 'Drain +first +inside +worker'), or, when it is
// empty, a few.
func selectRuns(t *testing.T, points []point) []run {
	t.Helper()
	switch wanted := os.Getenv("FAULTS"); wanted {
	case "":
		return sampleRuns(points)
	case "all":
		return runsOf(points)
	default:
		name, err := regexp.Compile(wanted)
		require.NoError(t, err, "FAULTS")
		return slices.DeleteFunc(runsOf(points), func(r run) bool { return !name.MatchString(r.String()) })
	}
}

// runWithoutFault runs each operation once without a fault.
func runWithoutFault(t *testing.T, environments *pool) (map[scenario]endState, []point) {
	t.Helper()
	env := environments.take()
	defer environments.put(env)
	expected := map[scenario]endState{}
	var points []point
	for _, op := range []scenario{scaleDown, upgrade} {
		began := time.Now()
		got, trace, err := env.runWithFault(t.Context(), op, nil, "")
		require.NoError(t, err)
		require.Equal(t, ops.Done, got.State, pretty(got))
		expected[op] = got
		points = append(points, pointsOf(op, trace)...)
		fmt.Printf("%s without a fault took %.1f s, %d executions of steps\n", op, time.Since(began).Seconds(), len(trace))
	}
	return expected, points
}

// requireEveryActivity fails for an activity type that a worker registers and that
// has no point, or no point inside it, unless it is named above with the reason.
func requireEveryActivity(t *testing.T, points []point) {
	t.Helper()
	seen := map[string]map[timing]bool{}
	for _, p := range points {
		if seen[p.Step.Activity] == nil {
			seen[p.Step.Activity] = map[timing]bool{}
		}
		seen[p.Step.Activity][p.When] = true
	}
	types := workers.ActivityTypes()
	for _, name := range types {
		switch reason := activitiesNotUsed[name]; {
		case reason != "":
			require.NotContains(t, seen, name, "activity %s is named in activitiesNotUsed and is used", name)
		default:
			require.Contains(t, seen, name, "neither operation comes to activity %s: name it in activitiesNotUsed, with the reason", name)
			require.Equal(t, activitiesWithoutEffect[name] == "", seen[name][inside], "activity %s: is there an effect for a point inside it?", name)
		}
	}
	for name := range seen {
		require.Contains(t, types, name)
	}
	for _, table := range []map[string]string{activitiesNotUsed, activitiesWithoutEffect} {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			require.Contains(t, types, name, "named in a table and not registered")
		}
	}
}
