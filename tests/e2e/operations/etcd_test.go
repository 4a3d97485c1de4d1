package operations

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/etcd"
	"ebb/internal/etcd/etcdtest"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// All that leave are cordoned before the first is removed, which is no fault of the others.
func TestTwoControlPlanesLeaveInOneScaleDown(t *testing.T) {
	bed := ownBedOf(t, 3, 1, nil)
	end := scaleDown(t, bed, ops.Request{ID: "two", Nodes: []string{"cp2", "cp3"}})
	require.Equal(t, ops.Done, end.State, text(end))
	require.NoError(t, bed.Verify(t.Context(), testbed.Removed("cp2", "cp3"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}

// kubeadm reset ends well and leaves the member in etcd: one that is dead by then, and one
// that is alive. Each is removed through another control plane before its machine is destroyed.
func TestControlPlaneThatIsRemovedHasLeftEtcd(t *testing.T) {
	bed := ownBedOf(t, 3, 1, nil)
	names := []string{"cp1", "cp2", "cp3"}
	members := etcdtest.Start(t, names...)
	for _, name := range names {
		require.NoError(t, bed.Sandbox.Machine(name).SetEtcd(sandbox.EtcdMember{
			Address: members.Addresses[name], CA: members.CA, Certificate: members.Certificate, Key: members.Key,
		}))
	}
	through := etcd.ClientConfig{Address: members.Address, CA: members.CA, Certificate: members.Certificate, Key: members.Key}
	through.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	left := func() (names []string) {
		found, err := etcd.ListMembers(t.Context(), through)
		require.NoError(t, err)
		for _, m := range found {
			names = append(names, m.Name)
		}
		return names
	}
	require.Eventually(t, func() bool {
		found, err := etcd.ListMembers(t.Context(), through)
		return err == nil && len(etcd.CheckMembers(found, names, "")) == 0
	}, time.Minute, 100*time.Millisecond)
	members.Stop(t, "cp3")

	end := scaleDown(t, bed, ops.Request{ID: "cp2-of-a-sick-etcd", Nodes: []string{"cp2"}})
	require.Equal(t, ops.Refused, end.State, text(end))
	require.Contains(t, end.Message, "control plane cp2 cannot leave: etcd member cp3 is not healthy")

	end = scaleDown(t, bed, ops.Request{ID: "cp3-dead", Nodes: []string{"cp3"}})
	require.Equal(t, ops.Done, end.State, text(end))
	require.Contains(t, string(end.Result), "control plane cp3 had not left etcd after kubeadm reset")
	require.ElementsMatch(t, []string{"cp1", "cp2"}, left())

	end = scaleDown(t, bed, ops.Request{ID: "cp2-alive", Nodes: []string{"cp2"}})
	require.Equal(t, ops.Done, end.State, text(end))
	require.Equal(t, []string{"cp1"}, left())
	require.NoError(t, bed.Verify(t.Context(), testbed.Removed("cp2", "cp3"), testbed.InState(clusterstate.Running), testbed.OnlyCordoned()))
}
