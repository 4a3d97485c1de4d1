package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// ErrHeld is in the chain of every error that says another operation has the cluster.
var ErrHeld = errors.New("the cluster is held by another operation")

// ErrLost is returned by Finish when the operation does not hold the cluster
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
	Engine    string
	To        State
	// Accept decides on the record that the claim would replace, and says which
	// upgrade target to record; empty leaves the recorded one as it is. Nil accepts.
	Accept func(Record) (target string, err error)
	// Dead tells whether the operation that holds the cluster is over.
	Dead func(ctx context.Context, holder Record) (bool, error)
}

// Claimed is what an operation got with the cluster.
type Claimed struct {
	From      State  // the state the cluster was in, to go back to on a rollback
	TakenOver string // dead holders whose cordons have to be taken back, see Record
	Target    string // the upgrade target that is recorded now
}

// Get reads the record of the cluster.
func (s *Store) Get(ctx context.Context) (Record, error) {
	lease, err := s.get(ctx)
	if err != nil {
		return Record{}, err
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
		if record.Holder == c.Operation {
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
			return Claimed{}, fmt.Errorf("write lease %s/%s: %w", Namespace, LeaseName, err)
		}
	}
}

// decide is the claim's effect on a record: the record to write, or a refusal.
func decide(ctx context.Context, record Record, c Claim) (Claimed, Record, error) {
	if record.Holder != "" && c.To == Recovering && record.State != Recovering {
		return Claimed{}, Record{}, fmt.Errorf("%w: %s (state %s)", ErrHeld, record.Holder, record.State) // dead or not, that is for an operation
	}
	if record.Holder != "" {
		dead, err := c.Dead(ctx, record)
		if err != nil {
			return Claimed{}, Record{}, err
		}
		if !dead && record.State == Recovering && c.To != Recovering {
			return Claimed{}, Record{}, fmt.Errorf("the cluster is being looked at (%s), which takes a moment", record.Holder) // worth trying again
		}
		if !dead {
			return Claimed{}, Record{}, fmt.Errorf("%w: %s (state %s); wait for it (ebb watch %s) or cancel it (ebb cancel %s)",
				ErrHeld, record.Holder, record.State, record.Holder, record.Holder)
		}
		if record.State != Recovering { // which cordons nothing
			record.TakenOver = joinNames(record.TakenOver, record.Holder)
		}
		record.State, record.Holder = interrupted(record), ""
	}
	target := ""
	if c.Accept != nil {
		var err error
		if target, err = c.Accept(record); err != nil {
			return Claimed{}, Record{}, err
		}
	}
	if err := CheckTransition(record.State, c.To); err != nil {
		return Claimed{}, Record{}, err
	}
	next := record
	next.Holder, next.Engine, next.From, next.State = c.Operation, c.Engine, record.State, c.To
	if c.To != Recovering { // which may end in Alert for the same reason as before
		next.Message = ""
	}
	if target != "" {
		next.Target = target
	}
	return Claimed{From: record.State, TakenOver: record.TakenOver, Target: next.Target}, next, nil
}

// Advance moves the upgrade that holds the cluster on to its next target: every
// node is at version. It is idempotent, and returns ErrLost when the operation
// does not have the cluster.
func (s *Store) Advance(ctx context.Context, operation, version, target string) error {
	return s.edit(ctx, operation, func(r *Record) { r.Version, r.Target = version, target })
}

// Cleaned notes that nothing is left of the dead operations named, in a cluster
// that operation has. It is idempotent, and returns ErrLost when the operation
// does not have the cluster.
func (s *Store) Cleaned(ctx context.Context, operation, takenOver string) error {
	return s.edit(ctx, operation, func(r *Record) { r.TakenOver = withoutNames(r.TakenOver, takenOver) })
}

// edit changes the record of a cluster that an operation has.
func (s *Store) edit(ctx context.Context, operation string, change func(*Record)) error {
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
	To        State  // empty = the state the cluster was claimed from
	Message   string // why, for whoever finds the cluster in Alert
	Version   string // the version every node is at after an upgrade; empty = as before
}

// Finish gives the cluster back in the state To. It is idempotent, and returns
// ErrLost when the operation never had, or no longer has, the cluster. The
// upgrade target stays while the cluster is in Alert and is dropped when it is
// Running. Dead operations that were not cleaned up after stay noted, for the next one.
func (s *Store) Finish(ctx context.Context, o Outcome) (State, error) {
	for {
		lease, err := s.get(ctx)
		if err != nil {
			return "", err
		}
		record := decode(lease)
		if record.Last == o.Operation {
			return record.State, nil // the answer to an earlier call was lost
		}
		if record.Holder != o.Operation {
			return "", fmt.Errorf("%s: %w (holder %q)", o.Operation, ErrLost, record.Holder)
		}
		to := o.To
		if to == "" {
			to = record.From
		}
		if err := CheckTransition(record.State, to); err != nil {
			return "", err
		}
		next := Record{State: to, Target: record.Target, Version: record.Version, Message: o.Message, Last: o.Operation, TakenOver: record.TakenOver}
		if record.State == Recovering { // the operation that went wrong stays the last one
			next.Last = record.Last
			if to == Alert {
				next.Message = record.Message
			}
		}
		if o.Version != "" {
			next.Version = o.Version
		}
		if to == Running {
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
	lease, err := s.client.CoordinationV1().Leases(Namespace).Get(ctx, LeaseName, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordination.Lease{ObjectMeta: meta.ObjectMeta{Namespace: Namespace, Name: LeaseName}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read lease %s/%s: %w", Namespace, LeaseName, err)
	}
	return lease, nil
}

// put writes the lease; its resourceVersion makes the write conditional on what was read.
func (s *Store) put(ctx context.Context, lease *coordination.Lease) error {
	leases := s.client.CoordinationV1().Leases(Namespace)
	if lease.ResourceVersion != "" {
		_, err := leases.Update(ctx, lease, meta.UpdateOptions{})
		return err
	}
	_, err := leases.Create(ctx, lease, meta.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: Namespace}}
	if _, err := s.client.CoreV1().Namespaces().Create(ctx, ns, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	_, err = leases.Create(ctx, lease, meta.CreateOptions{})
	return err
}

func decode(lease *coordination.Lease) Record {
	a := lease.Annotations
	r := Record{
		State: State(a[annotationState]), From: State(a[annotationFrom]), Holder: ptr.Deref(lease.Spec.HolderIdentity, ""),
		Target: a[annotationTarget], Version: a[annotationVersion], Message: a[annotationMessage], Engine: a[annotationEngine],
		TakenOver: a[annotationTakenOver], Last: a[annotationLast],
	}
	if r.State == "" {
		r.State = Running
	}
	return r
}

func encode(lease *coordination.Lease, r Record) {
	lease.Spec.HolderIdentity = nil
	if r.Holder != "" {
		lease.Spec.HolderIdentity = &r.Holder
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	for key, value := range map[string]string{
		annotationState: string(r.State), annotationFrom: string(r.From), annotationTarget: r.Target,
		annotationVersion: r.Version, annotationMessage: r.Message, annotationEngine: r.Engine,
		annotationTakenOver: r.TakenOver, annotationLast: r.Last,
	} {
		if value == "" {
			delete(lease.Annotations, key)
			continue
		}
		lease.Annotations[key] = value
	}
}
