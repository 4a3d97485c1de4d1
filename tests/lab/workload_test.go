package labtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/tests/lab/lab"
)

// nodePort is where the workload's Service is found on every node.
const nodePort = 30080

// workload is two replicas behind a budget that lets go of one at a time.
var workload = fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      terminationGracePeriodSeconds: 30
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: hello}}}
      containers:
      - name: hello
        image: %s
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: hello}
spec: {minAvailable: 1, selector: {matchLabels: {app: hello}}}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080, nodePort: %d}]}
`, lab.HelloImage, nodePort)

func (b *environment) deployWorkload(t *testing.T) {
	t.Helper()
	require.NoError(t, testLab.KubectlInput(t.Context(), workload, "apply", "-f", "-"))
	b.waitForWorkload(t)
}

// waitForWorkload waits until both replicas are available.
func (b *environment) waitForWorkload(t *testing.T) {
	t.Helper()
	eventually(t, "the workload is whole", func(ctx context.Context) (bool, error) {
		d, err := b.kube.AppsV1().Deployments(meta.NamespaceDefault).Get(ctx, "hello", meta.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 2 && d.Status.Replicas == 2, err
	})
}

// prober asks the Service all the time, on each of some nodes, and counts the
// requests that fail.
type prober struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	paused map[string]bool // nodes that are not asked
	served int
	failed []string
}

// probeInterval is the time between two requests to one node.
const probeInterval = 100 * time.Millisecond

// startProber starts asking, once every node answers: a Service is programmed a moment
// after its pods are ready.
func (b *environment) startProber(t *testing.T, nodes ...string) *prober {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &prober{stop: cancel, paused: map[string]bool{}}
	t.Cleanup(p.close)
	for _, name := range nodes {
		url := fmt.Sprintf("http://%s:%d/", b.machine(t, name).Address(), nodePort)
		eventually(t, "the Service answers on "+name, func(ctx context.Context) (bool, error) { err := getHello(ctx, url); return err == nil, err })
		p.done.Go(func() { p.run(ctx, name, url) })
	}
	return p
}

func (p *prober) close() {
	p.stop()
	p.done.Wait()
}

// pause stops asking on a node that is no longer reachable from outside, as any
// load balancer would; come starts again.
func (p *prober) pause(node string)  { p.setPaused(node, true) }
func (p *prober) resume(node string) { p.setPaused(node, false) }

func (p *prober) setPaused(node string, away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused[node] = away
}

func (p *prober) run(ctx context.Context, node, url string) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		away := p.paused[node]
		p.mu.Unlock()
		if away {
			continue
		}
		err := getHello(ctx, url)
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		if err == nil {
			p.served++
		} else if !p.paused[node] { // else it was sent before the node was left
			p.failed = append(p.failed, fmt.Sprintf("%s %s: %v", time.Now().UTC().Format("15:04:05.000"), node, err))
		}
		p.mu.Unlock()
	}
}

// requireNoFailure checks that no request has failed so far, of those there have been.
func (p *prober) requireNoFailure(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Logf("the prober: %d requests served, %d failed", p.served, len(p.failed))
	require.Empty(t, p.failed)
	require.NotZero(t, p.served)
}

// getHello makes one request over a connection of its own.
func getHello(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "hello from ")) {
		err = fmt.Errorf("status %d: %q", answer.StatusCode, body)
	}
	return err
}

// newFileLogger logs into a file.
func newFileLogger(t *testing.T, path string) *zap.Logger {
	t.Helper()
	c := zap.NewProductionConfig()
	c.OutputPaths = []string{path}
	log, err := c.Build()
	require.NoError(t, err)
	return log
}
