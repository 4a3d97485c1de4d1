package randomised

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/operation"
	"ebb/internal/policy"
)

// seedReport is what has come of one seed.
type seedReport struct {
	ended      string // kind and end of the first operation
	violations []string
	trace      string
}

// maxTraces is how many failing seeds are printed in full.
const maxTraces = 3

// runSeeds runs the seeds from 1 on all processors, and returns how often the first
// operation has ended how.
func runSeeds(t *testing.T, seeds uint64) map[string]int {
	var (
		next    = make(chan uint64)
		mu      sync.Mutex
		ends    = map[string]int{}
		failed  []uint64
		workers sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := range next {
				report := runSeed(seed)
				mu.Lock()
				ends[report.ended]++
				if len(report.violations) > 0 {
					failed = append(failed, seed)
					t.Errorf("seed %d: %s", seed, strings.Join(report.violations, "\n"))
					if len(failed) <= maxTraces {
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
	workers.Wait()
	require.Empty(t, failed, "seeds that failed: run one with EBB_SEED, and add it to regressions")
	return ends
}

// seedRun is one seed: a scenario, and what is run on it one after another.
type seedRun struct {
	m          *model
	operations []*operationRun
	reconciler []*reconcilerRun
}

// runSeed runs one seed and returns what has come of it. A panic counts as a violation.
func runSeed(seed uint64) (report seedReport) {
	run := &seedRun{m: newModel(drawScenario(seed))}
	defer func() {
		if p := recover(); p != nil {
			run.m.violations = append(run.m.violations, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
		}
		report.violations, report.trace = run.m.violations, run.trace()
	}()
	first := run.operation("op-1", run.m.s.nodeNames)
	report.ended = string(first.kind) + " " + first.end()
	if first.err != nil {
		run.recover()
	}
	return report
}

func (run *seedRun) operation(id string, nodes []string) *operationRun {
	r := newOperationRun(run.m, id)
	run.operations = append(run.operations, r)
	r.execute(nodes)
	return r
}

func (run *seedRun) reconcile(id string) {
	run.reconciler = append(run.reconciler, run.m.runReconciler(id))
}

// recover is what follows after an operation that failed: the reconciler looks at
// the cluster, an operator repairs it, sometimes the reconciler looks again, and
// the same operation is started once more, without faults. It has to go through.
func (run *seedRun) recover() {
	m := run.m
	m.running["op-1"] = false
	run.reconcile("reconcile-1")
	m.running[runningHolder] = false
	m.repairCluster("op-1")
	m.faultsOff, m.settings = true, m.s.withoutDeadlines()
	if m.random("reconciler").chance(50) { // or the operator is faster
		run.reconcile("reconcile-2")
	}
	nodes, possible := m.secondRequest()
	second := run.operation("op-2", nodes)
	if possible && second.err != nil {
		m.violated("secondRunGoesThrough", second.err.Error(), "what failed goes on where it stopped")
	}
}

func (run *seedRun) trace() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s\n", run.m.s.seed, run.m.s)
	for _, r := range run.operations {
		fmt.Fprintf(&b, "%s\nended %s: %v\n", strings.Join(r.trace, "\n"), r.end(), r.err)
	}
	for _, r := range run.reconciler {
		fmt.Fprintln(&b, strings.Join(r.trace, "\n"))
	}
	return b.String() + run.m.String()
}

// secondRequest returns the nodes that the second run is asked for, those that are
// still in the cluster, and whether it can be carried out.
func (m *model) secondRequest() (nodes []string, possible bool) {
	for _, name := range m.s.nodeNames {
		if n := m.nodes[name]; n == nil || !n.deleted {
			nodes = append(nodes, name)
		}
	}
	var err error
	switch m.s.kind {
	case operation.KindUpgrade:
		return nodes, m.specAccepts(afterHolderDied(m.record()), m.s.target)
	case operation.KindScaleDown:
		_, err = policy.SelectScaleDown(m.nodeList(), policy.ScaleDownRequest{Names: nodes, Count: m.s.count, MinWorkers: 1})
	default:
		_, err = policy.Named(m.nodeList(), nodes)
	}
	return nodes, err == nil
}
