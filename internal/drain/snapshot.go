package drain

import (
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/cluster"
)

// facts are what an attempt has learnt so far, apart from the pods.
type facts struct {
	cordon   cordon    // of the node
	api      apiServer // takes requests, or not
	stale    staleness
	inFlight int       // evictions
	reading  bool      // a read is in flight
	emptied  time.Time // a list has shown that every pod has left; zero = not yet
}

// cordon is what is known of the node's cordon. The watch may not show yet what the
// caller has just done; then the API server is asked.
type cordon int

const (
	cordonUnknown cordon = iota // neither has shown the node cordoned yet
	cordonRead                  // the API server has
	cordonShown                 // the watch has
	notCordoned                 // the API server has shown the node without cordon
	nodeNotFound                // the API server knows no such node
)

// snapshot is everything that is known at one time and that decisions are made from: what
// the watch shows, and what has happened in this attempt so far.
type snapshot struct {
	facts
	settings    Settings
	name        string // of the node
	started     time.Time
	deadline    time.Time
	machineDown bool
	ahead       time.Duration // of the clock by which the cluster's objects have their times

	node        *core.Node                    // nil = the watch does not show it
	pods        []pod                         // that have to leave or had to, by name
	workloads   []workload                    // of these pods, by name
	balances    map[types.UID]cluster.Balance // of the matching budgets
	terminating map[string]bool               // namespaces that are being deleted
	neighbours  map[string]neighbourhood      // of the namespaces in which a budget matches a pod
	volumes     []string                      // attached to the node, and no pod on it uses them; only once it is empty
}

// podsRemain reports whether a pod still has to leave.
func (s snapshot) podsRemain() bool {
	return slices.ContainsFunc(s.pods, func(p pod) bool { return !p.left() })
}

// tier returns the tier whose pods are evicted now.
func (s snapshot) tier() int {
	tier := critical
	for _, p := range s.pods {
		if !p.left() {
			tier = min(tier, tierOf(p.Pod))
		}
	}
	return tier
}

// snapshot returns what is known now; before there is a watch, the facts alone.
func (r *run) snapshot(now time.Time) snapshot {
	s := snapshot{
		settings: r.settings, name: r.req.Node, started: r.started, deadline: r.req.Deadline, machineDown: r.req.MachineDown,
		balances: map[types.UID]cluster.Balance{}, terminating: map[string]bool{}, neighbours: map[string]neighbourhood{},
	}
	for _, p := range r.pods {
		s.pods = append(s.pods, *p)
	}
	slices.SortFunc(s.pods, func(a, b pod) int { return byName(a.Pod, b.Pod) })
	for _, w := range r.workloads {
		s.workloads = append(s.workloads, *w)
	}
	slices.SortFunc(s.workloads, func(a, b workload) int { return strings.Compare(a.name, b.name) })
	if r.watch != nil {
		s.node, s.ahead = r.watch.Node(r.req.Node), r.watch.Clock.Ahead()
		r.addBudgets(&s, now)
		if !r.emptied.IsZero() {
			s.volumes = r.unusedVolumes()
		}
	}
	s.facts = r.facts
	return s
}

// addBudgets adds what decides about the evictions of the remaining pods.
func (r *run) addBudgets(s *snapshot, now time.Time) {
	budgets := map[string][]pdb{}
	for i := range s.pods {
		p := &s.pods[i]
		if p.left() {
			continue
		}
		if _, known := budgets[p.Namespace]; !known {
			shown := r.watch.Budgets(p.Namespace)
			r.stale.sawBudgets(shown, now)
			budgets[p.Namespace] = r.selectors.compile(shown)
			s.terminating[p.Namespace] = r.watch.NamespaceTerminating(p.Namespace)
		}
		p.matching = matching(p.Pod, budgets[p.Namespace])
		for _, b := range p.matching {
			if _, known := s.balances[b.UID]; !known {
				s.balances[b.UID] = r.watch.Ledger.Balance(b.key(), now)
			}
			if _, known := s.neighbours[p.Namespace]; !known {
				s.neighbours[p.Namespace] = neighboursIn(r.watch, p.Namespace)
			}
		}
	}
}
