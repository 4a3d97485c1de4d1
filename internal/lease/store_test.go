package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"ebb/internal/clusterstate"
	"ebb/internal/version"

	"github.com/stretchr/testify/require"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func store(t *testing.T) (*Store, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*coordination.Lease).ResourceVersion = "1" // as a real API server does
		return false, nil, nil
	})
	return NewStore(client, time.Now), client
}

func claim(operation string, to clusterstate.State) Claim {
	return Claim{
		Operation: operation, Engine: "engine/default", To: to,
		Dead: func(context.Context, clusterstate.Record) (bool, error) { return false, nil },
	}
}

// upgradeTo accepts an upgrade to 1.37.2.
func upgradeTo(clusterstate.Record) (version.Version, error) { return "1.37.2", nil }

func finish(t *testing.T, s *Store, o Outcome, why ...any) clusterstate.State {
	t.Helper()
	state, err := s.Release(t.Context(), o)
	require.NoError(t, err, why...)
	return state
}

func dead(c Claim) Claim {
	c.Dead = func(context.Context, clusterstate.Record) (bool, error) { return true, nil }
	return c
}

func TestClusterWithoutLeaseIsRunningAndFree(t *testing.T) {
	s, _ := store(t)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Running}, record)
}

func TestAcquireAndRelease(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", clusterstate.Upgrading)
	c.Accept = upgradeTo

	got, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, Claimed{From: clusterstate.Running, Target: "1.37.2"}, got)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Upgrading, Holder: "up-1", From: clusterstate.Running, Target: "1.37.2", Engine: "engine/default"}, record)

	again, err := s.Acquire(t.Context(), c)
	require.NoError(t, err, "the answer to the first may have been lost")
	require.Equal(t, got, again)

	finish(t, s, Outcome{Operation: "up-1", To: clusterstate.Alert, Message: "w2 failed"})
	finish(t, s, Outcome{Operation: "up-1", To: clusterstate.Alert, Message: "w2 failed"}, "the answer may have been lost")
	record, err = s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2", Message: "w2 failed", Last: "up-1"}, record, "the target stays while in Alert")
}

func TestTargetIsDroppedWhenRunning(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", clusterstate.Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "up-1", To: clusterstate.Running, Version: "1.37.2"})
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Running, Version: "1.37.2", Last: "up-1"}, record)
}

func TestSecondOperationIsRefusedAndTheHolderNamed(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("down-1", clusterstate.Scaling))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), claim("up-1", clusterstate.Upgrading))
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, "down-1 (state Scaling)")
}

func TestDeadHolderIsTakenOver(t *testing.T) {
	for _, c := range []struct {
		was  clusterstate.State
		next clusterstate.State
		from clusterstate.State
	}{
		{clusterstate.Upgrading, clusterstate.Upgrading, clusterstate.Alert}, // an upgrade that died part way is to be retried
		{clusterstate.Scaling, clusterstate.Upgrading, clusterstate.Alert},
		{clusterstate.Draining, clusterstate.Scaling, clusterstate.Running}, // a drain leaves nothing half done but its cordons
	} {
		s, _ := store(t)
		_, err := s.Acquire(t.Context(), claim("dead-1", c.was))
		require.NoError(t, err)

		got, err := s.Acquire(t.Context(), dead(claim("next-1", c.next)))
		require.NoError(t, err)
		require.Equal(t, Claimed{From: c.from, TakenOver: "dead-1"}, got)

		again, err := s.Acquire(t.Context(), claim("next-1", c.next))
		require.NoError(t, err)
		require.Equal(t, got, again, "the takeover is not forgotten when the answer is lost")
		_, err = s.Release(t.Context(), Outcome{Operation: "dead-1", To: clusterstate.Running})
		require.ErrorIs(t, err, ErrLost)
	}
}

func TestRollbackGoesBackToWhereItCameFrom(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("down-1", clusterstate.Scaling))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "down-1", To: clusterstate.Alert})
	_, err = s.Acquire(t.Context(), claim("down-2", clusterstate.Scaling))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "down-2"}, "an empty state is the one it came from")
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Alert, record.State)
}

func TestAcceptDecidesOnTheRecordThatIsReplaced(t *testing.T) {
	s, _ := store(t)
	refused := errors.New("not now")
	c := claim("up-1", clusterstate.Upgrading)
	c.Accept = func(r clusterstate.Record) (version.Version, error) {
		require.Equal(t, clusterstate.Running, r.State)
		return "", refused
	}
	_, err := s.Acquire(t.Context(), c)
	require.ErrorIs(t, err, refused)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Empty(t, record.Holder)
}

func TestAcquireDecidesAgainWhenAnotherWriterWasFaster(t *testing.T) {
	s, client := store(t)
	_, err := s.Acquire(t.Context(), claim("old", clusterstate.Draining))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "old"})

	leases := coordination.SchemeGroupVersion.WithResource("leases")
	conflicts := 0
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		// The reactor runs under the client's lock, so the faster writer goes to the tracker.
		lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Namespace: clusterstate.Namespace, Name: clusterstate.LeaseName}}
		encode(lease, clusterstate.Record{State: clusterstate.Scaling, From: clusterstate.Running, Holder: "faster"})
		require.NoError(t, client.Tracker().Update(leases, lease, clusterstate.Namespace))
		return true, nil, apierrors.NewConflict(leases.GroupResource(), clusterstate.LeaseName, errors.New("changed"))
	})
	_, err = s.Acquire(t.Context(), claim("slower", clusterstate.Upgrading))
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, "faster")
}

func TestAdvance(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", clusterstate.Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	for range 2 { // the answer to the first may have been lost
		require.NoError(t, s.Advance(t.Context(), "up-1", "1.37.2", "1.38.1"))
	}
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Upgrading, Holder: "up-1", From: clusterstate.Running, Version: "1.37.2", Target: "1.38.1", Engine: "engine/default"}, record)
	require.ErrorIs(t, s.Advance(t.Context(), "up-2", "1.37.2", "1.38.1"), ErrLost)
}

// inAlert is a cluster whose upgrade to 1.37.2 has failed.
func inAlert(t *testing.T) *Store {
	t.Helper()
	s, _ := store(t)
	c := claim("up-1", clusterstate.Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, clusterstate.Alert, finish(t, s, Outcome{Operation: "up-1", To: clusterstate.Alert, Message: "w2 failed"}))
	return s
}

func TestRecoveryBackToAlertForgetsNothing(t *testing.T) {
	s := inAlert(t)
	before, err := s.Get(t.Context())
	require.NoError(t, err)
	got, err := s.Acquire(t.Context(), claim("look-1", clusterstate.Recovering))
	require.NoError(t, err)
	require.Equal(t, clusterstate.Alert, got.From)
	finish(t, s, Outcome{Operation: "look-1", To: clusterstate.Alert})
	after, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestRecoveryToRunningDropsTheTarget(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", clusterstate.Recovering))
	require.NoError(t, err)
	require.Equal(t, clusterstate.Running, finish(t, s, Outcome{Operation: "look-1", To: clusterstate.Running, Version: "1.37.2"}))
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Running, Version: "1.37.2", Last: "up-1"}, record)
}

func TestOperationMeetsARecovery(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", clusterstate.Recovering))
	require.NoError(t, err)

	_, err = s.Acquire(t.Context(), claim("up-2", clusterstate.Upgrading))
	require.ErrorContains(t, err, "is being looked at (look-1)")
	require.NotErrorIs(t, err, ErrHeld, "it is worth trying again")

	got, err := s.Acquire(t.Context(), dead(claim("up-2", clusterstate.Upgrading)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: clusterstate.Alert, Target: "1.37.2"}, got, "a recovery leaves nothing to clean up")
	_, err = s.Release(t.Context(), Outcome{Operation: "look-1", To: clusterstate.Running})
	require.ErrorIs(t, err, ErrLost, "a recovery never overwrites an operation")
}

func TestRecoveryLeavesAHeldClusterAlone(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("up-1", clusterstate.Upgrading))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), dead(claim("look-1", clusterstate.Recovering)))
	require.ErrorIs(t, err, ErrHeld, "a dead holder's cluster is for the next operation")
}

func TestRecoveryTakesOverFromADeadOne(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", clusterstate.Recovering))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), claim("look-2", clusterstate.Recovering))
	require.Error(t, err, "the first one lives")
	got, err := s.Acquire(t.Context(), dead(claim("look-2", clusterstate.Recovering)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: clusterstate.Alert, Target: "1.37.2"}, got, "a recovery leaves nothing to clean up")
}

func TestDeadOperationsStayNotedUntilTheyAreCleanedUpAfter(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("dead-1", clusterstate.Scaling))
	require.NoError(t, err)
	// One takes its place and cannot clean up; the next dies before it can.
	_, err = s.Acquire(t.Context(), dead(claim("op-2", clusterstate.Draining)))
	require.NoError(t, err)
	_, err = s.Release(t.Context(), Outcome{Operation: "op-2"})
	require.NoError(t, err)
	got, err := s.Acquire(t.Context(), claim("dead-3", clusterstate.Draining))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: clusterstate.Alert, TakenOver: "dead-1"}, got)

	got, err = s.Acquire(t.Context(), dead(claim("op-4", clusterstate.Draining)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: clusterstate.Alert, TakenOver: "dead-1,dead-3"}, got)
	require.ErrorIs(t, s.Cleaned(t.Context(), "op-2", "dead-1"), ErrLost)
	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1"))
	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1"), "it is idempotent")
	again, err := s.Acquire(t.Context(), claim("op-4", clusterstate.Draining))
	require.NoError(t, err)
	require.Equal(t, "dead-3", again.TakenOver)

	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1,dead-3"))
	_, err = s.Release(t.Context(), Outcome{Operation: "op-4"})
	require.NoError(t, err)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, clusterstate.Record{State: clusterstate.Alert, Last: "op-4"}, record)
}

func TestLeaseNamesItsHolder(t *testing.T) {
	s, client := store(t)
	_, err := s.Acquire(t.Context(), claim("up-1", clusterstate.Upgrading))
	require.NoError(t, err)
	lease, err := client.CoordinationV1().Leases(clusterstate.Namespace).Get(t.Context(), clusterstate.LeaseName, meta.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "up-1", *lease.Spec.HolderIdentity)
	require.Equal(t, "Upgrading", lease.Annotations["ebb/state"])
	require.Equal(t, "Running", lease.Annotations["ebb/previous-state"])
}

func TestCheckTransition(t *testing.T) {
	require.NoError(t, clusterstate.CheckTransition(clusterstate.Alert, clusterstate.Upgrading))
	require.NoError(t, clusterstate.CheckTransition(clusterstate.Alert, clusterstate.Recovering))
	require.EqualError(t, clusterstate.CheckTransition(clusterstate.Scaling, clusterstate.Upgrading), "a cluster cannot go from Scaling to Upgrading")
	require.Error(t, clusterstate.CheckTransition(clusterstate.Recovering, clusterstate.Upgrading))
	require.Error(t, clusterstate.CheckTransition(clusterstate.Running, clusterstate.Alert))
}

// run is a claim of one run of an operation's workflow.
func run(id string, c Claim) Claim {
	c.Run = id
	return c
}

func TestOperationIDIsUsedAgain(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), run("1", claim("op-1", clusterstate.Scaling)))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "op-1", Run: "1"})

	_, err = s.Acquire(t.Context(), run("2", claim("op-1", clusterstate.Draining)))
	require.NoError(t, err)
	for range 2 { // the answer to the first may be lost
		require.Equal(t, clusterstate.Running, finish(t, s, Outcome{Operation: "op-1", Run: "2"}))
	}
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Empty(t, record.Holder, "the second released what it had")
}

// The first has died with the lock, and the engine has forgotten it.
func TestOperationIDOfADeadOneIsUsedAgain(t *testing.T) {
	s, _ := store(t)
	first := run("1", claim("op-1", clusterstate.Upgrading))
	first.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), first)
	require.NoError(t, err)

	accepted := false
	second := run("2", claim("op-1", clusterstate.Upgrading))
	second.Accept = func(r clusterstate.Record) (version.Version, error) {
		accepted = r.State == clusterstate.Alert && r.Holder == ""
		return "1.37.2", nil
	}
	claimed, err := s.Acquire(t.Context(), second)
	require.NoError(t, err)
	require.True(t, accepted, "it is decided anew, as after any operation that died")
	require.Equal(t, Claimed{From: clusterstate.Alert, TakenOver: "op-1", Target: "1.37.2"}, claimed)
	again, err := s.Acquire(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, claimed, again)
	_, err = s.Release(t.Context(), Outcome{Operation: "op-1", Run: "1"})
	require.ErrorIs(t, err, ErrLost)

	elsewhere := run("3", claim("op-1", clusterstate.Upgrading))
	elsewhere.Engine, elsewhere.Dead = "another/default", func(context.Context, clusterstate.Record) (bool, error) { return false, ErrHeld }
	_, err = s.Acquire(t.Context(), elsewhere)
	require.ErrorIs(t, err, ErrHeld, "an engine with another database cannot tell")
}

func TestLongMessageIsCut(t *testing.T) {
	s, client := store(t)
	_, err := s.Acquire(t.Context(), claim("op-1", clusterstate.Scaling))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "op-1", To: clusterstate.Alert, Message: "removed w1; " + strings.Repeat("é", 200_000)})
	lease, err := client.CoordinationV1().Leases(clusterstate.Namespace).Get(t.Context(), clusterstate.LeaseName, meta.GetOptions{})
	require.NoError(t, err)
	message := lease.Annotations["ebb/message"]
	require.Less(t, len(message), 9<<10)
	require.True(t, utf8.ValidString(message))
	require.True(t, strings.HasPrefix(message, "removed w1; é"))
	require.Contains(t, message, "(cut: it has 400012 bytes)")
}
