package nodessh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// testServer is an SSH server on a loopback port: either this package's own or
// OpenSSH. Its user is the one who runs the tests.
type testServer struct {
	addr     string
	hostKeys []ssh.Signer
	home     string    // where relative paths lead; empty for OpenSSH
	userKey  string    // identity file that may log in
	stop     func()    // no new connections
	authLog  *[]string // methods that were tried (own server only)
}

// target logs in with the server's user key; the known_hosts file holds the server.
func (s *testServer) target(t *testing.T) Target {
	t.Helper()
	me, err := user.Current()
	require.NoError(t, err)
	var lines []string
	for _, key := range s.hostKeys {
		lines = append(lines, knownhosts.Line([]string{s.addr}, key.PublicKey()))
	}
	return Target{
		Node: "w1", Address: s.addr, User: me.Username, IdentityFile: s.userKey,
		KnownHosts:     writeFile(t, "known_hosts", strings.Join(lines, "\n")+"\n", 0o600),
		ConnectTimeout: 10 * time.Second, KeepAlive: time.Second,
	}
}

func writeFile(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
	return path
}

func newKey(t *testing.T) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer, private
}

func newRSAKey(t *testing.T) (ssh.Signer, *rsa.PrivateKey) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer, private
}

func keyFile(t *testing.T, private any, passphrase string) string {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(private, "test")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "test", []byte(passphrase))
	}
	require.NoError(t, err)
	return writeFile(t, "id", string(pem.EncodeToMemory(block)), 0o600)
}

// serverOptions change the own server.
type serverOptions struct {
	hostKeys []ssh.Signer
	path     string        // directory in front of PATH
	userCA   ssh.PublicKey // users may come with certificates of this authority only
}

// startServer starts the own server: it runs commands by sh in a home directory of
// its own and forwards connections, which is all that a node or jump host does.
func startServer(t *testing.T, o serverOptions) *testServer {
	t.Helper()
	userSigner, userPrivate := newKey(t)
	s := &testServer{hostKeys: o.hostKeys, home: t.TempDir(), userKey: keyFile(t, userPrivate, "")}
	if s.hostKeys == nil {
		signer, _ := newKey(t)
		s.hostKeys = []ssh.Signer{signer}
	}
	var mu sync.Mutex
	tried := []string{}
	s.authLog = &tried
	checker := &ssh.CertChecker{IsUserAuthority: func(key ssh.PublicKey) bool {
		return o.userCA != nil && bytes.Equal(key.Marshal(), o.userCA.Marshal())
	}}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if o.userCA != nil {
				return checker.Authenticate(meta, key)
			}
			if bytes.Equal(key.Marshal(), userSigner.PublicKey().Marshal()) {
				return &ssh.Permissions{}, nil
			}
			return nil, errors.New("unknown key")
		},
		// Offered so that a client which falls for it is seen.
		PasswordCallback: func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, errors.New("no") },
		AuthLogCallback: func(_ ssh.ConnMetadata, method string, _ error) {
			mu.Lock()
			defer mu.Unlock()
			tried = append(tried, method)
		},
	}
	for _, key := range s.hostKeys {
		config.AddHostKey(key)
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr, s.stop = listener.Addr().String(), func() { _ = listener.Close() }
	t.Cleanup(s.stop)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn, config, o.path)
		}
	}()
	return s
}

func (s *testServer) serve(conn net.Conn, config *ssh.ServerConfig, path string) {
	defer func() { _ = conn.Close() }()
	sc, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer func() { _ = sc.Close() }()
	go ssh.DiscardRequests(requests)
	for newChannel := range channels {
		switch newChannel.ChannelType() {
		case "session":
			channel, requests, err := newChannel.Accept()
			if err == nil {
				go s.session(channel, requests, path)
			}
		case "direct-tcpip":
			go forwardTCP(newChannel)
		default:
			_ = newChannel.Reject(ssh.UnknownChannelType, "no")
		}
	}
}

func (s *testServer) session(channel ssh.Channel, requests <-chan *ssh.Request, path string) {
	defer func() { _ = channel.Close() }()
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		go ssh.DiscardRequests(requests)
		var payload struct{ Command string }
		_ = ssh.Unmarshal(request.Payload, &payload)
		cmd := exec.CommandContext(context.Background(), "sh", "-c", payload.Command)
		cmd.Dir = s.home
		cmd.Env = append(os.Environ(), "HOME="+s.home, "PATH="+path+":"+os.Getenv("PATH"))
		cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
		stdin, err := cmd.StdinPipe()
		if err != nil || cmd.Start() != nil {
			return
		}
		go func() { _, _ = io.Copy(stdin, channel); _ = stdin.Close() }()
		_ = cmd.Wait()
		code := cmd.ProcessState.ExitCode()
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		return
	}
}

func forwardTCP(newChannel ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	_ = ssh.Unmarshal(newChannel.ExtraData(), &to)
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		_ = newChannel.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	channel, requests, err := newChannel.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	go func() { _, _ = io.Copy(channel, conn); _ = channel.Close() }()
	_, _ = io.Copy(conn, channel)
	_ = conn.Close()
}

// startOpenSSH starts the machine's own sshd; the test is skipped where there is none.
// Settings are lines of sshd_config.
func startOpenSSH(t *testing.T, settings ...string) *testServer {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts an OpenSSH server")
	}
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skipf("OpenSSH's server is not installed (%s): apt-get install openssh-server", sshd)
	}
	if os.Getuid() == 0 {
		// sshd wants this directory for privilege separation; its package's service makes it.
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755))
	}
	dir := t.TempDir()
	signer, private := newKey(t)
	_, userPrivate := newKey(t)
	s := &testServer{hostKeys: []ssh.Signer{signer}, userKey: keyFile(t, userPrivate, "")}
	userSigner, err := ssh.NewSignerFromKey(userPrivate)
	require.NoError(t, err)
	authorized := writeFile(t, "authorized_keys", string(ssh.MarshalAuthorizedKey(userSigner.PublicKey())), 0o600)
	s.addr = freeAddress(t)
	host, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	config := writeFile(t, "sshd_config", fmt.Sprintf(`ListenAddress %s
Port %s
HostKey %s
AuthorizedKeysFile %s
PidFile %s
StrictModes no
UsePAM no
PermitRootLogin yes
%s
`, host, port, keyFile(t, private, ""), authorized, filepath.Join(dir, "pid"), strings.Join(settings, "\n")), 0o600)
	var log bytes.Buffer
	cmd := exec.CommandContext(context.Background(), sshd, "-D", "-e", "-f", config)
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	s.stop = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	t.Cleanup(func() {
		s.stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", log.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, 20*time.Millisecond, "sshd did not listen: %s", &log)
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// onBothServers runs a test against the own server and against OpenSSH.
func onBothServers(t *testing.T, test func(t *testing.T, s *testServer)) {
	t.Run("own server", func(t *testing.T) { test(t, startServer(t, serverOptions{})) })
	t.Run("OpenSSH", func(t *testing.T) { test(t, startOpenSSH(t)) })
}

func mustDial(t *testing.T, target Target) *Client {
	t.Helper()
	c, err := Dial(t.Context(), target)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func contextWithTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
