package nodessh

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ebb/internal/etcd"
	"ebb/internal/etcd/etcdtest"
)

const noForwarding = "AllowTcpForwarding no"

// withPrograms is a line of sshd_config: the only programs of a node, those that a shell
// always has and some more. The test is skipped where this machine does not have them.
func withPrograms(t *testing.T, names ...string) string {
	t.Helper()
	bin := t.TempDir()
	for _, name := range append([]string{"sh", "cat", "kill"}, names...) {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is not installed", name)
		}
		require.NoError(t, os.Symlink(program, filepath.Join(bin, name)))
	}
	return "SetEnv PATH=" + bin
}

func TestMembersOfEtcdAreListedWhereNothingIsForwarded(t *testing.T) {
	r := etcdtest.Start(t, "cp1", "cp2", "cp3")
	c := mustDial(t, startOpenSSH(t, noForwarding).target(t))
	_, err := c.conn.DialContext(t.Context(), "tcp", r.Address)
	var refused *ssh.OpenChannelError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, ssh.Prohibited, refused.Reason)

	require.Eventually(t, func() bool {
		members, err := etcd.ListMembers(t.Context(), etcd.ClientConfig{Dial: c.Dial, Address: r.Address, CA: r.CA, Certificate: r.Certificate, Key: r.Key})
		return err == nil && len(members) == 3 && len(etcd.CheckMembers(members, []string{"cp1", "cp2", "cp3"}, "")) == 0
	}, time.Minute, 100*time.Millisecond)
}

// echo answers each connection with what it says, and tells when the other side has closed.
func echo(t *testing.T) (address string, closed <-chan struct{}) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	ends := make(chan struct{}, 8)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
				ends <- struct{}{}
			}()
		}
	}()
	return listener.Addr().String(), ends
}

func TestDialByEachProgramOfTheNode(t *testing.T) {
	sent := strings.Repeat("\x00\xff\r\n~. bytes of TLS\x1a", 20000)
	for _, name := range []string{"bash", "socat", "nc"} {
		t.Run(name, func(t *testing.T) {
			address, closed := echo(t)
			c := mustDial(t, startOpenSSH(t, noForwarding, withPrograms(t, name)).target(t))
			conn, err := c.Dial(t.Context(), address)
			require.NoError(t, err)
			go func() { _, _ = io.WriteString(conn, sent) }() // the reader sees what is missing
			got := make([]byte, len(sent))
			_, err = io.ReadFull(conn, got)
			require.NoError(t, err)
			require.Equal(t, sent, string(got))

			require.NoError(t, conn.Close())
			require.NoError(t, conn.Close(), "it may be repeated")
			select {
			case <-closed:
			case <-time.After(time.Minute):
				t.Fatal("the connection on the node stays open")
			}
		})
	}
}

func TestDialTellsWhyItFailedOnTheNode(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		c := mustDial(t, startOpenSSH(t, noForwarding, withPrograms(t, "bash")).target(t))
		_, err := c.Dial(t.Context(), freeAddress(t))
		var lost *TransportError
		require.ErrorAs(t, err, &lost)
		require.ErrorContains(t, err, "the SSH server forwards no connections, and a command in its place failed")
		require.ErrorContains(t, err, "Connection refused")
	})
	t.Run("no program", func(t *testing.T) {
		c := mustDial(t, startOpenSSH(t, noForwarding, withPrograms(t)).target(t))
		_, err := c.Dial(t.Context(), freeAddress(t))
		require.ErrorContains(t, err, "neither bash nor socat nor nc is on this node")
	})
	t.Run("the context ends", func(t *testing.T) {
		c := mustDial(t, startOpenSSH(t, noForwarding).target(t))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.relay(ctx, freeAddress(t))
		require.ErrorIs(t, err, context.Canceled)
	})
}

// What etcd says of its members is put on a command line.
func TestRelayToAnAddressOnly(t *testing.T) {
	for _, address := range []string{"127.0.0.1:2379", "[fd00::4]:2379", "etcd-0.example.org:2379"} {
		_, err := relayTo(address)
		require.NoError(t, err, address)
	}
	for _, address := range []string{"", "cp1", "cp1:", "cp1:0", "cp1:https", "cp1:70000", "-e:1", "$(reboot):1", "a b:1", "a,exec=sh:1", "a'b:1", "[fd00::4%eth0,x]:1"} {
		_, err := relayTo(address)
		require.Error(t, err, address)
	}
}
