package workflows

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/activities"
	"ebb/internal/clusterstate"
	"ebb/internal/plan"
)

// regressions are seeds that once failed, and what they found. They run first.
var regressions = []struct {
	seed  uint64
	found string
}{
	{24, "cancelled while it cleaned up after a dead operation, whose cordons then stayed for good"},
	{2169, "the same, cancelled while it took the cluster"},
	{323, "a lock that could not be released after all went well was an error without a type"},
	{395, "the retry was refused when the last node had reached the target and was not Ready"},
	{503, "the same, with the operator's second run"},
	{611, "a claim that was done without an answer, and then forbidden, kept the lock"},
	{1988, "the same in a scale-down"},
	{2343, "the reconciler lost a node between its two looks, and recorded the target as reached all the same, so that the retry was refused"},
	{3836, "a fault of the invariant: a reconciler that takes over from a dead one was taken for one that meddles"},
	{4541, "a drain that was cut off by its timeout is tried again, though its last error was of another kind"},
}

// seedsByDefault is how many seeds a plain go test runs.
const seedsByDefault = 400

// TestRandomisedOperations runs operations on drawn clusters with drawn faults,
// and again without faults after those that failed, and asks every invariant of
// random_during_test.go and random_after_test.go. EBB_SEEDS=5000 runs more seeds,
// EBB_SEED=17 only that one. A seed that fails belongs in regressions.
func TestRandomisedOperations(t *testing.T) {
	if one := os.Getenv("EBB_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		require.NoError(t, err)
		report := playSeed(seed)
		t.Log(report.trace)
		require.Empty(t, report.violations)
		return
	}
	seeds := uint64(seedsByDefault)
	if more := os.Getenv("EBB_SEEDS"); more != "" {
		var err error
		seeds, err = strconv.ParseUint(more, 10, 64)
		require.NoError(t, err)
	}
	for _, r := range regressions {
		report := playSeed(r.seed)
		require.Empty(t, report.violations, "seed %d is back (%s)\n%s", r.seed, r.found, report.trace)
	}
	counts := playSeeds(t, seeds)
	t.Logf("%d seeds ended %v", seeds, counts)
	if seeds < seedsByDefault {
		return
	}
	for _, end := range []string{"Upgrade done", "ScaleDown done", "Drain done", "Upgrade Refused", "ScaleDown Refused", "Drain Refused",
		"Upgrade RolledBack", "ScaleDown RolledBack", "Drain RolledBack", "Upgrade Failed", "ScaleDown Failed", "Upgrade cancelled Failed", "ScaleDown cancelled RolledBack"} {
		require.NotZero(t, counts[end], "no seed ended as %q: the draws show too little; there were %v", end, counts)
	}
}

// FuzzOperations lets the fuzzer choose the seeds.
func FuzzOperations(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		report := playSeed(seed)
		require.Empty(t, report.violations, "seed %d\n%s", seed, report.trace)
	})
}

// mostReports is how many failing seeds are printed in full.
const mostReports = 3

// playSeeds runs the seeds on all processors, and counts how the operations ended.
func playSeeds(t *testing.T, seeds uint64) map[string]int {
	var (
		next   = make(chan uint64)
		mu     sync.Mutex
		counts = map[string]int{}
		failed []uint64
		group  sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := range next {
				report := playSeed(seed)
				mu.Lock()
				counts[report.ended]++
				if len(report.violations) > 0 {
					failed = append(failed, seed)
					t.Errorf("seed %d: %s", seed, strings.Join(report.violations, "\n"))
					if len(failed) <= mostReports {
						t.Log(report.trace)
					}
				}
				mu.Unlock()
			}
		})
	}
	for seed := range seeds {
		next <- seed + 1
	}
	close(next)
	group.Wait()
	require.Empty(t, failed, "seeds that failed: run one with EBB_SEED, and add it to regressions")
	return counts
}

// report is what one seed came to.
type report struct {
	ended      string // kind and end of the first operation
	violations []string
	trace      string
}

// playSeed runs one seed: the drawn operation, and, when that failed, the
// reconciler, and the same operation once more after an operator has mended the
// cluster, sometimes with the reconciler before it.
func playSeed(seed uint64) (r report) {
	m := newModel(drawScenario(seed))
	var (
		first, second *outcome
		recoveries    []*recovery
	)
	defer func() {
		if p := recover(); p != nil {
			r.violations = append(r.violations, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
		}
		r.violations = append(m.violations, r.violations...)
		r.trace = fmt.Sprintf("seed %d: %s\n", seed, m.s)
		for _, o := range []*outcome{first, second} {
			if o != nil {
				r.trace += strings.Join(o.trace, "\n") + "\n" + fmt.Sprintf("ended %s: %v\n", o.end(), o.err)
			}
		}
		for _, run := range recoveries {
			r.trace += strings.Join(run.trace, "\n") + "\n"
		}
		r.trace += m.describe()
	}()
	first = prepare(m, "op-1")
	first.play(m.s.names)
	r.ended = string(first.kind) + " " + first.end()
	if first.err == nil {
		return r
	}
	m.alive["op-1"] = false
	recoveries = append(recoveries, m.reconcile("reconcile-1"))
	m.alive[livingHolder] = false
	m.heal("op-1")
	m.calm, m.settings = true, m.s.generous()
	if m.dice("reconciler").chance(50) { // or the operator is faster
		recoveries = append(recoveries, m.reconcile("reconcile-2"))
	}
	names, possible := m.again()
	second = prepare(m, "op-2")
	second.play(names)
	if possible && second.err != nil {
		r.violations = append(r.violations, fmt.Sprintf("secondRunFinishes: %v (what failed goes on where it stopped)", second.err))
	}
	return r
}

// generous are settings under which nothing runs out of time.
func (s *scenario) generous() activities.Survey {
	settings := s.settings
	settings.Scale.Timeout, settings.Upgrade.Timeout = 24*time.Hour, 0
	settings.Upgrade.NodeTimeout, settings.Upgrade.ReadyTimeout = time.Hour, time.Hour
	return settings
}

// again is the request for the second run, and whether it can be carried out.
func (m *model) again() (names []string, possible bool) {
	for _, name := range m.s.names {
		if n := m.nodes[name]; n == nil || !n.gone {
			names = append(names, name)
		}
	}
	r := withoutHolder(m.record())
	var err error
	switch m.s.kind {
	case KindUpgrade:
		known := slices.Contains([]string{target, otherTarget, farTarget}, m.s.target)
		return names, known && m.shouldAccept(r, m.s.target)
	case KindScaleDown:
		_, err = plan.SelectScaleDown(m.planned(), plan.ScaleDownRequest{Names: names, Count: m.s.count, MinWorkers: 1})
	default:
		_, err = plan.Named(m.planned(), names)
	}
	return names, err == nil
}

// wouldAccept asks the real decision whether the cluster takes an upgrade now.
func (m *model) wouldAccept(version string) error {
	_, err := m.accepts(activities.ClaimInput{State: clusterstate.Upgrading, Hops: m.hopsTo(version), Target: version}, m.record())
	return err
}

// hopsTo is the way to a version.
func (m *model) hopsTo(version string) []string {
	if version == m.s.target {
		return m.s.hops
	}
	return nil
}

// shouldAccept is the same decision in the words of the specification: a Running
// cluster takes a version that some node has not reached and none is past, one
// minor at a time; one in Alert takes the target of the upgrade that failed, with
// every machine up, or, where none is recorded, a version that a node but not the
// cluster has reached.
func (m *model) shouldAccept(r clusterstate.Record, version string) bool {
	if !slices.Contains([]string{target, otherTarget, farTarget}, version) {
		return false
	}
	stations := append(slices.Clone(m.hopsTo(version)), version)
	reached, behind, past, far := 0, 0, 0, 0
	for _, n := range m.planned() {
		at := strings.TrimPrefix(n.Version, "v") // all of the drawn versions have one length
		switch {
		case at > version:
			past++
		case n.Manual:
		case at == version:
			reached++
		default:
			behind++
			if at < "1.37" && stations[0] == farTarget {
				far++
			}
		}
	}
	switch {
	case r.State == clusterstate.Running:
		return behind > 0 && past == 0 && far == 0
	case len(m.machinesDown()) > 0:
		return false
	case r.Target != "":
		return slices.Contains(stations, r.Target)
	case len(stations) > 1: // without a record the hop that was on its way is guessed; plan's tests have the cases
		return m.wouldAccept(version) == nil
	}
	return reached > 0 && (behind > 0 || r.Version != "") && r.Version != version
}
