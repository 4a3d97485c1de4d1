package endpoints

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ebb/internal/sandbox"
)

const (
	healthy   = "HEALTHY"
	draining  = "DRAINING"
	unhealthy = "UNHEALTHY"
)

// openStream opens a stream of either kind.
type openStream func(context.Context, *testing.T, string, ...grpc.DialOption) *xdsClient

// forBothProtocols runs a test with either kind of stream.
func forBothProtocols(t *testing.T, test func(t *testing.T, subscribe openStream)) {
	t.Helper()
	t.Run("state of the world", func(t *testing.T) { test(t, openSotW) })
	t.Run("delta", func(t *testing.T) { test(t, openDelta) })
}

// A pod that is evicted drains from the moment that its successor is ready, and not
// before; a node that an operation cordons has its endpoints drained beforehand.
func TestPodsThatAreReplaced(t *testing.T) {
	forBothProtocols(t, func(t *testing.T, subscribe openStream) {
		deployWorkload(t, sandbox.Workload{Name: "web", Replicas: 2, Spread: true, Annotations: map[string]string{"sandbox.ebb/delete-delay": "6s"}})
		_, address := startServer(t)
		s := subscribe(t.Context(), t, address)
		const name = "prod/default/web:80"
		s.request(resource.EndpointType, []string{name}, response{})
		two := runningPods(t, "web")
		leaves, stays := two[0], two[1]
		s.waitForEndpoints(name, map[string]string{leaves.Status.PodIP: healthy, stays.Status.PodIP: healthy})

		cordon(t, leaves.Spec.NodeName)
		defer uncordon(t, leaves.Spec.NodeName)
		s.waitForEndpoints(name, map[string]string{leaves.Status.PodIP: draining, stays.Status.PodIP: healthy})
		uncordon(t, leaves.Spec.NodeName)
		s.waitForEndpoints(name, map[string]string{leaves.Status.PodIP: healthy, stays.Status.PodIP: healthy})

		for _, p := range two { // both at once: until a successor is ready, they serve
			require.NoError(t, shared.Client().CoreV1().Pods(sandbox.Namespace).Delete(t.Context(), p.Name, meta.DeleteOptions{}))
		}
		for {
			told := s.endpoints(name)
			old := []string{told[leaves.Status.PodIP], told[stays.Status.PodIP]}
			fresh := 0
			for _, health := range told {
				if health == healthy {
					fresh++
				}
			}
			require.NotZero(t, fresh, "there is always somebody for new traffic: %v", told)
			if old[0] == "" && old[1] == "" {
				break
			}
			s.nextResponse()
		}
		require.Len(t, s.endpoints(name), 2)
	})
}

func TestOneServiceAmongMany(t *testing.T) {
	forBothProtocols(t, func(t *testing.T, subscribe openStream) {
		const all = 300
		for i := range all {
			createServiceWithEndpoint(t, fmt.Sprintf("many-%d", i), fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250))
		}
		server, address := startServer(t)
		one, other := subscribe(t.Context(), t, address), subscribe(t.Context(), t, address)
		one.request(resource.EndpointType, []string{"prod/default/many-7:80"}, response{})
		one.waitForEndpoints("prod/default/many-7:80", map[string]string{"10.9.0.8": healthy})
		names := []string{"prod/default/many-8:80", "prod/default/many-9:grpc"}
		other.request(resource.EndpointType, names, response{})
		other.waitForEndpoints(names[0], map[string]string{"10.9.0.9": healthy})
		other.waitForEndpoints(names[1], map[string]string{"10.9.0.10": healthy})
		require.Equal(t, 3, server.Stats().Services)

		setEndpointAddress(t, "many-9", "10.9.9.9")
		u := other.nextResponse()
		require.Len(t, u.resources, 1, "what has not changed is not sent")
		require.Equal(t, map[string]string{"10.9.9.9": healthy}, other.endpoints(names[1]))
		setEndpointAddress(t, "many-10", "10.9.9.10") // nobody asks for it
		annotateSlice(t, "many-7")                    // nothing that a client is told changes
		setEndpointAddress(t, "many-8", "10.9.9.8")
		other.waitForEndpoints(names[0], map[string]string{"10.9.9.8": healthy})
		one.requireNoResponse("prod/default/many-7:80")
	})
}

// What is deleted is told as empty, and so is what never was.
func TestServiceThatIsNotThere(t *testing.T) {
	forBothProtocols(t, func(t *testing.T, subscribe openStream) {
		createServiceWithEndpoint(t, "short", "10.9.0.1")
		_, address := startServer(t)
		s := subscribe(t.Context(), t, address)
		names := []string{"prod/default/short:80", "prod/default/never:80", "prod/default/short:81"}
		s.request(resource.EndpointType, names, response{})
		s.waitForEndpoints(names[0], map[string]string{"10.9.0.1": healthy})
		s.waitForEndpoints(names[1], map[string]string{})
		s.waitForEndpoints(names[2], map[string]string{})
		require.NoError(t, shared.Client().CoreV1().Services(sandbox.Namespace).Delete(t.Context(), "short", meta.DeleteOptions{}))
		s.waitForEndpoints(names[0], map[string]string{})
	})
}

func TestUpdatesSurviveTheAPIServer(t *testing.T) {
	createServiceWithEndpoint(t, "steady", "10.9.0.1")
	_, address := startServer(t)
	s := openDelta(t.Context(), t, address)
	const name = "prod/default/steady:80"
	s.request(resource.EndpointType, []string{name}, response{})
	s.waitForEndpoints(name, map[string]string{"10.9.0.1": healthy})
	require.NoError(t, shared.RestartAPIServer(t.Context(), 3*time.Second))
	setEndpointAddress(t, "steady", "10.9.0.2")
	u := s.nextResponse()
	require.Equal(t, map[string]string{"10.9.0.2": healthy}, s.endpoints(name), "the first that comes is the change: nothing was forgotten meanwhile")
	require.Len(t, u.resources, 1)
}

func TestRequestsThatAreRefused(t *testing.T) {
	createServiceWithEndpoint(t, "mine", "10.9.0.1")
	_, address := startServer(t)
	for name, c := range map[string]struct {
		asked, kind string
		code        codes.Code
		text        string
	}{
		"another cluster":  {"staging/default/mine:80", resource.EndpointType, codes.PermissionDenied, "not for you: staging"},
		"unknown cluster":  {"nowhere/default/mine:80", resource.EndpointType, codes.NotFound, `no cluster "nowhere"`},
		"no name":          {"mine", resource.EndpointType, codes.InvalidArgument, "<cluster>/<namespace>/<service>:<port>"},
		"everything":       {"*", resource.EndpointType, codes.InvalidArgument, "<cluster>/<namespace>/<service>:<port>"},
		"another resource": {"prod/default/mine:80", resource.SecretType, codes.InvalidArgument, "not served here"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, subscribe := range []openStream{openSotW, openDelta} {
				s := subscribe(withClusters(t.Context(), "prod", "nowhere"), t, address)
				s.request(c.kind, []string{c.asked}, response{})
				err := <-s.streamErr
				require.Equal(t, c.code, status.Code(err))
				require.ErrorContains(t, err, c.text)
			}
		})
	}
	s := openSotW(withClusters(t.Context(), "prod"), t, address)
	s.request(resource.EndpointType, []string{"prod/default/mine:80"}, response{})
	s.waitForEndpoints("prod/default/mine:80", map[string]string{"10.9.0.1": healthy})
}

// Envoy asks for all clusters unless it is told not to: it gets none, and no stream is
// lost over it.
func TestRequestWithoutNames(t *testing.T) {
	createServiceWithEndpoint(t, "some", "10.9.0.1")
	_, address := startServer(t)
	s := openSotW(t.Context(), t, address)
	s.request(resource.ClusterType, nil, response{})
	require.Empty(t, s.nextResponse().resources)
	s.request(resource.EndpointType, []string{"prod/default/some:80"}, response{})
	s.waitForEndpoints("prod/default/some:80", map[string]string{"10.9.0.1": healthy})
}

// createServiceWithEndpoint makes a service whose only endpoint is written by hand.
func createServiceWithEndpoint(t *testing.T, name, address string) {
	t.Helper()
	api := shared.Client()
	_, err := api.CoreV1().Services(sandbox.Namespace).Create(t.Context(), &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec:       core.ServiceSpec{ClusterIP: core.ClusterIPNone, Ports: []core.ServicePort{{Name: "grpc", Port: 80}}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	_, err = api.DiscoveryV1().EndpointSlices(sandbox.Namespace).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("grpc"), Port: ptr.To[int32](8080)}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = api.CoreV1().Services(sandbox.Namespace).Delete(context.Background(), name, meta.DeleteOptions{})            // a test may have,
		_ = api.DiscoveryV1().EndpointSlices(sandbox.Namespace).Delete(context.Background(), name, meta.DeleteOptions{}) // or a controller
	})
}

func setEndpointAddress(t *testing.T, name, address string) {
	t.Helper()
	updateSlice(t, name, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{address} })
}

func annotateSlice(t *testing.T, name string) {
	t.Helper()
	updateSlice(t, name, func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"touched": "yes"} })
}

func updateSlice(t *testing.T, name string, change func(*discoveryv1.EndpointSlice)) {
	t.Helper()
	api := shared.Client().DiscoveryV1().EndpointSlices(sandbox.Namespace)
	slice, err := api.Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	change(slice)
	_, err = api.Update(t.Context(), slice, meta.UpdateOptions{})
	require.NoError(t, err)
}
