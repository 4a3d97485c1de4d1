// Package faults proves that an operation ends the same whatever dies meanwhile.
//
// A scale-down by three and an upgrade of one control plane and four workers are
// run undisturbed first: that gives the expected end state, and the points at which
// a fault can strike: before, inside and after every kind of step, at the first
// node it touches and at a later one. Then the operation is run once for each point
// and fault, and has to end in the same state.
//
// `make faults` makes all the runs, `go test` a few that the code chooses.
package faults

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/workers"
)

// unused are the activity types that neither operation comes to, and why. A new
// activity that is in no trace and not here fails the test.
var unused = map[string]string{
	"Advance":     "an upgrade over several minors calls it between two hops",
	"DetachISO":   "called for a failed upgrade, and by the provider cloudstack only",
	"Diagnose":    "the reconciler's, which looks at clusters in Alert",
	"Rest":        "the reconciler's, which looks at clusters in Alert",
	"UncordonAll": "cleans up after an operation that was terminated",
}

// nothingInside are the activities that have no effect of their own that a fault
// could follow: their points are before and after.
var nothingInside = map[string]string{
	"Capacity":      "decides on what the shared watches have seen",
	"DrainSettings": "reads ebb.yaml on the worker",
}

func TestMain(m *testing.M) {
	if socket := os.Getenv(gateEnv); socket != "" {
		if err := work(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// lanes is how many clusters there are side by side: much of a run is waiting.
func lanes() int {
	if n, err := strconv.Atoi(os.Getenv("FAULTS_LANES")); err == nil && n > 0 {
		return n
	}
	return 2 * runtime.NumCPU()
}

func TestFaults(t *testing.T) {
	park := openPark(t)

	expected, points := undisturbed(t, park)
	requireEveryActivity(t, points)
	runs := choose(t, points)
	m := newMatrix(points, runs)
	park.each(t.Context(), runs, func(l *lane, r run) error {
		began := time.Now()
		got, _, err := l.run(t.Context(), r.Operation, &r.point, r.fault)
		verdict := ""
		if err != nil {
			verdict = err.Error()
		} else {
			verdict = difference(expected[r.Operation], got)
		}
		m.record(r, verdict, time.Since(began))
		return err
	})
	m.print(os.Stdout)
	for _, r := range m.different() {
		t.Errorf("%s\n%s", r, m.verdicts[r])
	}
	require.Equal(t, len(runs), m.done(), "every run was made")
}

// choose makes the list of runs that FAULTS asks for: all, those whose name matches
// a regular expression (such as 'Drain +first +inside +worker'), or, when it is
// empty, a few.
func choose(t *testing.T, points []point) []run {
	t.Helper()
	switch wanted := os.Getenv("FAULTS"); wanted {
	case "":
		return quick(points)
	case "all":
		return runsOf(points)
	default:
		name, err := regexp.Compile(wanted)
		require.NoError(t, err, "FAULTS")
		return slices.DeleteFunc(runsOf(points), func(r run) bool { return !name.MatchString(r.String()) })
	}
}

// undisturbed runs each operation once without a fault.
func undisturbed(t *testing.T, park *park) (map[operation]outcome, []point) {
	t.Helper()
	l := park.take()
	defer park.put(l)
	expected := map[operation]outcome{}
	var points []point
	for _, op := range []operation{scaleDown, upgrade} {
		began := time.Now()
		got, trace, err := l.run(t.Context(), op, nil, "")
		require.NoError(t, err)
		require.Equal(t, "Done", string(got.State), pretty(got))
		expected[op] = got
		points = append(points, pointsOf(op, trace)...)
		fmt.Printf("undisturbed %s took %.1f s, %d executions of steps\n", op, time.Since(began).Seconds(), len(trace))
	}
	return expected, points
}

// requireEveryActivity fails for an activity type that a worker registers and that
// has no point, or no point inside it, unless it is named above with the reason.
func requireEveryActivity(t *testing.T, points []point) {
	t.Helper()
	seen := map[string]map[when]bool{}
	for _, p := range points {
		if seen[p.Step.Activity] == nil {
			seen[p.Step.Activity] = map[when]bool{}
		}
		seen[p.Step.Activity][p.When] = true
	}
	types := workers.ActivityTypes()
	for _, name := range types {
		switch reason := unused[name]; {
		case reason != "":
			require.NotContains(t, seen, name, "activity %s is named as unused and is used", name)
		default:
			require.Contains(t, seen, name, "neither operation comes to activity %s: name it in unused, with the reason", name)
			require.Equal(t, nothingInside[name] == "", seen[name][inside], "activity %s: is there an effect for a point inside it?", name)
		}
	}
	for name := range seen {
		require.Contains(t, types, name)
	}
	for _, table := range []map[string]string{unused, nothingInside} {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			require.Contains(t, types, name, "named in a table and not registered")
		}
	}
}

// park holds the lanes that are not in use.
type park struct {
	dir  string
	free chan *lane
	made int
}

func openPark(t *testing.T) *park {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults")
	require.NoError(t, err)
	p := &park{dir: dir, free: make(chan *lane, lanes())}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var starting sync.WaitGroup
	errs := make(chan error, lanes())
	for range lanes() {
		at := p.next()
		starting.Go(func() {
			l, err := startLane(ctx, at)
			if err == nil {
				p.put(l)
			}
			errs <- err
		})
	}
	starting.Wait()
	t.Cleanup(func() { p.close(t) })
	for range lanes() {
		require.NoError(t, <-errs)
	}
	return p
}

func (p *park) next() string {
	p.made++
	return filepath.Join(p.dir, fmt.Sprint(p.made))
}

func (p *park) take() *lane { return <-p.free }
func (p *park) put(l *lane) { p.free <- l }

// each makes all runs, each on a lane that is free. A lane on which a run did not
// come to its end is given up for a new one.
func (p *park) each(ctx context.Context, runs []run, do func(*lane, run) error) {
	var going sync.WaitGroup
	for _, r := range runs {
		l := p.take()
		going.Go(func() {
			if err := do(l, r); err != nil {
				l = p.replace(ctx, l)
			}
			p.put(l)
		})
	}
	going.Wait()
}

// replace is a new lane for one that is broken.
func (p *park) replace(ctx context.Context, l *lane) *lane {
	if err := l.stop(); err != nil {
		fmt.Println("stop a lane:", err)
	}
	fresh, err := startLane(ctx, l.dir+"+")
	if err != nil {
		panic(fmt.Sprintf("no new lane: %v", err))
	}
	return fresh
}

func (p *park) close(t *testing.T) {
	for range len(p.free) {
		require.NoError(t, p.take().stop())
	}
	if t.Failed() {
		fmt.Println("kept for a look:", p.dir)
		return
	}
	require.NoError(t, os.RemoveAll(p.dir))
}
