// Package etcdtest is real etcd clusters for tests.
package etcdtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
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

// Cluster is an etcd cluster of real members on loopback.
type Cluster struct {
	Address              string            // of the first member's client port
	Addresses            map[string]string // of each member's client port
	CA, Certificate, Key []byte            // PEM, of a client

	members map[string]*exec.Cmd
}

// Stop kills a member.
func (r *Cluster) Stop(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, r.members[name].Process.Kill())
	_ = r.members[name].Wait() // killed
}

// Start starts a cluster of members with these names, which end with the test. They may not
// yet have elected a leader. Without etcd in EBB_BIN the test is skipped.
func Start(t *testing.T, names ...string) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts an etcd")
	}
	binary := filepath.Join(os.Getenv("EBB_BIN"), "etcd")
	if _, err := os.Stat(binary); err != nil { // #nosec G703 -- whoever sets EBB_BIN may run what is in it
		t.Skip("needs etcd in EBB_BIN: run make test")
	}
	dir := t.TempDir()
	r := &Cluster{members: map[string]*exec.Cmd{}, Addresses: map[string]string{}}
	r.certify(t, dir)
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
		cmd := exec.CommandContext(context.Background(), binary, "--name="+name, "--data-dir="+file(name), "--log-level=error", // #nosec G204 G702 -- our own etcd
			"--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i],
			"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(initial, ","),
			"--client-cert-auth", "--trusted-ca-file="+file("ca.crt"), "--cert-file="+file("pair.crt"), "--key-file="+file("pair.key"),
			"--peer-client-cert-auth", "--peer-trusted-ca-file="+file("ca.crt"), "--peer-cert-file="+file("pair.crt"), "--peer-key-file="+file("pair.key"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, cmd.Start())
		r.members[name], r.Addresses[name] = cmd, strings.TrimPrefix(clients[i], "https://")
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	r.Address = r.Addresses[names[0]]
	return r
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// certify issues the certificates of members and clients, into a folder and the cluster.
func (r *Cluster) certify(t *testing.T, dir string) {
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
	r.CA, r.Certificate, r.Key = caPEM, pair, pairKey
	for name, body := range map[string][]byte{"ca.crt": caPEM, "pair.crt": pair, "pair.key": pairKey} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), body, 0o600))
	}
}
