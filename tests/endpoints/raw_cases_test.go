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

// subscription opens a stream of either kind.
type subscription func(context.Context, *testing.T, string, ...grpc.DialOption) *subscriber

// both runs a test with either kind of stream.
func both(t *testing.T, test func(t *testing.T, subscribe subscription)) {
	t.Helper()
	t.Run("state of the world", func(t *testing.T) { test(t, sotw) })
	t.Run("delta", func(t *testing.T) { test(t, delta) })
}

// A pod that is evicted drains from the moment that its successor is ready, and not
// before; a node that an operation cordons has its endpoints drained beforehand.
func TestPodsThatAreReplaced(t *testing.T) {
	both(t, func(t *testing.T, subscribe subscription) {
		deploy(t, sandbox.Workload{Name: "web", Replicas: 2, Spread: true, Annotations: map[string]string{"sandbox.ebb/delete-delay": "6s"}})
		_, address := serve(t)
		s := subscribe(t.Context(), t, address)
		const name = "prod/default/web:80"
		s.ask(resource.EndpointType, []string{name}, update{})
		two := pods(t, "web")
		leaves, stays := two[0], two[1]
		s.until(name, map[string]string{leaves.Status.PodIP: healthy, stays.Status.PodIP: healthy})

		cordon(t, leaves.Spec.NodeName)
		defer uncordon(t, leaves.Spec.NodeName)
		s.until(name, map[string]string{leaves.Status.PodIP: draining, stays.Status.PodIP: healthy})
		uncordon(t, leaves.Spec.NodeName)
		s.until(name, map[string]string{leaves.Status.PodIP: healthy, stays.Status.PodIP: healthy})

		for _, p := range two { // both at once: until a successor is ready, they serve
			require.NoError(t, shared.Client().CoreV1().Pods(sandbox.Namespace).Delete(t.Context(), p.Name, meta.DeleteOptions{}))
		}
		for {
			told := s.told(name)
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
			s.next()
		}
		require.Len(t, s.told(name), 2)
	})
}

func TestOneServiceAmongMany(t *testing.T) {
	both(t, func(t *testing.T, subscribe subscription) {
		const all = 300
		for i := range all {
			publish(t, fmt.Sprintf("many-%d", i), fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250))
		}
		server, address := serve(t)
		one, other := subscribe(t.Context(), t, address), subscribe(t.Context(), t, address)
		one.ask(resource.EndpointType, []string{"prod/default/many-7:80"}, update{})
		one.until("prod/default/many-7:80", map[string]string{"10.9.0.8": healthy})
		names := []string{"prod/default/many-8:80", "prod/default/many-9:grpc"}
		other.ask(resource.EndpointType, names, update{})
		other.until(names[0], map[string]string{"10.9.0.9": healthy})
		other.until(names[1], map[string]string{"10.9.0.10": healthy})
		require.Equal(t, 3, server.Stats().Services)

		move(t, "many-9", "10.9.9.9")
		u := other.next()
		require.Len(t, u.resources, 1, "what has not changed is not sent")
		require.Equal(t, map[string]string{"10.9.9.9": healthy}, other.told(names[1]))
		move(t, "many-10", "10.9.9.10") // nobody asks for it
		touch(t, "many-7")              // nothing that a client is told changes
		move(t, "many-8", "10.9.9.8")
		other.until(names[0], map[string]string{"10.9.9.8": healthy})
		one.quiet("prod/default/many-7:80")
	})
}

// What is deleted is told as empty, and so is what never was.
func TestServiceThatIsNotThere(t *testing.T) {
	both(t, func(t *testing.T, subscribe subscription) {
		publish(t, "short", "10.9.0.1")
		_, address := serve(t)
		s := subscribe(t.Context(), t, address)
		names := []string{"prod/default/short:80", "prod/default/never:80", "prod/default/short:81"}
		s.ask(resource.EndpointType, names, update{})
		s.until(names[0], map[string]string{"10.9.0.1": healthy})
		s.until(names[1], map[string]string{})
		s.until(names[2], map[string]string{})
		require.NoError(t, shared.Client().CoreV1().Services(sandbox.Namespace).Delete(t.Context(), "short", meta.DeleteOptions{}))
		s.until(names[0], map[string]string{})
	})
}

func TestUpdatesSurviveTheAPIServer(t *testing.T) {
	publish(t, "steady", "10.9.0.1")
	_, address := serve(t)
	s := delta(t.Context(), t, address)
	const name = "prod/default/steady:80"
	s.ask(resource.EndpointType, []string{name}, update{})
	s.until(name, map[string]string{"10.9.0.1": healthy})
	require.NoError(t, shared.RestartAPIServer(t.Context(), 3*time.Second))
	move(t, "steady", "10.9.0.2")
	u := s.next()
	require.Equal(t, map[string]string{"10.9.0.2": healthy}, s.told(name), "the first that comes is the change: nothing was forgotten meanwhile")
	require.Len(t, u.resources, 1)
}

func TestWhoMayAsk(t *testing.T) {
	publish(t, "mine", "10.9.0.1")
	_, address := serve(t)
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
			for _, subscribe := range []subscription{sotw, delta} {
				s := subscribe(clusters(t.Context(), "prod", "nowhere"), t, address)
				s.ask(c.kind, []string{c.asked}, update{})
				err := <-s.ended
				require.Equal(t, c.code, status.Code(err))
				require.ErrorContains(t, err, c.text)
			}
		})
	}
	s := sotw(clusters(t.Context(), "prod"), t, address)
	s.ask(resource.EndpointType, []string{"prod/default/mine:80"}, update{})
	s.until("prod/default/mine:80", map[string]string{"10.9.0.1": healthy})
}

// Envoy asks for all clusters unless it is told not to: it gets none, and no stream is
// lost over it.
func TestAskingForNothing(t *testing.T) {
	publish(t, "some", "10.9.0.1")
	_, address := serve(t)
	s := sotw(t.Context(), t, address)
	s.ask(resource.ClusterType, nil, update{})
	require.Empty(t, s.next().resources)
	s.ask(resource.EndpointType, []string{"prod/default/some:80"}, update{})
	s.until("prod/default/some:80", map[string]string{"10.9.0.1": healthy})
}

// publish makes a service whose only endpoint is written by hand.
func publish(t *testing.T, name, address string) {
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

func move(t *testing.T, name, address string) {
	t.Helper()
	edit(t, name, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{address} })
}

func touch(t *testing.T, name string) {
	t.Helper()
	edit(t, name, func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"touched": "yes"} })
}

func edit(t *testing.T, name string, change func(*discoveryv1.EndpointSlice)) {
	t.Helper()
	api := shared.Client().DiscoveryV1().EndpointSlices(sandbox.Namespace)
	slice, err := api.Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	change(slice)
	_, err = api.Update(t.Context(), slice, meta.UpdateOptions{})
	require.NoError(t, err)
}
