package etcd

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/etcd/etcdtest"
)

func TestCheckMembers(t *testing.T) {
	two := []string{"cp1", "cp2"}
	for _, c := range []struct {
		name    string
		members []Member
		except  string
		want    []string
	}{
		{"whole", []Member{{Name: "cp1"}, {Name: "cp2"}}, "", nil},
		{"sick", []Member{{Name: "cp1"}, {Name: "cp2", HealthError: "no answer within 3s"}}, "cp1", []string{"etcd member cp2 is not healthy: no answer within 3s"}},
		{"the one to be upgraded is sick", []Member{{Name: "cp1"}, {Name: "cp2", HealthError: "no answer"}}, "cp2", nil},
		{"the one to be upgraded has left", []Member{{Name: "cp1"}}, "cp2", nil},
		{"missing", []Member{{Name: "cp1"}}, "", []string{"control plane cp2 has no etcd member"}},
		{"learner", []Member{{Name: "cp1"}, {Name: "cp2", Learner: true}}, "", []string{"etcd member cp2 is still a learner"}},
		{
			"left behind", []Member{{Name: "cp1"}, {Name: "cp2"}, {Name: "cp3", HealthError: "no answer"}}, "",
			[]string{"etcd has a member cp3, which is no control plane of the cluster: remove it (etcdctl member remove), it counts for the quorum"},
		},
		{"never started", []Member{{Name: "cp1"}, {Name: "cp2"}, {}}, "", []string{"etcd has a member that has never started: remove it (etcdctl member remove)"}},
	} {
		require.Equal(t, c.want, CheckMembers(c.members, two, c.except), c.name)
	}
}

// startCluster starts real members and returns how to connect to them.
func startCluster(t *testing.T, names ...string) (*etcdtest.Cluster, ClientConfig) {
	t.Helper()
	r := etcdtest.Start(t, names...)
	config := ClientConfig{Address: r.Address, CA: r.CA, Certificate: r.Certificate, Key: r.Key}
	config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	require.Eventually(t, func() bool {
		members, err := ListMembers(t.Context(), config)
		return err == nil && len(CheckMembers(members, names, "")) == 0
	}, time.Minute, 100*time.Millisecond)
	return r, config
}

func TestListMembersOfARealEtcd(t *testing.T) {
	names := []string{"cp1", "cp2", "cp3"}
	r, config := startCluster(t, names...)

	members, err := ListMembers(t.Context(), config)
	require.NoError(t, err)
	require.ElementsMatch(t, []Member{{Name: "cp1"}, {Name: "cp2"}, {Name: "cp3"}}, members)

	r.Stop(t, "cp3")
	members, err = ListMembers(t.Context(), config)
	require.NoError(t, err)
	faults := CheckMembers(members, names, "cp1")
	require.Len(t, faults, 1)
	require.Contains(t, faults[0], "etcd member cp3 is not healthy: ")
	require.Empty(t, CheckMembers(members, names, "cp3"), "the one to be upgraded may be down")
	require.Equal(t, []string{
		"etcd has a member cp3, which is no control plane of the cluster: remove it (etcdctl member remove), it counts for the quorum",
	}, CheckMembers(members, names[:2], ""))

	r.Stop(t, "cp2")
	members, err = ListMembers(t.Context(), config)
	require.True(t, err != nil || len(CheckMembers(members, names, "")) == 3, "without a quorum none is healthy: %v %v", members, err)
}

func TestRemoveMemberOfARealEtcd(t *testing.T) {
	r, config := startCluster(t, "cp1", "cp2", "cp3")
	r.Stop(t, "cp3")
	for _, want := range []bool{true, false} { // the answer to the first may be lost
		removed, err := RemoveMember(t.Context(), config, "cp3")
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
	members, err := ListMembers(t.Context(), config)
	require.NoError(t, err)
	require.ElementsMatch(t, []Member{{Name: "cp1"}, {Name: "cp2"}}, members)

	require.Eventually(t, func() bool { // etcd calls a member healthy that has been connected for 5 s
		removed, err := RemoveMember(t.Context(), config, "cp2")
		return err == nil && removed
	}, time.Minute, time.Second, "one that is alive")

	r, config = startCluster(t, "cp1", "cp2")
	r.Stop(t, "cp2")
	_, err = RemoveMember(t.Context(), config, "cp2")
	require.Error(t, err, "there is no majority any more")
}

func TestErrorsHoldNoKey(t *testing.T) {
	a := ClientConfig{CA: []byte("no CA"), Certificate: []byte("no certificate"), Key: []byte("-----BEGIN PRIVATE KEY-----\nsecret")}
	_, err := ListMembers(t.Context(), a)
	require.ErrorContains(t, err, "cannot be used with its key")
	require.NotContains(t, fmt.Sprintf("%+v", err), "secret")
}
