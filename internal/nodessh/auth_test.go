package nodessh

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// serveAgent is an ssh-agent with these private keys, named by SSH_AUTH_SOCK.
func serveAgent(t *testing.T, keys ...any) {
	t.Helper()
	keyring := agent.NewKeyring()
	for _, key := range keys {
		require.NoError(t, keyring.Add(agent.AddedKey{PrivateKey: key}))
	}
	listenAgent(t, func(conn net.Conn) { _ = agent.ServeAgent(keyring, conn) }) // ends with the connection
}

func listenAgent(t *testing.T, serve func(net.Conn)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	t.Setenv(agentSocketEnv, socket)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
}

func TestAgentHasTheKeyThatTheFileKeepsEncrypted(t *testing.T) {
	s := startServer(t, serverOptions{})
	pem, err := os.ReadFile(s.userKey)
	require.NoError(t, err)
	raw, err := ssh.ParseRawPrivateKey(pem)
	require.NoError(t, err)
	target := s.target(t)
	target.IdentityFile = keyFile(t, raw, "secret")
	_, err = Dial(t.Context(), target)
	require.ErrorIs(t, err, errKeyEncrypted)

	serveAgent(t, raw)
	target.Agent = true
	mustDial(t, target)
}

func TestAgentWithoutKeysAndAgentThatHangs(t *testing.T) {
	s := startServer(t, serverOptions{})
	target := s.target(t)
	target.IdentityFile, target.Agent = "", true
	serveAgent(t)
	_, err := Dial(t.Context(), target)
	require.ErrorContains(t, err, "set ssh.identityFile, or ssh.agent with a key in it")
	require.True(t, Permanent(err))

	listenAgent(t, func(net.Conn) {})
	target.ConnectTimeout = 200 * time.Millisecond
	_, err = Dial(t.Context(), target)
	require.ErrorContains(t, err, "ssh-agent does not list its keys")
}

func TestUserCertificateThatDoesNotHold(t *testing.T) {
	authority, _ := newKey(t)
	s := startServer(t, serverOptions{userCA: authority.PublicKey()})
	target := s.target(t)
	pem, err := os.ReadFile(s.userKey)
	require.NoError(t, err)
	key, err := ssh.ParsePrivateKey(pem)
	require.NoError(t, err)
	other, _ := newKey(t)
	signed := func(change func(*ssh.Certificate)) string {
		cert := certify(t, authority, key.PublicKey(), ssh.UserCert, target.User)
		change(cert)
		return writeFile(t, "cert", string(ssh.MarshalAuthorizedKey(cert)), 0o600)
	}
	for name, file := range map[string]string{
		"expired": signed(func(c *ssh.Certificate) {
			c.ValidBefore = uint64(time.Now().Add(-time.Hour).Unix())
			require.NoError(t, c.SignCert(rand.Reader, authority))
		}),
		"of another user": signed(func(c *ssh.Certificate) {
			c.ValidPrincipals = []string{"somebody-else"}
			require.NoError(t, c.SignCert(rand.Reader, authority))
		}),
		"of another authority": signed(func(c *ssh.Certificate) { require.NoError(t, c.SignCert(rand.Reader, other)) }),
	} {
		target.CertificateFile = file
		_, err := Dial(t.Context(), target)
		var refused *AuthError
		require.ErrorAs(t, err, &refused, name)
		require.True(t, Permanent(err), "%s: trying again does not help", name)
	}
	cert := certify(t, authority, other.PublicKey(), ssh.UserCert, target.User)
	target.CertificateFile = writeFile(t, "cert", string(ssh.MarshalAuthorizedKey(cert)), 0o600)
	_, err = Dial(t.Context(), target)
	require.ErrorContains(t, err, "it does not belong to "+target.IdentityFile)
}

func TestJumpHostThatRefusesTheLogin(t *testing.T) {
	jump, node := startServer(t, serverOptions{}), startServer(t, serverOptions{})
	target := node.target(t) // with the key of the node, which the jump host does not know
	target.Jump = jump.addr
	target.KnownHosts = writeFile(t, "known_hosts",
		knownhosts.Line([]string{jump.addr}, jump.hostKeys[0].PublicKey())+"\n"+knownhosts.Line([]string{node.addr}, node.hostKeys[0].PublicKey())+"\n", 0o600)
	_, err := Dial(t.Context(), target)
	require.True(t, Permanent(err))
	require.ErrorContains(t, err, "jump host of w1")
	require.ErrorContains(t, err, jump.addr)
}

func TestAcceptNewPinsTheJumpHostToo(t *testing.T) {
	jump := startServer(t, serverOptions{})
	target := jump.target(t)
	target.Jump, target.AcceptNew = jump.addr, true // the jump host is also the node behind it
	target.KnownHosts = writeFile(t, "known_hosts", "", 0o600)
	mustDial(t, target)
	pinned, err := os.ReadFile(target.KnownHosts)
	require.NoError(t, err)
	require.Contains(t, string(pinned), knownhosts.Normalize(jump.addr))
}

func TestNodeWithAnIPv6Address(t *testing.T) {
	s := startServer(t, serverOptions{})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 on this machine's loopback: %v", err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	forwarder := &faultyProxy{}
	forwarder.bytesLeft.Store(-1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go forwarder.proxyConn(conn, s.addr)
		}
	}()
	target := s.target(t)
	target.Address = listener.Addr().String()
	target.KnownHosts = writeFile(t, "known_hosts", knownhosts.Line([]string{target.Address}, s.hostKeys[0].PublicKey())+"\n", 0o600)
	out, _, _, err := mustDial(t, target).Exec(t.Context(), "echo hello")
	require.NoError(t, err)
	require.Equal(t, "hello\n", out)
}

func TestDialFromTheNode(t *testing.T) {
	s := startServer(t, serverOptions{})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = conn.Write([]byte("from the node")) // the reader sees what is missing
			_ = conn.Close()
		}
	}()
	c := mustDial(t, s.target(t))
	conn, err := c.Dial(t.Context(), listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }() // the other end has closed it
	body := make([]byte, len("from the node"))
	_, err = conn.Read(body)
	require.NoError(t, err)
	require.Equal(t, "from the node", string(body))

	require.NoError(t, listener.Close())
	_, err = c.Dial(t.Context(), listener.Addr().String())
	var lost *TransportError
	require.ErrorAs(t, err, &lost)
}
