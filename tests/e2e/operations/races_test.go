package operations

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
	"ebb/internal/version"
)

// rounds is how often a race is run on the real API server.
const rounds = 200

// startRounds is how often two operations are started at once through the
// engine; EBB_RACES sets another number.
func startRounds(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv("EBB_RACES")
	if !ok {
		return 10
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "EBB_RACES")
	return n
}

func lock() *lease.Store {
	return lease.NewStore(shared.Sandbox.Client(), time.Now)
}

func claimOf(id string, to clusterstate.State, target version.Version) lease.Claim {
	return lease.Claim{
		Operation: id, Engine: "race", To: to,
		Accept: func(r clusterstate.Record) (version.Version, error) {
			if to == clusterstate.Recovering && r.State != clusterstate.Alert {
				return "", errNotInAlert
			}
			return target, nil
		},
		Dead: func(context.Context, clusterstate.Record) (bool, error) { return false, nil },
	}
}

var errNotInAlert = errors.New("not in Alert")

// atOnce runs functions at the same moment and waits for all of them.
func atOnce(run ...func()) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for _, f := range run {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			f()
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

func TestTwoClaimsRaceForOneCluster(t *testing.T) {
	alone(t)
	for round := range rounds {
		ids := []string{fmt.Sprintf("race-a-%d", round), fmt.Sprintf("race-b-%d", round)}
		errs := make([]error, len(ids))
		atOnce(
			func() {
				_, errs[0] = lock().Acquire(t.Context(), claimOf(ids[0], clusterstate.Draining, ""))
			},
			func() { _, errs[1] = lock().Acquire(t.Context(), claimOf(ids[1], clusterstate.Scaling, "")) },
		)
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		require.NoError(t, errs[winner], "round %d: one wins", round)
		require.ErrorIs(t, errs[1-winner], lease.ErrHeld, "round %d: the other does not", round)
		record, err := lock().Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, ids[winner], record.Holder)
		_, err = lock().Release(t.Context(), lease.Outcome{Operation: ids[winner]})
		require.NoError(t, err)
	}
	untouched(t)
}

// The reconciler and the retry of an upgrade go for a cluster in Alert at once.
// Every version of the Lease is looked at: nobody but the holder ever changes it.
func TestReconcilerAndRetryRace(t *testing.T) {
	const target = "1.99.1"
	alone(t)
	seen := leases(t)
	upgrades, recoveries := 0, 0
	for round := range rounds {
		inAlert(t, fmt.Sprintf("race-fail-%d", round), target)
		up, look := fmt.Sprintf("race-up-%d", round), fmt.Sprintf("race-look-%d", round)
		var upErr, lookErr error
		atOnce(
			func() { upErr = retryUpgrade(t.Context(), up, target) },
			func() { lookErr = recoverCluster(t.Context(), look) },
		)
		require.NoError(t, upErr, "round %d: a retry is never lost to the reconciler", round)
		upgrades++
		if lookErr == nil {
			recoveries++
		} else {
			require.True(t, errors.Is(lookErr, lease.ErrHeld) || errors.Is(lookErr, errNotInAlert), "round %d: %v", round, lookErr)
		}
		record, err := lock().Get(t.Context())
		require.NoError(t, err)
		require.Contains(t, []clusterstate.State{clusterstate.Running, clusterstate.Alert}, record.State)
		require.Empty(t, record.Holder)
	}
	t.Logf("%d retries got the cluster, %d of them after a recovery", upgrades, recoveries)
	for id := range seen() {
		t.Errorf("the lease was taken from %s by somebody else", id)
	}
	settle(t)
	untouched(t)
}

// inAlert leaves the cluster in Alert as a failed upgrade does.
func inAlert(t *testing.T, id string, target version.Version) {
	t.Helper()
	_, err := lock().Acquire(t.Context(), claimOf(id, clusterstate.Upgrading, target))
	require.NoError(t, err)
	_, err = lock().Release(t.Context(), lease.Outcome{Operation: id, To: clusterstate.Alert})
	require.NoError(t, err)
}

// retryUpgrade claims as the activity does, which is repeated while a recovery is
// under way, and fails again.
func retryUpgrade(ctx context.Context, id string, target version.Version) error {
	for {
		_, err := lock().Acquire(ctx, claimOf(id, clusterstate.Upgrading, target))
		if err == nil {
			break
		}
		if errors.Is(err, lease.ErrHeld) || ctx.Err() != nil {
			return err
		}
	}
	_, err := lock().Release(ctx, lease.Outcome{Operation: id, To: clusterstate.Alert})
	return err
}

func recoverCluster(ctx context.Context, id string) error {
	if _, err := lock().Acquire(ctx, claimOf(id, clusterstate.Recovering, "")); err != nil {
		return err
	}
	_, err := lock().Release(ctx, lease.Outcome{Operation: id, To: clusterstate.Running})
	return err
}

// settle brings the cluster back to Running.
func settle(t *testing.T) {
	t.Helper()
	if state(t) == clusterstate.Alert {
		require.NoError(t, recoverCluster(context.WithoutCancel(t.Context()), "race-settle")) // also when the test is over
	}
}

// leases watches the lease; the returned function lists the holders from whom it
// was taken without their own doing.
func leases(t *testing.T) (robbed func() map[string]bool) {
	t.Helper()
	api := shared.Sandbox.Client().CoordinationV1().Leases(clusterstate.Namespace)
	options := meta.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", clusterstate.LeaseName).String()}
	list, err := api.List(t.Context(), options)
	require.NoError(t, err)
	options.ResourceVersion = list.ResourceVersion
	w, err := api.Watch(t.Context(), options)
	require.NoError(t, err)
	victims, done := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(done)
		holder := ""
		for event := range w.ResultChan() {
			lease, ok := event.Object.(*coordination.Lease)
			if !ok {
				return
			}
			now := ""
			if lease.Spec.HolderIdentity != nil {
				now = *lease.Spec.HolderIdentity
			}
			if holder != "" && now != "" && now != holder {
				victims[holder] = true
			}
			holder = now
		}
	}()
	return func() map[string]bool {
		w.Stop()
		<-done
		return victims
	}
}

// Two operations are started at the same moment, again and again: one has the
// cluster, the other is refused and names it.
func TestTwoStartersRaceForOneCluster(t *testing.T) {
	forbid(t) // whoever gets the cluster keeps it
	node := webHosts(t)[0]
	for round := range startRounds(t) {
		ids := []string{fmt.Sprintf("start-a-%d", round), fmt.Sprintf("start-b-%d", round)}
		ends := make([]ops.Operation, len(ids))
		atOnce(func() { ends[0] = startAndLook(t, ids[0], node) }, func() { ends[1] = startAndLook(t, ids[1], node) })
		winner := 0
		if ends[0].State.Over() {
			winner = 1
		}
		require.Equal(t, ops.Running, ends[winner].State, "round %d: one wins: %s", round, text(ends[winner]))
		require.Equal(t, ops.Refused, ends[1-winner].State, "round %d: the other does not: %s", round, text(ends[1-winner]))
		require.Contains(t, ends[1-winner].Message, ids[winner])
		require.NoError(t, shared.Ops.Cancel(t.Context(), ids[winner]))
		require.True(t, finish(t, ids[winner]).RolledBack)
	}
	untouched(t)
}

// startAndLook starts a drain and returns it when it is refused or has cordoned its node.
func startAndLook(t *testing.T, id, node string) (last ops.Operation) {
	begin(t, ops.Request{ID: id, Kind: operation.KindDrain, Nodes: []string{node}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := testbed.Poll(ctx, func() (bool, error) {
		var err error
		last, err = shared.Ops.Get(ctx, id)
		return last.State.Over() || phase(last, node) == operation.PhaseDraining, err
	})
	if err != nil {
		t.Error(err)
	}
	return last
}
