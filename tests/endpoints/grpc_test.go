package endpoints

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ebb/internal/sandbox"
)

// podServers is a gRPC server on loopback for each pod of a workload, from the time that
// the pod is ready until it is deleted.
type podServers struct {
	t        *testing.T
	mu       sync.Mutex
	servers  map[string]*grpc.Server // by the pod's address
	loopback map[string]string       // the address on loopback
	changed  chan struct{}           // closed by the next change
}

func servePods(t *testing.T, workload string) *podServers {
	t.Helper()
	f := &podServers{t: t, servers: map[string]*grpc.Server{}, loopback: map[string]string{}, changed: make(chan struct{})}
	api := shared.Client().CoreV1().Pods(sandbox.Namespace)
	w, err := api.Watch(t.Context(), meta.ListOptions{LabelSelector: "app=" + workload})
	require.NoError(t, err)
	var following sync.WaitGroup
	following.Go(func() { f.watchPods(w) })
	t.Cleanup(func() {
		w.Stop()
		following.Wait()
		for _, s := range f.servers {
			s.Stop()
		}
	})
	return f
}

func (f *podServers) watchPods(w watch.Interface) {
	for event := range w.ResultChan() {
		pod, ok := event.Object.(*core.Pod)
		if !ok || pod.Status.PodIP == "" {
			continue
		}
		if event.Type == watch.Deleted {
			f.stop(pod.Status.PodIP)
		} else if podReady(pod) {
			f.start(pod.Status.PodIP)
		}
	}
}

func podReady(pod *core.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}

func (f *podServers) start(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.servers[ip] != nil {
		return
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Error(err)
		return
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }() // ends with Stop
	f.servers[ip], f.loopback[ip] = s, l.Addr().String()
	f.notify()
}

// stop ends a server as a pod ends: with all its connections.
func (f *podServers) stop(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.servers[ip]; s != nil {
		s.Stop()
		delete(f.servers, ip)
		delete(f.loopback, ip)
		f.notify()
	}
}

func (f *podServers) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// waitFor waits until the pods that answer are as wanted.
func (f *podServers) waitFor(want func(ips map[string]string) bool) {
	f.t.Helper()
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	for {
		f.mu.Lock()
		ok, changed := want(f.loopback), f.changed
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			require.Fail(f.t, "the pods do not come to what they should be")
		}
	}
}

// dial leads a client to the server that stands for a pod.
func (f *podServers) dial(ctx context.Context, address string) (net.Conn, error) {
	ip, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	at, ok := f.loopback[ip]
	f.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("no pod at %s", address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", at)
}

// trafficClient calls a service continuously and records the calls that fail.
type trafficClient struct {
	client healthpb.HealthClient
	mu     sync.Mutex
	calls  int
	failed []error
}

// startTraffic returns a client that knows the service from the xDS server alone. It calls until
// the function is called that is returned.
func startTraffic(t *testing.T, f *podServers, server, target, credentials string) (u *trafficClient, stop func()) {
	t.Helper()
	bootstrap := fmt.Sprintf(`{"xds_servers": [{"server_uri": %q, "channel_creds": [%s]}], "node": {"id": "user"}}`, server, credentials)
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	require.NoError(t, err)
	c, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if address == server {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
		return f.dial(ctx, address)
	}), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	u = &trafficClient{client: healthpb.NewHealthClient(c)}
	_, err = u.client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	for range 4 {
		going.Go(func() { u.callUntilDone(ctx) })
	}
	return u, func() {
		cancel()
		going.Wait()
		require.NoError(t, c.Close())
	}
}

func (u *trafficClient) callUntilDone(ctx context.Context) {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		var from peer.Peer
		_, err := u.client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from))
		if ctx.Err() != nil {
			return
		}
		u.mu.Lock()
		u.calls++
		if err != nil {
			u.failed = append(u.failed, err)
		}
		u.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

func (u *trafficClient) callCount() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}

// A service of one replica is evicted from its node: its terminating pod serves until
// the next one is ready, and no call fails.
func TestOneReplicaIsReplacedUnderTraffic(t *testing.T) {
	deployWorkload(t, sandbox.Workload{Name: "single", Replicas: 1, Annotations: map[string]string{"sandbox.ebb/delete-delay": "8s"}})
	f := servePods(t, "single")
	f.waitFor(func(at map[string]string) bool { return len(at) == 1 })
	_, address := startServer(t)
	u, stop := startTraffic(t, f, address, "prod/default/single:80", `{"type": "insecure"}`)
	for range 2 {
		pod := runningPods(t, "single")[0]
		drainNode(t, pod.Spec.NodeName)
		require.NoError(t, shared.Client().CoreV1().Pods(sandbox.Namespace).EvictV1(t.Context(), &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: pod.Name}}))
		f.waitFor(func(at map[string]string) bool { _, there := at[pod.Status.PodIP]; return !there && len(at) == 1 })
		uncordon(t, pod.Spec.NodeName)
	}
	stop()
	t.Logf("%d calls", u.calls)
	require.Empty(t, u.failed, "of %d calls", u.calls)
	require.Greater(t, u.calls, 500)
}
