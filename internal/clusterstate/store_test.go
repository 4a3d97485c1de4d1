package clusterstate

import (
	"context"
	"errors"
	"testing"
	"time"

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

func claim(operation string, to State) Claim {
	return Claim{
		Operation: operation, Engine: "engine/default", To: to,
		Dead: func(context.Context, Record) (bool, error) { return false, nil },
	}
}

// upgradeTo accepts an upgrade to 1.37.2.
func upgradeTo(Record) (string, error) { return "1.37.2", nil }

func finish(t *testing.T, s *Store, o Outcome, why ...any) State {
	t.Helper()
	state, err := s.Finish(t.Context(), o)
	require.NoError(t, err, why...)
	return state
}

func dead(c Claim) Claim {
	c.Dead = func(context.Context, Record) (bool, error) { return true, nil }
	return c
}

func TestClusterWithoutLeaseIsRunningAndFree(t *testing.T) {
	s, _ := store(t)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Running}, record)
}

func TestAcquireAndFinish(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", Upgrading)
	c.Accept = upgradeTo

	got, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, Claimed{From: Running, Target: "1.37.2"}, got)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Upgrading, Holder: "up-1", From: Running, Target: "1.37.2", Engine: "engine/default"}, record)

	again, err := s.Acquire(t.Context(), c)
	require.NoError(t, err, "the answer to the first may have been lost")
	require.Equal(t, got, again)

	finish(t, s, Outcome{Operation: "up-1", To: Alert, Message: "w2 failed"})
	finish(t, s, Outcome{Operation: "up-1", To: Alert, Message: "w2 failed"}, "the answer may have been lost")
	record, err = s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Alert, Target: "1.37.2", Message: "w2 failed", Last: "up-1"}, record, "the target stays while in Alert")
}

func TestTargetIsDroppedWhenRunning(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "up-1", To: Running, Version: "1.37.2"})
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Running, Version: "1.37.2", Last: "up-1"}, record)
}

func TestSecondOperationIsRefusedAndTheHolderNamed(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("down-1", Scaling))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), claim("up-1", Upgrading))
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, "down-1 (state Scaling)")
}

func TestDeadHolderIsTakenOver(t *testing.T) {
	for _, c := range []struct {
		was  State
		next State
		from State
	}{
		{Upgrading, Upgrading, Alert}, // an upgrade that died part way is to be retried
		{Scaling, Upgrading, Alert},
		{Draining, Scaling, Running}, // a drain leaves nothing half done but its cordons
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
		_, err = s.Finish(t.Context(), Outcome{Operation: "dead-1", To: Running})
		require.ErrorIs(t, err, ErrLost)
	}
}

func TestRollbackGoesBackToWhereItCameFrom(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("down-1", Scaling))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "down-1", To: Alert})
	_, err = s.Acquire(t.Context(), claim("down-2", Scaling))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "down-2"}, "an empty state is the one it came from")
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Alert, record.State)
}

func TestAcceptDecidesOnTheRecordThatIsReplaced(t *testing.T) {
	s, _ := store(t)
	refused := errors.New("not now")
	c := claim("up-1", Upgrading)
	c.Accept = func(r Record) (string, error) {
		require.Equal(t, Running, r.State)
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
	_, err := s.Acquire(t.Context(), claim("old", Draining))
	require.NoError(t, err)
	finish(t, s, Outcome{Operation: "old"})

	leases := coordination.SchemeGroupVersion.WithResource("leases")
	conflicts := 0
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		// The reactor runs under the client's lock, so the faster writer goes to the tracker.
		lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Namespace: Namespace, Name: LeaseName}}
		encode(lease, Record{State: Scaling, From: Running, Holder: "faster"})
		require.NoError(t, client.Tracker().Update(leases, lease, Namespace))
		return true, nil, apierrors.NewConflict(leases.GroupResource(), LeaseName, errors.New("changed"))
	})
	_, err = s.Acquire(t.Context(), claim("slower", Upgrading))
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, "faster")
}

func TestAdvance(t *testing.T) {
	s, _ := store(t)
	c := claim("up-1", Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	for range 2 { // the answer to the first may have been lost
		require.NoError(t, s.Advance(t.Context(), "up-1", "1.37.2", "1.38.1"))
	}
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Upgrading, Holder: "up-1", From: Running, Version: "1.37.2", Target: "1.38.1", Engine: "engine/default"}, record)
	require.ErrorIs(t, s.Advance(t.Context(), "up-2", "1.37.2", "1.38.1"), ErrLost)
}

// inAlert is a cluster whose upgrade to 1.37.2 has failed.
func inAlert(t *testing.T) *Store {
	t.Helper()
	s, _ := store(t)
	c := claim("up-1", Upgrading)
	c.Accept = upgradeTo
	_, err := s.Acquire(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, Alert, finish(t, s, Outcome{Operation: "up-1", To: Alert, Message: "w2 failed"}))
	return s
}

func TestRecoveryBackToAlertForgetsNothing(t *testing.T) {
	s := inAlert(t)
	before, err := s.Get(t.Context())
	require.NoError(t, err)
	got, err := s.Acquire(t.Context(), claim("look-1", Recovering))
	require.NoError(t, err)
	require.Equal(t, Alert, got.From)
	finish(t, s, Outcome{Operation: "look-1", To: Alert})
	after, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestRecoveryToRunningDropsTheTarget(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", Recovering))
	require.NoError(t, err)
	require.Equal(t, Running, finish(t, s, Outcome{Operation: "look-1", To: Running, Version: "1.37.2"}))
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Running, Version: "1.37.2", Last: "up-1"}, record)
}

func TestOperationMeetsARecovery(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", Recovering))
	require.NoError(t, err)

	_, err = s.Acquire(t.Context(), claim("up-2", Upgrading))
	require.ErrorContains(t, err, "is being looked at (look-1)")
	require.NotErrorIs(t, err, ErrHeld, "it is worth trying again")

	got, err := s.Acquire(t.Context(), dead(claim("up-2", Upgrading)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: Alert, Target: "1.37.2"}, got, "a recovery leaves nothing to clean up")
	_, err = s.Finish(t.Context(), Outcome{Operation: "look-1", To: Running})
	require.ErrorIs(t, err, ErrLost, "a recovery never overwrites an operation")
}

func TestRecoveryLeavesAHeldClusterAlone(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("up-1", Upgrading))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), dead(claim("look-1", Recovering)))
	require.ErrorIs(t, err, ErrHeld, "a dead holder's cluster is for the next operation")
}

func TestRecoveryTakesOverFromADeadOne(t *testing.T) {
	s := inAlert(t)
	_, err := s.Acquire(t.Context(), claim("look-1", Recovering))
	require.NoError(t, err)
	_, err = s.Acquire(t.Context(), claim("look-2", Recovering))
	require.Error(t, err, "the first one lives")
	got, err := s.Acquire(t.Context(), dead(claim("look-2", Recovering)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: Alert, Target: "1.37.2"}, got, "a recovery leaves nothing to clean up")
}

func TestDeadOperationsStayNotedUntilTheyAreCleanedUpAfter(t *testing.T) {
	s, _ := store(t)
	_, err := s.Acquire(t.Context(), claim("dead-1", Scaling))
	require.NoError(t, err)
	// One takes its place and cannot clean up; the next dies before it can.
	_, err = s.Acquire(t.Context(), dead(claim("op-2", Draining)))
	require.NoError(t, err)
	_, err = s.Finish(t.Context(), Outcome{Operation: "op-2"})
	require.NoError(t, err)
	got, err := s.Acquire(t.Context(), claim("dead-3", Draining))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: Alert, TakenOver: "dead-1"}, got)

	got, err = s.Acquire(t.Context(), dead(claim("op-4", Draining)))
	require.NoError(t, err)
	require.Equal(t, Claimed{From: Alert, TakenOver: "dead-1,dead-3"}, got)
	require.ErrorIs(t, s.Cleaned(t.Context(), "op-2", "dead-1"), ErrLost)
	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1"))
	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1"), "it is idempotent")
	again, err := s.Acquire(t.Context(), claim("op-4", Draining))
	require.NoError(t, err)
	require.Equal(t, "dead-3", again.TakenOver)

	require.NoError(t, s.Cleaned(t.Context(), "op-4", "dead-1,dead-3"))
	_, err = s.Finish(t.Context(), Outcome{Operation: "op-4"})
	require.NoError(t, err)
	record, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, Record{State: Alert, Last: "op-4"}, record)
}

func TestLeaseNamesItsHolder(t *testing.T) {
	s, client := store(t)
	_, err := s.Acquire(t.Context(), claim("up-1", Upgrading))
	require.NoError(t, err)
	lease, err := client.CoordinationV1().Leases(Namespace).Get(t.Context(), LeaseName, meta.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "up-1", *lease.Spec.HolderIdentity)
	require.Equal(t, "Upgrading", lease.Annotations["ebb/state"])
	require.Equal(t, "Running", lease.Annotations["ebb/previous-state"])
}

func TestCheckTransition(t *testing.T) {
	require.NoError(t, CheckTransition(Alert, Upgrading))
	require.NoError(t, CheckTransition(Alert, Recovering))
	require.EqualError(t, CheckTransition(Scaling, Upgrading), "a cluster cannot go from Scaling to Upgrading")
	require.Error(t, CheckTransition(Recovering, Upgrading))
	require.Error(t, CheckTransition(Running, Alert))
}
