package cluster

import (
	"math/rand/v2"
	"sync"
	"time"

	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Delays before a budget that refuses, as far as the watch knows, is asked all
// the same: a watch may be broken without a sign. Every change of the budget
// that the watch does show starts them again.
const (
	firstProbe = 3 * time.Second
	lastProbe  = 8 * time.Second
	probeSlack = 0.25 // jitter: so much more or less, within 1 to 10 s
)

// PodRef is one pod, not whatever bears its name later.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
}

// Ledger decides whether an eviction may be sent now. It counts the evictions
// that are under way against the budget's status, which the watch shows only
// later, so that drains of several nodes do not all spend the same allowance.
type Ledger struct {
	leaving func(PodRef) bool // the watch shows the pod terminating or gone
	changed func()            // wakes whoever may have been waiting

	mu       sync.Mutex
	accounts map[types.NamespacedName]*account
}

// account is what is known of one budget beyond its status.
type account struct {
	version  string                // newest resourceVersion seen
	taken    map[types.UID]*taking // allowance spent that the status may not show yet
	refused  string                // resourceVersion at which the API server refused although the status allowed it
	probeAt  time.Time
	interval time.Duration
}

type taking struct {
	pod     PodRef
	version string // of the budget when it was taken
	granted bool
}

func newLedger(leaving func(PodRef) bool, changed func()) *Ledger {
	return &Ledger{leaving: leaving, changed: changed, accounts: map[types.NamespacedName]*account{}}
}

// Take asks for one eviction of a pod under a budget. When the answer is yes
// the caller sends it and then calls Granted or Refused; when it is no, again
// is when to ask anew even if no change has been seen.
func (l *Ledger) Take(budget *policy.PodDisruptionBudget, pod PodRef, now time.Time) (ok bool, again time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(budget)
	if a.version != budget.ResourceVersion {
		a.version, a.interval = budget.ResourceVersion, 0
		a.schedule(now)
	}
	if l.available(a, budget) <= 0 {
		if now.Before(a.probeAt) {
			return false, a.probeAt
		}
		a.schedule(now)
	}
	a.taken[pod.UID] = &taking{pod: pod, version: budget.ResourceVersion}
	return true, time.Time{}
}

// Granted says that the API server accepted the eviction.
func (l *Ledger) Granted(budget types.NamespacedName, pod types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.accounts[budget]; ok && a.taken[pod] != nil {
		a.taken[pod].granted = true
		a.refused = ""
	}
}

// Refused says that the API server did not accept the eviction: because the
// budget does not allow it, or (byBudget false) for another reason.
func (l *Ledger) Refused(budget types.NamespacedName, pod types.UID, byBudget bool) {
	l.mu.Lock()
	a, ok := l.accounts[budget]
	if ok && a.taken[pod] != nil {
		if byBudget {
			a.refused = a.taken[pod].version
		}
		delete(a.taken, pod)
	}
	l.mu.Unlock()
	if ok && !byBudget {
		l.changed()
	}
}

// Forget drops what is still counted for pods that nobody waits for any more.
func (l *Ledger) Forget(pods []types.UID) {
	l.mu.Lock()
	for key, a := range l.accounts {
		for _, uid := range pods {
			delete(a.taken, uid)
		}
		if len(a.taken) == 0 {
			delete(l.accounts, key)
		}
	}
	l.mu.Unlock()
	l.changed()
}

func (l *Ledger) account(budget *policy.PodDisruptionBudget) *account {
	key := types.NamespacedName{Namespace: budget.Namespace, Name: budget.Name}
	a, ok := l.accounts[key]
	if !ok {
		a = &account{taken: map[types.UID]*taking{}}
		l.accounts[key] = a
	}
	return a
}

// available is what the status allows less what has been taken since.
func (l *Ledger) available(a *account, budget *policy.PodDisruptionBudget) int {
	if budget.Status.ObservedGeneration < budget.Generation || a.refused == budget.ResourceVersion {
		return 0
	}
	for uid, t := range a.taken {
		if l.shown(t, budget) {
			delete(a.taken, uid)
		}
	}
	return int(budget.Status.DisruptionsAllowed) - len(a.taken)
}

// shown tells whether the budget's status has the eviction in it: the API
// server notes the pod in the status as it grants it, and the disruption
// controller takes it out once the pod is terminating.
func (l *Ledger) shown(t *taking, budget *policy.PodDisruptionBudget) bool {
	if budget.ResourceVersion == t.version {
		return false
	}
	if _, noted := budget.Status.DisruptedPods[t.pod.Name]; noted {
		return true
	}
	return t.granted && l.leaving(t.pod)
}

func (a *account) schedule(now time.Time) {
	a.interval = min(max(a.interval*2, firstProbe), lastProbe)
	spread := 1 + probeSlack*(2*rand.Float64()-1) //nolint:gosec // jitter
	a.probeAt = now.Add(time.Duration(float64(a.interval) * spread))
}
