package gateway

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/testbed"
)

// nginx is an nginx process in front of gateways.
type nginx struct {
	*environment
	program, dir string
	port         int
	process      *testbed.Process
}

// newNginx does not start it yet.
func (s *environment) newNginx() *nginx {
	s.t.Helper()
	p := &nginx{environment: s, program: debianProgram(s.t, "nginx-light", "nginx"), dir: s.path("nginx"), port: freePort(s.t)}
	require.NoError(s.t, os.Mkdir(p.dir, 0o700))
	return p
}

func (p *nginx) url() string { return fmt.Sprintf("http://127.0.0.1:%d", p.port) }

// reverseProxyConfig returns a location that passes everything on to servers; more are lines of it.
func reverseProxyConfig(more string, servers ...string) string {
	upstream := ""
	for _, s := range servers {
		upstream += fmt.Sprintf("    server %s max_fails=0;\n", s)
	}
	return fmt.Sprintf(`
  upstream gateways {
%s    keepalive 32;
  }
  server {
    listen 127.0.0.1:LISTEN;
    location / {
      proxy_pass http://gateways;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
%s
    }
  }
`, upstream, more)
}

// configure writes its configuration.
func (p *nginx) configure(servers string) {
	p.t.Helper()
	text := fmt.Sprintf(`
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
%s
events { worker_connections 2048; }
http {
  access_log access.log;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
%s
}
`, workerUser(), strings.ReplaceAll(servers, "LISTEN", fmt.Sprint(p.port)))
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, "nginx.conf"), []byte(text), 0o600))
}

// workerUser keeps the workers of an nginx that runs as root able to read what
// is the test's.
func workerUser() string {
	if os.Getuid() == 0 {
		return "user root;"
	}
	return ""
}

// start starts it and returns when it listens.
func (p *nginx) start() {
	p.t.Helper()
	var err error
	p.process, err = testbed.StartProcess(p.t.Context(), p.path("nginx.log"), os.Environ(), p.program, "-p", p.dir, "-c", "nginx.conf", "-e", "stderr")
	require.NoError(p.t, err)
	process := p.process
	p.t.Cleanup(func() {
		require.NoError(p.t, process.Stop())
		if p.t.Failed() {
			log, _ := os.ReadFile(p.path("nginx.log"))
			p.t.Logf("nginx:\n%s", tail(log, 3000))
		}
	})
	p.eventually("nginx listens", func() bool {
		conn, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// reload has it read its configuration again.
func (p *nginx) reload() {
	p.t.Helper()
	require.NoError(p.t, syscall.Kill(p.process.PID(), syscall.SIGHUP))
}

// responseCount counts the requests that it has answered with a status.
func (p *nginx) responseCount(status int) int {
	data, _ := os.ReadFile(filepath.Join(p.dir, "access.log"))
	return strings.Count(string(data), fmt.Sprintf(`" %d `, status))
}

const (
	retryingMessage  = "API server is restarting, retrying… (Ctrl-C to stop)"
	recoveredMessage = "… recovered after "
)

// Whatever a proxy says while there is no gateway behind it, the command waits and
// then goes through.
func TestCommandWaitsBehindNginx(t *testing.T) {
	s := newEnvironment(t)
	g := s.newGateway("gateway", "")
	p := s.newNginx()
	through := reverseProxyConfig("proxy_read_timeout 1s;", g.address())

	t.Run("nobody listens there either", func(t *testing.T) {
		c := s.startCLI("vera", p.url(), "list")
		c.waitForRetry(t)
		g.start()
		p.configure(through)
		p.start()
		c.requireRecovered(t)
	})
	t.Run("502, a page of HTML", func(t *testing.T) {
		g.signal(syscall.SIGTERM)
		require.Zero(t, g.process.ExitCode())
		c := s.startCLI("vera", p.url(), "list")
		c.waitForRetry(t)
		s.eventually("two of them", func() bool { return p.responseCount(http.StatusBadGateway) >= 2 })
		g.start()
		c.requireRecovered(t)
	})
	t.Run("504, a gateway that is stuck", func(t *testing.T) {
		g.signal(syscall.SIGSTOP)
		c := s.startCLI("vera", p.url(), "list")
		c.waitForRetry(t)
		s.eventually("one of them", func() bool { return p.responseCount(http.StatusGatewayTimeout) >= 1 })
		g.signal(syscall.SIGCONT)
		c.requireRecovered(t)
	})
	t.Run("503, a page of HTML", func(t *testing.T) {
		p.configure("server { listen 127.0.0.1:LISTEN; location / { return 503; } }")
		p.reload()
		s.eventually("it is closed", func() bool {
			a, err := send(t.Context(), http.DefaultClient, http.MethodGet, p.url()+"/healthz", "", nil)
			return err == nil && a.status == http.StatusServiceUnavailable
		})
		c := s.startCLI("vera", p.url(), "list")
		c.waitForRetry(t)
		p.configure(through)
		p.reload()
		c.requireRecovered(t)
	})
	t.Run("nobody for good", func(t *testing.T) {
		require.NoError(t, g.process.Kill())
		began := time.Now()
		usual := s.startCLI("vera", p.url(), "list")
		c := s.startCLI("vera", p.url(), "list", "--retry-timeout", "4s")
		require.Equal(t, 1, c.waitForExit(t, time.Minute))
		require.Less(t, time.Since(began), 30*time.Second)
		require.Equal(t, 1, usual.waitForExit(t, 90*time.Second), "a minute, and not the ten of a gateway that is replaced")
		require.Greater(t, time.Since(began), 25*time.Second)
		require.Contains(t, usual.errs.String(), "gave up after ")
		require.Contains(t, c.errs.String(), "gave up after ")
		require.Contains(t, c.errs.String(), "a proxy answers 502 Bad Gateway: there is no server behind it")
		require.Contains(t, c.errs.String(), "try again later")
		require.NotContains(t, c.errs.String(), recoveredMessage)
		require.Empty(t, c.out.String())
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		c := s.startCLI("vera", p.url(), "list")
		c.waitForRetry(t)
		require.NoError(t, c.Process.Signal(syscall.SIGINT))
		require.Equal(t, 130, c.waitForExit(t, 5*time.Second), "%s", c.errs)
	})
}

// requireRecovered is the good end of a command that had to wait.
func (c *cliProcess) requireRecovered(t *testing.T) {
	t.Helper()
	require.Zero(t, c.waitForExit(t, time.Minute), "%s", c.errs)
	require.Equal(t, "no operations\n", c.out.String())
	require.Equal(t, 1, strings.Count(c.errs.String(), retryingMessage), "said once")
	require.Equal(t, 1, strings.Count(c.errs.String(), recoveredMessage))
}

// A POST without a key reaches one server once, also when that dies over it and
// nginx has another; and the command, which always sends a key, is what repeats.
func TestPostWithoutAKeyIsNotRepeatedBehindNginx(t *testing.T) {
	s := newEnvironment(t)
	p := s.newNginx()
	var posts atomic.Int32
	dying := func() string {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			posts.Add(1)
			panic(http.ErrAbortHandler)
		})}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		return l.Addr().String()
	}
	// As docs/gateway.md has it, except for non_idempotent.
	p.configure(reverseProxyConfig("proxy_next_upstream error timeout http_503;", dying(), dying()))
	p.start()

	a, err := send(t.Context(), http.DefaultClient, http.MethodPost, p.url()+"/v1/operations", drainRequest("prod", "w1"), s.header("otto"))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, a.status)
	require.EqualValues(t, 1, posts.Load(), "one server has seen it, once")

	c := s.startCLI("otto", p.url(), "drain", "prod", "w1", "--detach", "--retry-timeout", "4s")
	require.Equal(t, 1, c.waitForExit(t, time.Minute))
	require.Contains(t, c.errs.String(), "gave up after ")
	require.Greater(t, posts.Load(), int32(2))
}
