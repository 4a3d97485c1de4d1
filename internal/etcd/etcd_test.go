package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

// testCluster is an etcd cluster of real members on loopback.
type testCluster struct {
	config  ClientConfig
	members map[string]*exec.Cmd
}

func (r *testCluster) stop(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, r.members[name].Process.Kill())
	_ = r.members[name].Wait() // killed
}

func startCluster(t *testing.T, names ...string) *testCluster {
	t.Helper()
	binary := filepath.Join(os.Getenv("EBB_BIN"), "etcd")
	if _, err := os.Stat(binary); err != nil {
		t.Skip("needs etcd in EBB_BIN: run make test")
	}
	dir := t.TempDir()
	r := &testCluster{members: map[string]*exec.Cmd{}}
	certificates(t, dir, &r.config)
	var peers, clients []string
	for range names {
		peers, clients = append(peers, "https://"+freeAddress(t)), append(clients, "https://"+freeAddress(t))
	}
	var initial []string
	for i, name := range names {
		initial = append(initial, name+"="+peers[i])
	}
	for i, name := range names {
		file := func(name string) string { return filepath.Join(dir, name) }
		cmd := exec.CommandContext(context.Background(), binary, "--name="+name, "--data-dir="+file(name), "--log-level=error",
			"--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i],
			"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(initial, ","),
			"--client-cert-auth", "--trusted-ca-file="+file("ca.crt"), "--cert-file="+file("pair.crt"), "--key-file="+file("pair.key"),
			"--peer-client-cert-auth", "--peer-trusted-ca-file="+file("ca.crt"), "--peer-cert-file="+file("pair.crt"), "--peer-key-file="+file("pair.key"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, cmd.Start())
		r.members[name] = cmd
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	r.config.Address = strings.TrimPrefix(clients[0], "https://")
	r.config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	require.Eventually(t, func() bool {
		members, err := ListMembers(t.Context(), r.config)
		return err == nil && len(CheckMembers(members, names, "")) == 0
	}, time.Minute, 100*time.Millisecond)
	return r
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

func certificates(t *testing.T, dir string, a *ClientConfig) {
	t.Helper()
	issue := func(cn string, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, []byte, []byte) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: parent == nil, BasicConstraintsValid: true,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if parent == nil {
			parent, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
		require.NoError(t, err)
		made, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		raw, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		return made, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	}
	ca, key, caPEM, _ := issue("ca", nil, nil)
	_, _, pair, pairKey := issue("etcd", ca, key)
	a.CA, a.Certificate, a.Key = caPEM, pair, pairKey
	for name, body := range map[string][]byte{"ca.crt": caPEM, "pair.crt": pair, "pair.key": pairKey} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), body, 0o600))
	}
}

func TestListMembersOfARealEtcd(t *testing.T) {
	names := []string{"cp1", "cp2", "cp3"}
	r := startCluster(t, names...)

	members, err := ListMembers(t.Context(), r.config)
	require.NoError(t, err)
	require.ElementsMatch(t, []Member{{Name: "cp1"}, {Name: "cp2"}, {Name: "cp3"}}, members)

	r.stop(t, "cp3")
	members, err = ListMembers(t.Context(), r.config)
	require.NoError(t, err)
	faults := CheckMembers(members, names, "cp1")
	require.Len(t, faults, 1)
	require.Contains(t, faults[0], "etcd member cp3 is not healthy: ")
	require.Empty(t, CheckMembers(members, names, "cp3"), "the one to be upgraded may be down")
	require.Equal(t, []string{
		"etcd has a member cp3, which is no control plane of the cluster: remove it (etcdctl member remove), it counts for the quorum",
	}, CheckMembers(members, names[:2], ""))

	r.stop(t, "cp2")
	members, err = ListMembers(t.Context(), r.config)
	require.True(t, err != nil || len(CheckMembers(members, names, "")) == 3, "without a quorum none is healthy: %v %v", members, err)
}

func TestErrorsHoldNoKey(t *testing.T) {
	a := ClientConfig{CA: []byte("no CA"), Certificate: []byte("no certificate"), Key: []byte("-----BEGIN PRIVATE KEY-----\nsecret")}
	_, err := ListMembers(t.Context(), a)
	require.ErrorContains(t, err, "cannot be used with its key")
	require.NotContains(t, fmt.Sprintf("%+v", err), "secret")
}
