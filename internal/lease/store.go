// Package lease is the lock of a managed cluster: it keeps the cluster's record
// on the Lease ebb-system/cluster. Every change is compare-and-set: the state
// that was read is part of the write, so two operations cannot both have the
// cluster, whichever engine or worker they run on.
package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"ebb/internal/clusterstate"
	"ebb/internal/version"
)

// Annotations of the Lease.
const (
	annotationState     = "ebb/state"
	annotationFrom      = "ebb/previous-state" // the state a rollback goes back to
	annotationTarget    = "ebb/upgrade-target"
	annotationVersion   = "ebb/cluster-version" // written when an upgrade is complete
	annotationMessage   = "ebb/message"
	annotationEngine    = "ebb/engine"
	annotationRun       = "ebb/run"            // which run of the holder's workflow has the cluster
	annotationTakenOver = "ebb/taken-over"     // dead holders that are not cleaned up after yet
	annotationLast      = "ebb/last-operation" // the operation that gave the cluster back last
	annotationCleared   = "ebb/cleared"        // who has cleared the cluster last, when and why
)

// maxMessage bounds the message, in bytes: the annotations of an object may have 256 KiB
// together, and a message that the API server refuses would keep the lock.
const maxMessage = 8 << 10

// ErrHeld is in the chain of every error that says another operation has the cluster.
var ErrHeld = errors.New("the cluster is held by another operation")

// ErrLost is returned by Release when the operation does not hold the cluster
// any more; nothing was written.
var ErrLost = errors.New("the operation does not hold the cluster")

// Store reads and writes the Lease of one cluster.
type Store struct {
	client kubernetes.Interface
	now    func() time.Time
}

// NewStore is the store of the cluster that client talks to.
func NewStore(client kubernetes.Interface, now func() time.Time) *Store {
	return &Store{client: client, now: now}
}

// Claim is an operation's request for the cluster.
type Claim struct {
	Operation string
	Run       string // of the operation's workflow; empty = it is not known
	Engine    string
	To        clusterstate.State
	// Accept decides on the record that the claim would replace, and says which
	// upgrade target to record; empty leaves the recorded one as it is. Nil accepts.
	Accept func(clusterstate.Record) (target version.Version, err error)
	// Dead tells whether the operation that holds the cluster is over.
	Dead func(ctx context.Context, holder clusterstate.Record) (bool, error)
}

// Claimed is what an operation got with the cluster.
type Claimed struct {
	From      clusterstate.State // the state the cluster was in, to go back to on a rollback
	TakenOver string             // dead holders whose cordons have to be taken back, see Record
	Target    version.Version    // the upgrade target that is recorded now
}

// Get reads the record of the cluster.
func (s *Store) Get(ctx context.Context) (clusterstate.Record, error) {
	lease, err := s.get(ctx)
	if err != nil {
		return clusterstate.Record{}, err
	}
	return decode(lease), nil
}

// Acquire takes the cluster for an operation. It is idempotent: an operation
// that has the cluster already gets the same answer again. It returns an error
// with ErrHeld when somebody else has it, the error of Accept when that refuses,
// and retries by itself when another writer was faster.
func (s *Store) Acquire(ctx context.Context, c Claim) (Claimed, error) {
	for {
		lease, err := s.get(ctx)
		if err != nil {
			return Claimed{}, err
		}
		record := decode(lease)
		if record.Holder == c.Operation && sameRun(record.Run, c.Run) {
			return Claimed{From: record.From, TakenOver: record.TakenOver, Target: record.Target}, nil
		}
		claimed, next, err := decide(ctx, record, c)
		if err != nil {
			return Claimed{}, err
		}
		encode(lease, next)
		lease.Spec.AcquireTime = ptr.To(meta.NewMicroTime(s.now()))
		err = s.put(ctx, lease)
		if err == nil {
			return claimed, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return Claimed{}, fmt.Errorf("write lease %s/%s: %w", clusterstate.Namespace, clusterstate.LeaseName, err)
		}
	}
}

// sameRun reports whether two runs of one operation's workflow are, as far as is known,
// the same. An operation ID can be used again once the engine has forgotten the first run.
func sameRun(a, b string) bool { return a == b || a == "" || b == "" }

// decide is the claim's effect on a record: the record to write, or a refusal.
func decide(ctx context.Context, record clusterstate.Record, c Claim) (Claimed, clusterstate.Record, error) {
	if record.Holder != "" && c.To == clusterstate.Recovering && record.State != clusterstate.Recovering {
		return Claimed{}, clusterstate.Record{}, fmt.Errorf("%w: %s (state %s)", ErrHeld, record.Holder, record.State) // dead or not, that is for an operation
	}
	if record.Holder != "" {
		// An engine has one workflow of an ID at a time: another run of this one is over.
		dead := record.Holder == c.Operation && record.Engine == c.Engine
		if !dead {
			var err error
			if dead, err = c.Dead(ctx, record); err != nil {
				return Claimed{}, clusterstate.Record{}, err
			}
		}
		if !dead && record.State == clusterstate.Recovering && c.To != clusterstate.Recovering {
			return Claimed{}, clusterstate.Record{}, fmt.Errorf("the cluster is being looked at (%s), which takes a moment", record.Holder) // worth trying again
		}
		if !dead {
			return Claimed{}, clusterstate.Record{}, fmt.Errorf("%w: %s (state %s); wait for it (ebb watch %s) or cancel it (ebb cancel %s)",
				ErrHeld, record.Holder, record.State, record.Holder, record.Holder)
		}
		if record.State != clusterstate.Recovering { // which cordons nothing
			record.TakenOver = clusterstate.AddName(record.TakenOver, record.Holder)
		}
		record.State, record.Holder = record.Interrupted(), ""
	}
	var target version.Version
	if c.Accept != nil {
		var err error
		if target, err = c.Accept(record); err != nil {
			return Claimed{}, clusterstate.Record{}, err
		}
	}
	if err := clusterstate.CheckTransition(record.State, c.To); err != nil {
		return Claimed{}, clusterstate.Record{}, err
	}
	next := record
	next.Holder, next.Run, next.Engine, next.From, next.State = c.Operation, c.Run, c.Engine, record.State, c.To
	if c.To != clusterstate.Recovering { // which may end in Alert for the same reason as before
		next.Message = ""
	}
	if target != "" {
		next.Target = target
	}
	return Claimed{From: record.State, TakenOver: record.TakenOver, Target: next.Target}, next, nil
}

// Advance moves the upgrade that holds the cluster on to its next target: every
// node is at reached. It is idempotent, and returns ErrLost when the operation
// does not have the cluster.
func (s *Store) Advance(ctx context.Context, operation string, reached, target version.Version) error {
	return s.edit(ctx, operation, func(r *clusterstate.Record) { r.Version, r.Target = reached, target })
}

// Cleaned notes that nothing is left of the dead operations named, in a cluster
// that operation has. It is idempotent, and returns ErrLost when the operation
// does not have the cluster.
func (s *Store) Cleaned(ctx context.Context, operation, takenOver string) error {
	return s.edit(ctx, operation, func(r *clusterstate.Record) { r.TakenOver = clusterstate.RemoveNames(r.TakenOver, takenOver) })
}

// edit changes the record of a cluster that an operation has.
func (s *Store) edit(ctx context.Context, operation string, change func(*clusterstate.Record)) error {
	for {
		lease, err := s.get(ctx)
		if err != nil {
			return err
		}
		record := decode(lease)
		if record.Holder != operation {
			return fmt.Errorf("%s: %w (holder %q)", operation, ErrLost, record.Holder)
		}
		was := record
		if change(&record); record == was {
			return nil
		}
		encode(lease, record)
		err = s.put(ctx, lease)
		if err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
}

// Outcome is how an operation leaves the cluster.
type Outcome struct {
	Operation string
	Run       string             // of the operation's workflow; empty = it is not known
	To        clusterstate.State // empty = the state the cluster was claimed from
	Message   string             // why, for whoever finds the cluster in Alert
	Version   version.Version    // the version every node is at after an upgrade; empty = as before
}

// Release gives the cluster back in the state To. It is idempotent, and returns
// ErrLost when the operation never had, or no longer has, the cluster. The
// upgrade target stays while the cluster is in Alert and is dropped when it is
// Running. Dead operations that were not cleaned up after stay noted, for the next one.
func (s *Store) Release(ctx context.Context, o Outcome) (clusterstate.State, error) {
	for {
		lease, err := s.get(ctx)
		if err != nil {
			return "", err
		}
		record := decode(lease)
		held := record.Holder == o.Operation && sameRun(record.Run, o.Run)
		if !held && record.Last == o.Operation {
			return record.State, nil // the answer to an earlier call was lost
		}
		if !held {
			return "", fmt.Errorf("%s: %w (holder %q)", o.Operation, ErrLost, record.Holder)
		}
		to := o.To
		if to == "" {
			to = record.From
		}
		if err := clusterstate.CheckTransition(record.State, to); err != nil {
			return "", err
		}
		next := clusterstate.Record{State: to, Target: record.Target, Version: record.Version, Message: o.Message, Last: o.Operation, TakenOver: record.TakenOver, Cleared: record.Cleared}
		if record.State == clusterstate.Recovering { // the operation that went wrong stays the last one
			next.Last = record.Last
			if to == clusterstate.Alert {
				next.Message = record.Message
			}
		}
		if o.Version != "" {
			next.Version = o.Version
		}
		if to == clusterstate.Running {
			next.Target = ""
		}
		encode(lease, next)
		err = s.put(ctx, lease)
		if err == nil || !apierrors.IsConflict(err) {
			return to, err
		}
	}
}

func (s *Store) get(ctx context.Context) (*coordination.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // the callers loop until their write meets no other
	}
	lease, err := s.client.CoordinationV1().Leases(clusterstate.Namespace).Get(ctx, clusterstate.LeaseName, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordination.Lease{ObjectMeta: meta.ObjectMeta{Namespace: clusterstate.Namespace, Name: clusterstate.LeaseName}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read lease %s/%s: %w", clusterstate.Namespace, clusterstate.LeaseName, err)
	}
	return lease, nil
}

// put writes the lease; its resourceVersion makes the write conditional on what was read.
func (s *Store) put(ctx context.Context, lease *coordination.Lease) error {
	leases := s.client.CoordinationV1().Leases(clusterstate.Namespace)
	if lease.ResourceVersion != "" {
		_, err := leases.Update(ctx, lease, meta.UpdateOptions{})
		return err
	}
	_, err := leases.Create(ctx, lease, meta.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: clusterstate.Namespace}}
	if _, err := s.client.CoreV1().Namespaces().Create(ctx, ns, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", clusterstate.Namespace, err)
	}
	_, err = leases.Create(ctx, lease, meta.CreateOptions{})
	return err
}

func decode(lease *coordination.Lease) clusterstate.Record {
	a := lease.Annotations
	r := clusterstate.Record{
		State: clusterstate.State(a[annotationState]), From: clusterstate.State(a[annotationFrom]), Holder: ptr.Deref(lease.Spec.HolderIdentity, ""),
		Target: version.Of(a[annotationTarget]), Version: version.Of(a[annotationVersion]), Message: a[annotationMessage], Engine: a[annotationEngine],
		Run: a[annotationRun], TakenOver: a[annotationTakenOver], Last: a[annotationLast], Cleared: a[annotationCleared],
	}
	if r.State == "" {
		r.State = clusterstate.Running
	}
	return r
}

func encode(lease *coordination.Lease, r clusterstate.Record) {
	lease.Spec.HolderIdentity = nil
	if r.Holder != "" {
		lease.Spec.HolderIdentity = &r.Holder
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	for key, value := range map[string]string{
		annotationState: string(r.State), annotationFrom: string(r.From), annotationTarget: string(r.Target),
		annotationVersion: string(r.Version), annotationMessage: cut(r.Message), annotationEngine: r.Engine, annotationRun: r.Run,
		annotationTakenOver: r.TakenOver, annotationLast: r.Last, annotationCleared: cut(r.Cleared),
	} {
		if value == "" {
			delete(lease.Annotations, key)
			continue
		}
		lease.Annotations[key] = value
	}
}

// cut returns the beginning of a message, which says what was done, at most maxMessage
// bytes of it.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return fmt.Sprintf("%s… (cut: it has %d bytes)", strings.ToValidUTF8(message[:maxMessage], ""), len(message))
}
