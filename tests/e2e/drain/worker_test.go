package e2e

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/converter"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/internal/config"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// A drain as an operation: with an engine, and workers as processes.
func TestDrainByAWorker(t *testing.T) {
	t.Parallel()
	bed := startBed(t)
	t.Run("killed, and another goes on", func(t *testing.T) { drainOutlastsItsWorker(t, bed) })
	t.Run("says the same everywhere", func(t *testing.T) { drainSaysTheSameEverywhere(t, bed) })
}

// The worker is killed at the worst moment: the API server has accepted an
// eviction, and the worker does not get the answer.
func drainOutlastsItsWorker(t *testing.T, bed *testbed.Bed) {
	node, pods := busiestNode(t, bed)
	log := newRequestLog()
	accepted := 3 // the one that web's budget allows, and slow's two; others follow
	killed := make(chan struct{})
	proxyWorkers(t, bed, log, func() {
		if log.count(http.StatusCreated) >= accepted {
			<-killed
		}
	})
	worker, err := bed.Worker(t.Context())
	require.NoError(t, err)

	id := beginDrain(t, bed, "killed", node)
	attempts := follow(t, bed, id)
	require.Eventually(t, func() bool { return log.count(http.StatusCreated) >= accepted }, time.Minute, 5*time.Millisecond)
	require.NoError(t, worker.Kill())
	require.Less(t, log.count(http.StatusCreated), len(pods), "in the middle")
	close(killed)
	_, err = bed.Worker(t.Context())
	require.NoError(t, err)

	end, seen := attempts()
	require.Equal(t, ops.Done, end.State, end.Message)
	require.JSONEq(t, `{"drained":["`+node+`"]}`, string(end.Result))
	require.Equal(t, []int{1}, seen, "attempts that the status has shown")
	log.requireOnce(t, pods)
	drains := drainsOf(t, bed, id)
	require.Len(t, drains, 1, "one attempt, as the history has it")
	require.Equal(t, int32(2), drains[0].tries, "which two workers have made")
}

// The attempt is cut to the operation's deadline, there is no other, and what is
// in the heartbeat, in the live status and in the error is the same.
func drainSaysTheSameEverywhere(t *testing.T, bed *testbed.Bed) {
	const timeout = 8 * time.Second
	require.NoError(t, bed.Configure(func(c *config.Cluster) {
		c.Scale.Timeout, c.Scale.Attempts, c.Drain.Timeout = config.Duration(timeout), 3, config.Duration(time.Hour)
	}))
	require.NoError(t, bed.Sandbox.SetBudget(t.Context(), "web", sandbox.Budget{MaxUnavailable: "0"}))
	node, _ := busiestNode(t, bed)
	id := beginDrain(t, bed, "blocked", node)

	var live, beat operation.DrainProgress
	err := testbed.WaitForOperation(t.Context(), bed.Ops, id, func(op ops.Operation) bool {
		if op.Live[node].Drain != nil {
			live, beat = *op.Live[node].Drain, heartbeat(t, bed, id)
		}
		return len(live.Blocked) == 6 && reflect.DeepEqual(live, beat)
	})
	require.NoError(t, err)
	end, seen := follow(t, bed, id)()
	require.Equal(t, ops.RolledBack, end.State, end.Message)
	require.Equal(t, []int{1}, seen)

	drains := drainsOf(t, bed, id)
	require.Len(t, drains, 1)
	require.InDelta(t, 0, drains[0].ended.Sub(end.Status.Deadline).Seconds(), 1.5, "an hour was cut to the deadline")
	final := drains[0].final
	require.Equal(t, live.Blocked, final.Blocked)
	require.Contains(t, end.Message, "drain node "+node+": not empty after ")
	require.Contains(t, end.Message, "end of the output:\n"+final.Output)
	for _, p := range final.Blocked {
		require.Equal(t, "default/web", p.Budget)
		require.Contains(t, end.Message, "\n  "+p.String())
	}
}

func beginDrain(t *testing.T, bed *testbed.Bed, id, node string) string {
	t.Helper()
	_, _, err := bed.Ops.Start(t.Context(), ops.Request{ID: id, Kind: operation.KindDrain, Cluster: testbed.ClusterName, Nodes: []string{node}})
	require.NoError(t, err)
	return id
}

// heartbeat returns the last heartbeat of the only activity that runs.
func heartbeat(t *testing.T, bed *testbed.Bed, id string) (p operation.DrainProgress) {
	t.Helper()
	described, err := bed.Client.DescribeWorkflowExecution(t.Context(), id, "")
	require.NoError(t, err)
	if pending := described.GetPendingActivities(); len(pending) == 1 && pending[0].GetHeartbeatDetails() != nil {
		require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(pending[0].GetHeartbeatDetails(), &p))
	}
	return p
}

// startBed returns the smallest cluster with an engine on which a budget can be respected.
func startBed(t *testing.T) *testbed.Bed {
	t.Helper()
	bed, err := testbed.Start(t.Context(), testbed.Options{
		Dir: t.TempDir(), UIPort: -1,
		Sandbox: sandbox.Options{ControlPlanes: 1, Workers: 2, PodReadyDelay: time.Second, PodDeleteDelay: 500 * time.Millisecond},
		Edit:    func(c *config.Cluster) { c.Drain.Timeout = config.Duration(time.Minute) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bed.Stop()) })
	for _, w := range []sandbox.Workload{
		{Name: "web", Replicas: 6, Spread: true, Budget: &sandbox.Budget{MaxUnavailable: "1"}},
		{Name: "slow", Replicas: 4, Spread: true, Annotations: map[string]string{"sandbox.ebb/delete-delay": "3s"}},
	} {
		require.NoError(t, bed.Sandbox.Deploy(t.Context(), w))
	}
	return bed
}

// busiestNode returns the worker with the most pods that have to leave, and those pods.
func busiestNode(t *testing.T, bed *testbed.Bed) (node string, pods []core.Pod) {
	t.Helper()
	list, err := bed.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	on := map[string][]core.Pod{}
	for i := range list.Items {
		p := list.Items[i]
		on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
	}
	for name := range on {
		if len(on[name]) > len(pods) {
			node, pods = name, on[name]
		}
	}
	require.GreaterOrEqual(t, len(pods), 5)
	return node, pods
}

// proxyWorkers makes the workers talk to the API server through a proxy,
// which records their requests. answering is called before an eviction is answered.
func proxyWorkers(t *testing.T, bed *testbed.Bed, log *requestLog, answering func()) {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", bed.Sandbox.Kubeconfig())
	require.NoError(t, err)
	target, err := url.Parse(admin.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(&rest.Config{Host: admin.Host, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}})
	require.NoError(t, err)
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     recordingTransport{requestLog: log, next: transport},
		FlushInterval: -1, // watches
		ModifyResponse: func(resp *http.Response) error {
			if strings.HasSuffix(resp.Request.URL.Path, "/eviction") {
				answering()
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }, // the worker has gone
	})
	t.Cleanup(func() {
		_ = proxy.Listener.Close() // first, for the worker dials anew at once
		proxy.CloseClientConnections()
		proxy.Close()
	})
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})
	file, err := clientcmd.LoadFromFile(bed.Kubeconfig)
	require.NoError(t, err)
	for name := range file.Clusters {
		file.Clusters[name] = &clientcmdapi.Cluster{Server: proxy.URL, CertificateAuthorityData: certificate}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*file, path))
	require.NoError(t, bed.Configure(func(c *config.Cluster) { c.Kubeconfig = path }))
}

// count returns the number of evictions that were answered with this code.
func (r *requestLog) count(code int) (n int) {
	for _, e := range r.evictions() {
		if e.code == code {
			n++
		}
	}
	return n
}

// follow follows an operation. It returns a function that waits for the end, and returns
// the operation and the numbers of the attempts that its status has shown.
func follow(t *testing.T, bed *testbed.Bed, id string) func() (end ops.Operation, attempts []int) {
	t.Helper()
	var end ops.Operation
	var seen []int
	var err error
	var done sync.WaitGroup
	done.Go(func() {
		err = bed.Ops.Watch(t.Context(), id, func(o ops.Operation) {
			end = o
			if o.Status == nil {
				return
			}
			for _, n := range o.Status.Nodes {
				if n.Attempt > 0 && !slices.Contains(seen, n.Attempt) {
					seen = append(seen, n.Attempt)
				}
			}
		})
	})
	t.Cleanup(done.Wait)
	return func() (ops.Operation, []int) {
		done.Wait()
		require.NoError(t, err)
		return end, seen
	}
}

// drainActivity is one attempt at a node, as recorded in the history.
type drainActivity struct {
	tries int32                   // workers that had a hand in it
	ended time.Time               // when it failed
	final operation.DrainProgress // of one that failed
}

func drainsOf(t *testing.T, bed *testbed.Bed, id string) (drains []*drainActivity) {
	t.Helper()
	byEvent := map[int64]*drainActivity{}
	events := bed.Client.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		require.NoError(t, err)
		if scheduled := event.GetActivityTaskScheduledEventAttributes(); scheduled.GetActivityType().GetName() == "Drain" {
			byEvent[event.GetEventId()] = &drainActivity{}
			drains = append(drains, byEvent[event.GetEventId()])
		}
		started := event.GetActivityTaskStartedEventAttributes()
		if d := byEvent[started.GetScheduledEventId()]; d != nil {
			d.tries = started.GetAttempt()
		}
		failed := event.GetActivityTaskFailedEventAttributes()
		if d := byEvent[failed.GetScheduledEventId()]; d != nil {
			d.ended = event.GetEventTime().AsTime()
			details := failed.GetFailure().GetApplicationFailureInfo().GetDetails()
			require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(details, &d.final))
		}
	}
	return drains
}
