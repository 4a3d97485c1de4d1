// Package endpoints tries Ebb's endpoint server with real clients: gRPC's own xDS
// client and raw streams, over a real control plane whose controllers write the
// EndpointSlices. Kubelets are kwok; what answers at a pod's address is a gRPC server
// on loopback, to which the clients' dialer leads.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb/internal/cluster"
	"ebb/internal/endpoints"
	"ebb/internal/sandbox"
)

// shared is the one sandbox of all tests here.
var shared *sandbox.Sandbox

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ebb-endpoints-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }() // of the temporary directory's owner, the next clean-up
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		shared, err = sandbox.Start(ctx, sandbox.Options{
			Dir: filepath.Join(dir, "sandbox"), ControlPlanes: 1, Workers: 3, PodReadyDelay: 2 * time.Second, PodDeleteDelay: time.Second,
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.Stop()
	return m.Run()
}

// startServer returns an endpoint server for the sandbox, as cluster "prod", and its address.
func startServer(t *testing.T) (*endpoints.Server, string) {
	t.Helper()
	return startServerWith(t, shared.Client())
}

// startServerWith returns a server that follows the cluster by that client.
func startServerWith(t *testing.T, client kubernetes.Interface) (*endpoints.Server, string) {
	t.Helper()
	s := endpoints.NewServer(endpoints.Options{Log: zap.NewNop(), Client: func(_ context.Context, cluster string) (kubernetes.Interface, error) {
		if cluster != "prod" {
			return nil, errors.New("no such cluster")
		}
		return client, nil
	}})
	server := grpc.NewServer(grpc.ChainStreamInterceptor(authorizeClusters), grpc.WaitForHandlers(true))
	s.Register(t.Context(), server)
	var going sync.WaitGroup
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	going.Go(func() { _ = server.Serve(l) }) // ends with Stop
	t.Cleanup(func() {
		server.Stop()
		going.Wait()
		s.Close()
		now := s.Stats()
		require.Zero(t, now.NACKs, "a client has refused an update")
		require.Zero(t, now.Services, "nobody asks any more")
		require.Zero(t, now.Streams)
	})
	return s, l.Addr().String()
}

// deployWorkload makes a workload and a service for it, and removes both after the test.
func deployWorkload(t *testing.T, w sandbox.Workload) {
	t.Helper()
	api := shared.Client()
	require.NoError(t, shared.Deploy(t.Context(), w))
	createService(t, w.Name)
	t.Cleanup(func() {
		ctx := context.Background()
		now := int64(0)
		require.NoError(t, api.AppsV1().Deployments(sandbox.Namespace).Delete(ctx, w.Name, meta.DeleteOptions{}))
		require.NoError(t, api.CoreV1().Pods(sandbox.Namespace).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &now}, meta.ListOptions{LabelSelector: "app=" + w.Name}))
	})
}

func createService(t *testing.T, name string) {
	t.Helper()
	createServiceIn(t, shared.Client(), name)
}

// createServiceIn makes a service for a workload of a cluster.
func createServiceIn(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	api := client.CoreV1().Services(sandbox.Namespace)
	_, err := api.Create(t.Context(), &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []core.ServicePort{{Name: "grpc", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = api.Delete(context.Background(), name, meta.DeleteOptions{}) // a test may have deleted it
	})
}

// drainNode marks a node as an operation does that has cordoned it and drains it now.
func drainNode(t *testing.T, node string) {
	t.Helper()
	patch(t, node, `{"spec":{"unschedulable":true},"metadata":{"annotations":{"ebb/cordoned-by":"drain-1","ebb/draining":"drain-1"}}}`)
}

func uncordon(t *testing.T, node string) {
	t.Helper()
	patch(t, node, `{"spec":{"unschedulable":false},"metadata":{"annotations":{"ebb/cordoned-by":null,"ebb/draining":null}}}`)
}

// runningPods returns those of a workload that are not terminating.
func runningPods(t *testing.T, workload string) []core.Pod {
	t.Helper()
	list, err := shared.Client().CoreV1().Pods(sandbox.Namespace).List(t.Context(), meta.ListOptions{LabelSelector: "app=" + workload})
	require.NoError(t, err)
	var stay []core.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			stay = append(stay, p)
		}
	}
	return stay
}

func patch(t *testing.T, node, what string) {
	t.Helper()
	_, err := shared.Client().CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.StrategicMergePatchType, []byte(what), meta.PatchOptions{FieldManager: cluster.FieldManager})
	require.NoError(t, err)
}

// authorizeClusters lets a client ask for the clusters that it names in its metadata; without,
// for all.
func authorizeClusters(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	if len(md.Get("clusters")) == 0 {
		return handler(srv, stream)
	}
	return handler(srv, streamWithContext{stream, endpoints.WithAuthorizer(stream.Context(), func(cluster string) error {
		if slices.Contains(strings.Split(md.Get("clusters")[0], ","), cluster) {
			return nil
		}
		return status.Errorf(codes.PermissionDenied, "not for you: %s", cluster)
	})})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s streamWithContext) Context() context.Context { return s.ctx }

// heldClient returns a client for the sandbox that sends nothing before proceed is closed.
func heldClient(t *testing.T, proceed <-chan struct{}) kubernetes.Interface {
	t.Helper()
	rest, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	require.NoError(t, err)
	rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return heldTransport{next, proceed} })
	client, err := kubernetes.NewForConfig(rest)
	require.NoError(t, err)
	return client
}

type heldTransport struct {
	next    http.RoundTripper
	proceed <-chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (h heldTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-h.proceed:
		return h.next.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}
