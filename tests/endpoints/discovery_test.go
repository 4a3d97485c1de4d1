package endpoints

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
// before; a node that an operation drains has its endpoints drained beforehand.
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

		drainNode(t, leaves.Spec.NodeName)
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

// A name that is unknown or forbidden is answered by itself, whatever the type: nothing
// that the stream asks for beside it is held up, then or later.
func TestNamesThatAreRefused(t *testing.T) {
	const mine = "prod/default/mine:80"
	refused := map[string]struct {
		code codes.Code
		text string
	}{
		"staging/default/mine:80": {codes.PermissionDenied, "not for you: staging"},
		"nowhere/default/mine:80": {codes.NotFound, `no cluster "nowhere"`},
		"mine":                    {codes.InvalidArgument, "<cluster>/<namespace>/<service>:<port>"},
		"*":                       {codes.InvalidArgument, "<cluster>/<namespace>/<service>:<port>"},
	}
	forBothProtocols(t, func(t *testing.T, subscribe openStream) {
		createServiceWithEndpoint(t, "mine", "10.9.0.1")
		_, address := startServer(t)
		s := subscribe(withClusters(t.Context(), "prod", "nowhere"), t, address)
		for _, kind := range []string{resource.ListenerType, resource.RouteType, resource.ClusterType, resource.EndpointType} {
			s.request(kind, append(slices.Collect(maps.Keys(refused)), mine), response{})
			told := map[string]*rpc.Status{}
			for s.resources[kind+" "+mine] == nil || len(told) < len(refused) {
				u := s.nextResponse()
				require.NotContains(t, u.removed, mine)
				maps.Copy(told, u.refused)
			}
			for name, want := range refused {
				require.Equal(t, want.code, codes.Code(told[name].GetCode()), name)
				require.Contains(t, told[name].GetMessage(), want.text)
				require.Nil(t, s.resources[kind+" "+name])
			}
		}
		s.request(resource.SecretType, []string{"another type"}, response{})
		require.Equal(t, codes.InvalidArgument, codes.Code(s.nextResponse().refused["another type"].GetCode()))
		setEndpointAddress(t, "mine", "10.9.0.2")
		s.waitForEndpoints(mine, map[string]string{"10.9.0.2": healthy})
	})
}

// The protocols have words for a resource that does not exist: missing among all
// listeners, removed. A name that comes later is told of as well.
func TestRefusedNamesDoNotExist(t *testing.T) {
	const mine, no = "prod/default/never:80", "staging/default/never:80"
	_, address := startServer(t)
	all := openSotW(withClusters(t.Context(), "prod"), t, address)
	all.request(resource.ListenerType, []string{mine}, response{})
	all.nextResponse()
	all.request(resource.ListenerType, []string{mine, no}, response{nonce: "1"})
	require.Len(t, all.nextResponse().resources, 1, "all listeners that there are")
	delta := openDelta(withClusters(t.Context(), "prod"), t, address)
	delta.request(resource.ListenerType, []string{mine}, response{})
	require.Empty(t, delta.nextResponse().removed)
	delta.request(resource.ListenerType, []string{mine, no}, response{})
	u := delta.nextResponse()
	require.Equal(t, []string{no}, u.removed)
	require.Empty(t, u.resources)
}

// A service that a stream has unsubscribed from is not followed for it any more, and told
// again when it comes back.
func TestUnsubscribe(t *testing.T) {
	const one, other = "prod/default/left:80", "prod/default/kept:80"
	forBothProtocols(t, func(t *testing.T, subscribe openStream) {
		createServiceWithEndpoint(t, "left", "10.9.0.1")
		createServiceWithEndpoint(t, "kept", "10.9.0.2")
		server, address := startServer(t)
		s := subscribe(t.Context(), t, address)
		s.request(resource.EndpointType, []string{one, other}, response{})
		var last response
		for s.endpoints(one)["10.9.0.1"] == "" || s.endpoints(other)["10.9.0.2"] == "" {
			last = s.nextResponse()
		}
		require.Equal(t, 2, server.Stats().Services)

		s.request(resource.EndpointType, []string{other}, response{nonce: last.nonce, version: last.version})
		setEndpointAddress(t, "left", "10.9.0.3")
		setEndpointAddress(t, "kept", "10.9.0.4")
		last = s.nextResponse()
		require.Equal(t, map[string]string{"10.9.0.4": healthy}, s.endpoints(other))
		require.Equal(t, map[string]string{"10.9.0.1": healthy}, s.endpoints(one), "nothing is told of what is not asked for")
		require.Equal(t, 1, server.Stats().Services)

		setEndpointAddress(t, "left", "10.9.0.1")
		s.request(resource.EndpointType, []string{one, other}, response{nonce: last.nonce, version: last.version})
		u := s.nextResponse()
		require.Contains(t, u.resources, one, "as it was before it left")
	})
}

// A delta client that subscribes again gets the resource again: it may have dropped it.
func TestSubscribeAgain(t *testing.T) {
	const name = "prod/default/again:80"
	createServiceWithEndpoint(t, "again", "10.9.0.1")
	_, address := startServer(t)
	s := openDelta(t.Context(), t, address)
	for range 2 {
		s.subscribed[resource.EndpointType] = nil // so that it is in the request
		s.request(resource.EndpointType, []string{name}, response{})
		require.Contains(t, s.nextResponse().resources, name)
	}
}

// A delta client says what it has when it comes back. What it has is not taken from it
// because the gateway that it has come to does not know the cluster yet, and not sent again
// when it is the same.
func TestDeltaClientComesBack(t *testing.T) {
	const same, changed = "prod/default/same:80", "prod/default/changed:80"
	createServiceWithEndpoint(t, "same", "10.9.0.1")
	createServiceWithEndpoint(t, "changed", "10.9.0.2")
	_, address := startServer(t)
	before := openDelta(t.Context(), t, address)
	before.request(resource.EndpointType, []string{same, changed}, response{})
	before.waitForEndpoints(same, map[string]string{"10.9.0.1": healthy})
	before.waitForEndpoints(changed, map[string]string{"10.9.0.2": healthy})
	setEndpointAddress(t, "changed", "10.9.0.3")

	proceed := make(chan struct{})
	_, address = startServerWith(t, heldClient(t, proceed))
	s := openDelta(t.Context(), t, address)
	s.initial = before.versions
	s.request(resource.EndpointType, []string{same, changed}, response{})
	s.requireNoResponse(same)
	close(proceed)
	u := s.nextResponse()
	require.Empty(t, u.removed)
	require.Equal(t, []string{changed}, slices.Collect(maps.Keys(u.resources)))
	require.Equal(t, map[string]string{"10.9.0.3": healthy}, s.endpoints(changed))
}

// The endpoint discovery service has one type only, which need not be said.
func TestEndpointServiceWithoutType(t *testing.T) {
	createServiceWithEndpoint(t, "typeless", "10.9.0.1")
	_, address := startServer(t)
	s := openDeltaEDS(t.Context(), t, address)
	s.request(resource.EndpointType, []string{"prod/default/typeless:80"}, response{})
	s.waitForEndpoints("prod/default/typeless:80", map[string]string{"10.9.0.1": healthy})
}

// A Service that has become an ExternalName has no endpoints, though nobody removes its
// slices.
func TestServiceBecomesExternalName(t *testing.T) {
	const name = "prod/default/moves:80"
	deployWorkload(t, sandbox.Workload{Name: "moves", Replicas: 1})
	_, address := startServer(t)
	s := openDelta(t.Context(), t, address)
	s.request(resource.EndpointType, []string{name}, response{})
	s.waitForEndpoints(name, map[string]string{waitForReadyPods(t, "moves", 1)[0].Status.PodIP: healthy})
	patchService(t, "moves", map[string]any{"type": "ExternalName", "externalName": "moved.example.com", "clusterIP": nil, "clusterIPs": nil})
	s.waitForEndpoints(name, map[string]string{})
	slices, err := shared.Client().DiscoveryV1().EndpointSlices(sandbox.Namespace).List(t.Context(), meta.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=moves"})
	require.NoError(t, err)
	require.NotEmpty(t, slices.Items, "the controller has left them")
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
