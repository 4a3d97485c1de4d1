package nodessh

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

func TestExec(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		c := mustDial(t, s.target(t))
		// cat would swallow the rest of the script if the script were its input.
		out, errOut, code, err := c.Exec(t.Context(), "cat\necho \"it's\"; echo problem >&2\nexit 5")
		require.NoError(t, err)
		require.Equal(t, "it's\n", out)
		require.Equal(t, "problem\n", errOut)
		require.Equal(t, 5, code)

		out, _, code, err = c.Exec(t.Context(), "seq 200000")
		require.NoError(t, err)
		require.Zero(t, code)
		require.Len(t, out, maxOutput)
		require.True(t, strings.HasSuffix(out, "\n199999\n200000\n"))
	})
}

// Nodes without a package manager have kubeadm there, which no PATH of theirs holds.
func TestProgramsInOptBinAreFound(t *testing.T) {
	opt := filepath.Join(t.TempDir(), "opt")
	require.NoError(t, os.MkdirAll(filepath.Join(opt, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(opt, "bin", "kubeadm-of-this-test"), []byte("#!/bin/sh\necho v1.36.3\n"), 0o755))
	c := mustDial(t, startOpenSSH(t, "SetEnv EBB_OPT_DIR="+opt).target(t))
	out, _, _, err := c.Exec(t.Context(), "kubeadm-of-this-test")
	require.NoError(t, err)
	require.Equal(t, "v1.36.3\n", out)

	run := newRun(t, "exec kubeadm-of-this-test")
	require.NoError(t, c.Start(t.Context(), run))
	out, status := follow(t, c, run.Dir, 0)
	require.Equal(t, RunExited, status.State)
	require.Equal(t, "v1.36.3\n", out)

	out, _, _, err = mustDial(t, startServer(t, serverOptions{}).target(t)).Exec(t.Context(), "echo $PATH")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(out, ":/opt/bin\n"), out)
}

func TestExecEndsWithContext(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		c := mustDial(t, s.target(t))
		began := time.Now()
		_, _, _, err := c.Exec(contextWithTimeout(t, 300*time.Millisecond), "sleep 30")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(began), 5*time.Second)
		out, _, _, err := c.Exec(t.Context(), "echo still here")
		require.NoError(t, err)
		require.Equal(t, "still here\n", out)
	})
}

func requireHostKeyError(t *testing.T, err error) *HostKeyError {
	t.Helper()
	var keyErr *HostKeyError
	require.ErrorAs(t, err, &keyErr)
	require.True(t, Permanent(err))
	return keyErr
}

func TestHostKeyMismatch(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		target := s.target(t)
		other, _ := newKey(t)
		target.KnownHosts = writeFile(t, "known_hosts", "# comment\n"+knownhosts.Line([]string{s.addr}, other.PublicKey())+"\n", 0o600)
		target.AcceptNew = true // pins unknown hosts, never changed ones
		before, err := os.ReadFile(target.KnownHosts)
		require.NoError(t, err)
		_, err = Dial(t.Context(), target)
		keyErr := requireHostKeyError(t, err)
		require.Equal(t, HostKeyMismatch, keyErr.Problem)
		require.Equal(t, 2, keyErr.Line)
		for _, part := range []string{knownhosts.Normalize(s.addr), target.KnownHosts + ":2", ssh.FingerprintSHA256(s.hostKeys[0].PublicKey())} {
			require.Contains(t, err.Error(), part)
		}
		after, err := os.ReadFile(target.KnownHosts)
		require.NoError(t, err)
		require.Equal(t, before, after)
	})
}

func TestHostKeyUnknown(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		target := s.target(t)
		target.KnownHosts = writeFile(t, "known_hosts", "", 0o600)
		_, err := Dial(t.Context(), target)
		keyErr := requireHostKeyError(t, err)
		require.Equal(t, HostKeyUnknown, keyErr.Problem)
		require.Contains(t, err.Error(), ssh.FingerprintSHA256(s.hostKeys[0].PublicKey()))
		content, err := os.ReadFile(target.KnownHosts)
		require.NoError(t, err)
		require.Empty(t, content)
	})
}

func TestHostKeyFileMissing(t *testing.T) {
	s := startServer(t, serverOptions{})
	target := s.target(t)
	target.KnownHosts = filepath.Join(t.TempDir(), "none")
	_, err := Dial(t.Context(), target)
	require.Equal(t, HostKeyFile, requireHostKeyError(t, err).Problem)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Contains(t, err.Error(), target.KnownHosts)
	target.KnownHosts = ""
	_, err = Dial(t.Context(), target)
	require.ErrorContains(t, err, "ssh.knownHosts is not set")
}

func TestAcceptNewPinsOnce(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		target := s.target(t)
		target.AcceptNew = true
		target.KnownHosts = filepath.Join(t.TempDir(), "new", "known_hosts")
		var group sync.WaitGroup
		failures := make(chan error, 5)
		for range 5 {
			group.Go(func() {
				c, err := Dial(t.Context(), target)
				if err == nil {
					err = c.Close()
				}
				failures <- err
			})
		}
		group.Wait()
		for range 5 {
			require.NoError(t, <-failures)
		}
		content, err := os.ReadFile(target.KnownHosts)
		require.NoError(t, err)
		require.Equal(t, knownhosts.Line([]string{s.addr}, s.hostKeys[0].PublicKey())+"\n", string(content))
		info, err := os.Stat(target.KnownHosts)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	})
}

// The last line of a file edited by hand may lack its end.
func TestAcceptNewAfterUnfinishedLine(t *testing.T) {
	s := startServer(t, serverOptions{})
	other, _ := newKey(t)
	line := knownhosts.Line([]string{"elsewhere"}, other.PublicKey())
	target := s.target(t)
	target.AcceptNew = true
	target.KnownHosts = writeFile(t, "known_hosts", line, 0o600)
	mustDial(t, target)
	content, err := os.ReadFile(target.KnownHosts)
	require.NoError(t, err)
	require.Equal(t, line+"\n"+knownhosts.Line([]string{s.addr}, s.hostKeys[0].PublicKey())+"\n", string(content))
}

func TestHostKeyRevoked(t *testing.T) {
	s := startServer(t, serverOptions{})
	target := s.target(t)
	target.AcceptNew = true
	target.KnownHosts = writeFile(t, "known_hosts", "@revoked * "+string(ssh.MarshalAuthorizedKey(s.hostKeys[0].PublicKey())), 0o600)
	_, err := Dial(t.Context(), target)
	keyErr := requireHostKeyError(t, err)
	require.Equal(t, HostKeyRevoked, keyErr.Problem)
	require.Equal(t, 1, keyErr.Line)
}

// A host shows one of its keys: it must be asked for the one that is known.
func TestHostWithSeveralKeys(t *testing.T) {
	first, _ := newKey(t)
	second, _ := newRSAKey(t)
	s := startServer(t, serverOptions{hostKeys: []ssh.Signer{first, second}})
	for _, key := range s.hostKeys {
		target := s.target(t)
		target.KnownHosts = writeFile(t, "known_hosts", knownhosts.Line([]string{s.addr}, key.PublicKey())+"\n", 0o600)
		mustDial(t, target)
	}
}

func certify(t *testing.T, authority ssh.Signer, key ssh.PublicKey, kind uint32, principals ...string) *ssh.Certificate {
	t.Helper()
	cert := &ssh.Certificate{Key: key, CertType: kind, ValidPrincipals: principals, ValidBefore: ssh.CertTimeInfinity}
	require.NoError(t, cert.SignCert(rand.Reader, authority))
	return cert
}

func TestHostCertificate(t *testing.T) {
	authority, _ := newKey(t)
	key, _ := newKey(t)
	signer, err := ssh.NewCertSigner(certify(t, authority, key.PublicKey(), ssh.HostCert, "127.0.0.1"), key)
	require.NoError(t, err)
	s := startServer(t, serverOptions{hostKeys: []ssh.Signer{signer}})
	target := s.target(t)
	host := knownhosts.Normalize(s.addr)
	target.KnownHosts = writeFile(t, "known_hosts", "@cert-authority "+host+" "+string(ssh.MarshalAuthorizedKey(authority.PublicKey())), 0o600)
	mustDial(t, target)
	otherAuthority, _ := newKey(t)
	target.KnownHosts = writeFile(t, "known_hosts", "@cert-authority "+host+" "+string(ssh.MarshalAuthorizedKey(otherAuthority.PublicKey())), 0o600)
	_, err = Dial(t.Context(), target)
	require.Equal(t, HostKeyCert, requireHostKeyError(t, err).Problem)
}

func TestAuthRefused(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		target := s.target(t)
		_, unauthorized := newKey(t)
		target.IdentityFile = keyFile(t, unauthorized, "")
		_, err := Dial(t.Context(), target)
		var authErr *AuthError
		require.ErrorAs(t, err, &authErr)
		require.True(t, Permanent(err))
		if s.authLog != nil {
			require.NotContains(t, *s.authLog, "password")
		}
	})
}

func TestKeyFiles(t *testing.T) {
	s := startServer(t, serverOptions{})
	plain := s.target(t)
	pem, err := os.ReadFile(s.userKey)
	require.NoError(t, err)
	raw, err := ssh.ParseRawPrivateKey(pem)
	require.NoError(t, err)
	encrypted := keyFile(t, raw, "open sesame")

	t.Run("encrypted", func(t *testing.T) {
		target := plain
		target.IdentityFile = encrypted
		target.PassphraseFile = writeFile(t, "pass", "open sesame\n", 0o600)
		mustDial(t, target)
	})
	bad := map[string]struct {
		change  func(target *Target)
		message string
	}{
		"no passphrase": {func(target *Target) { target.IdentityFile = encrypted }, "ssh.passphraseFile"},
		"wrong passphrase": {func(target *Target) {
			target.IdentityFile, target.PassphraseFile = encrypted, writeFile(t, "pass", "x", 0o600)
		}, "is wrong"},
		"missing":        {func(target *Target) { target.IdentityFile = "/nonexistent/id" }, "/nonexistent/id"},
		"none":           {func(target *Target) { target.IdentityFile = "" }, "set ssh.identityFile"},
		"open to others": {func(target *Target) { target.IdentityFile = writeFile(t, "id", string(pem), 0o640) }, "chmod 600"},
		"no key":         {func(target *Target) { target.IdentityFile = writeFile(t, "id", "hello", 0o600) }, "no key found"},
		"certificate that is none": {func(target *Target) {
			target.CertificateFile = writeFile(t, "cert", string(ssh.MarshalAuthorizedKey(s.hostKeys[0].PublicKey())), 0o600)
		}, "not a certificate"},
	}
	for name, tc := range bad {
		t.Run(name, func(t *testing.T) {
			target := plain
			tc.change(&target)
			_, err := Dial(t.Context(), target)
			var keyErr *CredentialError
			require.ErrorAs(t, err, &keyErr)
			require.ErrorContains(t, err, tc.message)
			require.True(t, Permanent(err))
		})
	}
}

func TestUserCertificate(t *testing.T) {
	authority, _ := newKey(t)
	s := startServer(t, serverOptions{userCA: authority.PublicKey()})
	target := s.target(t)
	pem, err := os.ReadFile(s.userKey)
	require.NoError(t, err)
	key, err := ssh.ParsePrivateKey(pem)
	require.NoError(t, err)
	_, err = Dial(t.Context(), target)
	require.True(t, Permanent(err), "the bare key is not enough")
	cert := certify(t, authority, key.PublicKey(), ssh.UserCert, target.User)
	target.CertificateFile = writeFile(t, "cert", string(ssh.MarshalAuthorizedKey(cert)), 0o600)
	mustDial(t, target)
}

func TestAgent(t *testing.T) {
	onBothServers(t, func(t *testing.T, s *testServer) {
		pem, err := os.ReadFile(s.userKey)
		require.NoError(t, err)
		raw, err := ssh.ParseRawPrivateKey(pem)
		require.NoError(t, err)
		serveAgent(t, raw)
		target := s.target(t)
		target.IdentityFile, target.Agent = "", true
		c := mustDial(t, target)
		_, _, code, err := c.Exec(t.Context(), "true")
		require.NoError(t, err)
		require.Zero(t, code)
		t.Setenv(agentSocketEnv, "")
		_, err = Dial(t.Context(), target)
		require.ErrorContains(t, err, agentSocketEnv)
		require.True(t, Permanent(err))
	})
}

func TestJumpHost(t *testing.T) {
	onBothServers(t, func(t *testing.T, jump *testServer) {
		// The node lets the jump host's key in by its certificate.
		target := jump.target(t)
		jumpLine := knownhosts.Line([]string{jump.addr}, jump.hostKeys[0].PublicKey()) + "\n"
		authority, _ := newKey(t)
		pem, err := os.ReadFile(jump.userKey)
		require.NoError(t, err)
		key, err := ssh.ParsePrivateKey(pem)
		require.NoError(t, err)
		node := startServer(t, serverOptions{userCA: authority.PublicKey()})
		target.CertificateFile = writeFile(t, "cert", string(ssh.MarshalAuthorizedKey(certify(t, authority, key.PublicKey(), ssh.UserCert, target.User))), 0o600)
		nodeLine := knownhosts.Line([]string{node.addr}, node.hostKeys[0].PublicKey()) + "\n"
		target.Address, target.Jump = node.addr, target.User+"@"+jump.addr

		target.KnownHosts = writeFile(t, "known_hosts", jumpLine+nodeLine, 0o600)
		out, _, _, err := mustDial(t, target).Exec(t.Context(), "pwd")
		require.NoError(t, err)
		require.Equal(t, node.home+"\n", out)

		target.KnownHosts = writeFile(t, "known_hosts", nodeLine, 0o600)
		_, err = Dial(t.Context(), target)
		require.Equal(t, knownhosts.Normalize(jump.addr), requireHostKeyError(t, err).Host)
		target.KnownHosts = writeFile(t, "known_hosts", jumpLine, 0o600)
		_, err = Dial(t.Context(), target)
		require.Equal(t, knownhosts.Normalize(node.addr), requireHostKeyError(t, err).Host)
	})
}

func TestJumpTarget(t *testing.T) {
	for jump, want := range map[string]string{
		"bastion": "root@bastion:22", "ops@bastion:2222": "ops@bastion:2222",
		"ops@2001:db8::1": "ops@[2001:db8::1]:22", "[2001:db8::1]:2222": "root@[2001:db8::1]:2222",
	} {
		target, err := jumpTarget(Target{Node: "w1", User: "root", Jump: jump})
		require.NoError(t, err)
		require.Equal(t, want, target.User+"@"+target.Address)
	}
	_, err := jumpTarget(Target{Node: "w1", Jump: "ops@a:b:c"})
	require.Error(t, err)
}

func TestDialTimeouts(t *testing.T) {
	// Accepts and says nothing.
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	target := startServer(t, serverOptions{}).target(t)
	target.Address = listener.Addr().String()
	target.ConnectTimeout = 200 * time.Millisecond
	began := time.Now()
	_, err = Dial(t.Context(), target)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, Permanent(err))
	require.Less(t, time.Since(began), 5*time.Second)

	target.ConnectTimeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = Dial(ctx, target)
	require.ErrorIs(t, err, context.Canceled)

	target.Address = freeAddress(t)
	_, err = Dial(t.Context(), target)
	var transport *TransportError
	require.ErrorAs(t, err, &transport)
	require.Contains(t, err.Error(), "w1")
}

func TestKeepAliveClosesDeadConnection(t *testing.T) {
	s := startServer(t, serverOptions{})
	p := startFaultyProxy(t, s.addr)
	target := p.targetThrough(t, s)
	target.KeepAlive = 50 * time.Millisecond
	c := mustDial(t, target)
	_, _, _, err := c.Exec(t.Context(), "sleep 0.5") // longer than three intervals
	require.NoError(t, err, "an idle connection that answers stays")
	p.frozen.Store(true)
	_, _, _, err = c.Exec(contextWithTimeout(t, 20*time.Second), "true")
	var transport *TransportError
	require.ErrorAs(t, err, &transport)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

// What OpenSSH's client would refuse or write is what Ebb refuses and writes.
func TestKnownHostsFileIsOpenSSHs(t *testing.T) {
	client, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("OpenSSH's client is not installed")
	}
	s := startOpenSSH(t)
	target := s.target(t)
	target.AcceptNew = true
	target.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
	mustDial(t, target)
	host, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	out, err := exec.CommandContext(context.Background(), client, "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "UserKnownHostsFile="+target.KnownHosts, "-i", s.userKey, "-p", port, target.User+"@"+host, "echo fine").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "fine")
}
