package randomised

import (
	"context"
	"fmt"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/version"
)

// initLease brings the record of the cluster to r, by the store's own operations.
func (m *model) initLease(r clusterstate.Record) {
	if r.State == clusterstate.Running && r.Version == "" && r.Holder == "" {
		return // as without a Lease
	}
	base := r.State
	if r.Holder != "" {
		base = r.From
	}
	through, target := clusterstate.Scaling, version.Version("")
	if base == clusterstate.Alert && r.Target != "" {
		through, target = clusterstate.Upgrading, r.Target
	}
	m.acquireLease("before-0", through, target)
	if _, err := m.store.Release(context.Background(), lease.Outcome{Operation: "before-0", To: base, Version: r.Version}); err != nil {
		panic(err)
	}
	if r.Holder != "" {
		m.acquireLease(r.Holder, r.State, r.Target)
	}
}

func (m *model) acquireLease(operation string, to clusterstate.State, target version.Version) {
	_, err := m.store.Acquire(context.Background(), lease.Claim{
		Operation: operation, Engine: "engine/default", To: to,
		Accept: func(clusterstate.Record) (version.Version, error) { return target, nil },
	})
	if err != nil {
		panic(err)
	}
}

// record returns what is written on the Lease.
func (m *model) record() clusterstate.Record {
	r, err := m.store.Get(context.Background())
	if err != nil {
		panic(err)
	}
	return r
}

// fakeClientset is a clientset with one Lease. What internal/lease does not use is
// nil and panics.
type fakeClientset struct {
	kubernetes.Interface
	coordinationclient.CoordinationV1Interface
	leases *fakeLeases
}

// CoordinationV1 implements kubernetes.Interface.
func (c *fakeClientset) CoordinationV1() coordinationclient.CoordinationV1Interface { return c }

// Leases implements CoordinationV1Interface.
func (c *fakeClientset) Leases(string) coordinationclient.LeaseInterface { return c.leases }

// fakeLeases holds one Lease as a real API server does: a write has to name the
// resource version that was read.
type fakeLeases struct {
	coordinationclient.LeaseInterface
	lease   *coordination.Lease
	version int
}

var leaseResource = schema.GroupResource{Group: coordination.GroupName, Resource: "leases"}

// Get implements LeaseInterface.
func (f *fakeLeases) Get(_ context.Context, name string, _ meta.GetOptions) (*coordination.Lease, error) {
	if f.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	return f.lease.DeepCopy(), nil
}

// Create implements LeaseInterface.
func (f *fakeLeases) Create(_ context.Context, l *coordination.Lease, _ meta.CreateOptions) (*coordination.Lease, error) {
	if f.lease != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, l.Name)
	}
	return f.write(l), nil
}

// Update implements LeaseInterface.
func (f *fakeLeases) Update(_ context.Context, l *coordination.Lease, _ meta.UpdateOptions) (*coordination.Lease, error) {
	if f.lease == nil || l.ResourceVersion != f.lease.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, l.Name, fmt.Errorf("it has changed"))
	}
	return f.write(l), nil
}

func (f *fakeLeases) write(l *coordination.Lease) *coordination.Lease {
	f.version++
	f.lease = l.DeepCopy()
	f.lease.ResourceVersion = fmt.Sprint(f.version)
	return f.lease.DeepCopy()
}
