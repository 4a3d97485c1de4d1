package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"ebb/deployments"
	"ebb/internal/api/auth"
	"ebb/internal/testbed"
)

// serviceLag is how long a Service goes on sending new connections to a pod that is being
// deleted, and none to one that is new: its slices are written, and every node is told.
const serviceLag = 3 * time.Second

// service leads each new connection to one of its pods, as kube-proxy does. Connections that
// are open stay where they are.
type service struct {
	listener net.Listener
	mu       sync.Mutex
	pods     []string // addresses
	turn     int
}

func startService(t *testing.T, pods ...string) *service {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &service{listener: l, pods: pods}
	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	going.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			going.Go(func() { s.forward(ctx, c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close() // its goroutine ends with it
		going.Wait()
	})
	return s
}

func (s *service) address() string { return s.listener.Addr().String() }

func (s *service) add(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = append(s.pods, pod)
}

func (s *service) remove(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(p string) bool { return p == pod })
}

func (s *service) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	return s.pods[s.turn%len(s.pods)]
}

// forward leads a connection to a pod until one side ends. There is no second pod for it when
// the first refuses.
func (s *service) forward(ctx context.Context, from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := new(net.Dialer).DialContext(ctx, "tcp", s.next())
	if err != nil {
		return
	}
	end := func() {
		_ = from.Close()
		_ = to.Close()
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(to, from) // that it ends is all
		end()
	})
	_, _ = io.Copy(from, to)
	end()
	back.Wait()
}

// plainCaller sends requests one after the other, each once: what net/http repeats by itself
// it does not for a POST without a key.
type plainCaller struct {
	name     string
	client   *http.Client
	method   string
	path     string
	body     string
	interval time.Duration

	calls    int
	failures []string
}

func (c *plainCaller) run(ctx context.Context, s *environment, url string) {
	again := time.NewTicker(c.interval)
	defer again.Stop()
	for {
		a, err := send(ctx, c.client, c.method, url+c.path, c.body, s.header(c.name))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.failures = append(c.failures, fmt.Sprintf("%s: %v", c.name, err))
		case a.status >= 300:
			c.failures = append(c.failures, fmt.Sprintf("%s: %d %s", c.name, a.status, a.body))
		}
		c.calls++
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// plainCallers are callers that know nothing of Ebb: with a new connection for each call,
// with one that is kept, over HTTP/2, and some that are silent for longer than a replica
// takes to leave.
func plainCallers(g *gateway) []*plainCaller {
	transport := func(change func(*http.Transport)) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
		change(tr)
		return &http.Client{Transport: tr, Timeout: 20 * time.Second}
	}
	kept := func(*http.Transport) {}
	const often = time.Second / 20
	get := func(name string, interval time.Duration, change func(*http.Transport)) *plainCaller {
		return &plainCaller{name: name, method: http.MethodGet, path: "/v1/clusters", interval: interval, client: transport(change)}
	}
	post := get("poster", time.Second, kept)
	post.method, post.path, post.body = http.MethodPost, "/v1/operations", drainRequest("prod", "w1")
	return []*plainCaller{
		post,
		get("dialler", often, func(tr *http.Transport) { tr.DisableKeepAlives = true }),
		get("keeper", often, kept),
		get("multiplexer", often, func(tr *http.Transport) { tr.TLSNextProto, tr.ForceAttemptHTTP2 = nil, true }),
		get("idler", 4*time.Second, kept),
		get("sleeper", 14*time.Second, kept),
	}
}

// preStop returns the hook of the manifest's pods, for a process that is not the first of
// its container.
func preStop(t *testing.T, pid int) (command []string) {
	t.Helper()
	for _, document := range bytes.Split(deployments.Gateway, []byte("\n---\n")) {
		var d apps.Deployment
		require.NoError(t, yaml.Unmarshal(document, &d))
		if d.Kind == "Deployment" {
			require.EqualValues(t, 2, *d.Spec.Replicas)
			require.Equal(t, "1, 0", d.Spec.Strategy.RollingUpdate.MaxSurge.String()+", "+d.Spec.Strategy.RollingUpdate.MaxUnavailable.String())
			command = d.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Exec.Command
		}
	}
	require.NotEmpty(t, command)
	return append(command, "--pid", strconv.Itoa(pid))
}

// deletePod does with a replica what a kubelet and a Service do with a pod that is deleted:
// the hook runs, the Service forgets it meanwhile, and the signal comes after both.
func deletePod(t *testing.T, s *service, g *gateway) {
	t.Helper()
	forgotten := make(chan struct{})
	time.AfterFunc(serviceLag, func() {
		defer close(forgotten)
		s.remove(g.address())
	})
	command := preStop(t, g.process.PID())
	binary, err := testbed.Binary(command[0])
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), binary, command[1:]...).CombinedOutput() // #nosec G204 -- our own binary
	require.NoError(t, err, "%s", out)
	<-forgotten
	g.signal(syscall.SIGTERM)
	require.Zero(t, g.process.ExitCode())
}

// The rollout of deployments/gateway.yaml behind a Service whose slices lag: each replica is
// replaced by one that is ready before, and no call of anybody fails who does not know Ebb
// and tries nothing twice.
func TestRolloutOfTheManifestsFailsNoCall(t *testing.T) {
	s := newEnvironment(t)
	const settings = "  lameDuck: 5s\n"
	one, _ := s.newSecureGateway("one", settings)
	replica := func(name string) *gateway {
		g := s.newGateway(name, "  tls: {certificateFile: one.crt, keyFile: one.key}\n"+settings)
		g.roots = one.roots
		return g
	}
	callers := plainCallers(one)
	for _, c := range callers {
		s.addToken(c.name, auth.Operator, "*")
	}
	two := replica("two")
	one.start()
	two.start()
	svc := startService(t, one.address(), two.address())
	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	for _, c := range callers {
		going.Go(func() { c.run(ctx, s, "https://"+svc.address()) })
	}
	for i, old := range []*gateway{one, two} {
		fresh := replica(fmt.Sprintf("fresh-%d", i+1))
		fresh.start()
		svc.add(fresh.address())
		deletePod(t, svc, old)
	}
	cancel()
	going.Wait()
	for _, c := range callers {
		t.Logf("%s: %d calls", c.name, c.calls)
		require.Empty(t, c.failures)
		require.Greater(t, c.calls, 2)
	}
}

// A hook tells no other process than a gateway.
func TestLeaveTellsAGatewayOnly(t *testing.T) {
	binary, err := testbed.Binary("ebb-gateway")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), binary, "leave", "--pid", strconv.Itoa(syscall.Getpid())).CombinedOutput() // #nosec G204 -- our own binary
	require.Error(t, err)
	require.Contains(t, string(out), "is no ebb-gateway")
}
