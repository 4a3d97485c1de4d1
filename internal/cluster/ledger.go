package cluster

import (
	"math/rand/v2"
	"sync"
	"time"

	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodRef identifies one pod, not another of the same name.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
}

// Ledger counts the evictions in flight of all drains in this process against the
// disruptionsAllowed of their budgets. A budget's status shows an eviction only
// later; without the ledger, drains of several nodes would all spend the same one.
type Ledger struct {
	budget      func(types.NamespacedName) *policy.PodDisruptionBudget // as the watch shows it now; nil = it does not
	terminating func(PodRef) bool                                      // reports whether the watch shows the pod terminating or gone
	changed     func()                                                 // notifies the drains that may wait for an allowance

	mu       sync.Mutex
	accounts map[types.NamespacedName]*account
}

// Balance is what the drains of this process know of a budget beyond its status.
type Balance struct {
	Available int       // evictions that may be sent: what the status allows less what is reserved; may be negative
	Probes    int       // evictions sent although none was available, since the last change of the budget that the watch has shown
	Since     time.Time // of that change, or of the last reservation after it
	Jitter    float64   // in [0, 1), drawn at that time
}

// account is what is known of one budget beyond its status.
type account struct {
	version        string                     // newest resourceVersion seen
	reserved       map[types.UID]*reservation // evictions that the status may not show yet
	refusedVersion string                     // resourceVersion at which the API server refused an eviction that the status allowed
	probes         int
	since          time.Time
	jitter         float64
}

type reservation struct {
	pod       PodRef
	version   string // resourceVersion of the budget when it was made
	committed bool
}

func newLedger(budget func(types.NamespacedName) *policy.PodDisruptionBudget, terminating func(PodRef) bool, changed func()) *Ledger {
	return &Ledger{budget: budget, terminating: terminating, changed: changed, accounts: map[types.NamespacedName]*account{}}
}

// Balance returns what is known of a budget at the time now; that of a budget that the
// watch does not show is zero.
func (l *Ledger) Balance(name types.NamespacedName, now time.Time) Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, budget := l.account(name, now)
	if budget == nil {
		return Balance{}
	}
	return Balance{Available: l.available(a, budget), Probes: a.probes, Since: a.since, Jitter: a.jitter}
}

// Reserve reserves one eviction of a pod under a budget and reports whether one was
// available. If so, the caller sends the eviction and then calls Commit or Abort.
func (l *Ledger) Reserve(name types.NamespacedName, pod PodRef, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, budget := l.account(name, now)
	if budget == nil || l.available(a, budget) <= 0 {
		return false
	}
	a.reserve(budget, pod, now)
	return true
}

// Probe is Reserve for an eviction that is sent although none is available, because the
// watch may be behind. seen is the balance that the caller has decided on; Probe
// reports false when another drain has reserved one since, or the budget has changed.
func (l *Ledger) Probe(name types.NamespacedName, pod PodRef, seen Balance, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, budget := l.account(name, now)
	if budget == nil || a.probes != seen.Probes || !a.since.Equal(seen.Since) {
		return false
	}
	a.probes++
	a.reserve(budget, pod, now)
	return true
}

// Commit records that the API server accepted the eviction.
func (l *Ledger) Commit(budget types.NamespacedName, pod types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.accounts[budget]; ok && a.reserved[pod] != nil {
		a.reserved[pod].committed = true
		a.refusedVersion = ""
	}
}

// Abort takes the reservation back: the API server did not accept the eviction,
// because the budget does not allow it or (byBudget false) for another reason.
func (l *Ledger) Abort(budget types.NamespacedName, pod types.UID, byBudget bool) {
	l.mu.Lock()
	a, ok := l.accounts[budget]
	if ok && a.reserved[pod] != nil {
		if byBudget {
			a.refusedVersion = a.reserved[pod].version
		}
		delete(a.reserved, pod)
	}
	l.mu.Unlock()
	if ok && !byBudget {
		l.changed()
	}
}

// Forget drops the reservations of pods that no drain waits for any more.
func (l *Ledger) Forget(pods []types.UID) {
	l.mu.Lock()
	for key, a := range l.accounts {
		for _, uid := range pods {
			delete(a.reserved, uid)
		}
		if len(a.reserved) == 0 {
			delete(l.accounts, key)
		}
	}
	l.mu.Unlock()
	l.changed()
}

// account returns a budget as the watch shows it now, and its account, in which it notes
// when the budget has changed. It reads the budget under the lock: a caller with an older
// version would spend what the newer one has counted already.
func (l *Ledger) account(name types.NamespacedName, now time.Time) (*account, *policy.PodDisruptionBudget) {
	budget := l.budget(name)
	if budget == nil {
		return nil, nil
	}
	a, ok := l.accounts[name]
	if !ok {
		a = &account{reserved: map[types.UID]*reservation{}}
		l.accounts[name] = a
	}
	if !ok || a.version != budget.ResourceVersion {
		a.version, a.probes = budget.ResourceVersion, 0
		a.touch(now)
	}
	return a, budget
}

func (a *account) touch(now time.Time) {
	a.since, a.jitter = now, rand.Float64() //nolint:gosec // jitter
}

func (a *account) reserve(budget *policy.PodDisruptionBudget, pod PodRef, now time.Time) {
	a.touch(now)
	a.reserved[pod.UID] = &reservation{pod: pod, version: budget.ResourceVersion}
}

// available returns what the status allows less what has been reserved since.
func (l *Ledger) available(a *account, budget *policy.PodDisruptionBudget) int {
	if budget.Status.ObservedGeneration < budget.Generation || a.refusedVersion == budget.ResourceVersion {
		return 0
	}
	for uid, r := range a.reserved {
		if l.inStatus(r, budget) {
			delete(a.reserved, uid)
		}
	}
	return int(budget.Status.DisruptionsAllowed) - len(a.reserved)
}

// inStatus reports whether the budget's status includes the eviction: the API server
// adds the pod to disruptedPods as it accepts the eviction, and the disruption
// controller removes it once the pod is terminating.
func (l *Ledger) inStatus(r *reservation, budget *policy.PodDisruptionBudget) bool {
	if budget.ResourceVersion == r.version {
		return false
	}
	if _, disrupted := budget.Status.DisruptedPods[r.pod.Name]; disrupted {
		return true
	}
	return r.committed && l.terminating(r.pod)
}
