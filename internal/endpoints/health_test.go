package endpoints

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

var http = Port{Name: "http", Number: 80}

// endpointAt is an endpoint with conditions; a condition is one of t, f and - for nil, in the
// order ready, serving, terminating.
func endpointAt(address, conditions string) discovery.Endpoint {
	condition := func(i int) *bool {
		return map[byte]*bool{'t': ptr.To(true), 'f': ptr.To(false), '-': nil}[conditions[i]]
	}
	return discovery.Endpoint{
		Addresses: []string{address}, NodeName: ptr.To("n-" + address), Zone: ptr.To("z1"),
		Conditions: discovery.EndpointConditions{Ready: condition(0), Serving: condition(1), Terminating: condition(2)},
	}
}

const (
	ready       = "ttf"
	starting    = "fff"
	terminating = "ftt" // and serves
	stopped     = "fft" // terminates, and does not serve any more
)

func sliceOf(endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
	return &discovery.EndpointSlice{
		AddressType: discovery.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discovery.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
}

func noneCordoned(string) bool { return false }

// healths are by address.
func healths(endpoints []Endpoint) map[string]Health {
	by := map[string]Health{}
	for _, e := range endpoints {
		by[e.Address.Addr().String()] = e.Health
	}
	return by
}

func computeHealths(cordoned func(string) bool, all ...*discovery.EndpointSlice) map[string]Health {
	return healths(ComputeEndpoints(all, discovery.AddressTypeIPv4, http, cordoned))
}

// The table of the source document, and what follows from it.
func TestComputeEndpoints(t *testing.T) {
	const a, b, c = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	for name, one := range map[string]struct {
		endpoints []discovery.Endpoint
		want      map[string]Health
	}{
		"serves":                                {[]discovery.Endpoint{endpointAt(a, ready)}, map[string]Health{a: Healthy}},
		"starts":                                {[]discovery.Endpoint{endpointAt(a, starting)}, map[string]Health{a: Unhealthy}},
		"terminates and does not serve":         {[]discovery.Endpoint{endpointAt(a, stopped)}, map[string]Health{a: Unhealthy}},
		"terminates and serves alone":           {[]discovery.Endpoint{endpointAt(a, terminating)}, map[string]Health{a: Healthy}},
		"its successor is not ready":            {[]discovery.Endpoint{endpointAt(a, terminating), endpointAt(b, starting)}, map[string]Health{a: Healthy, b: Unhealthy}},
		"its successor serves":                  {[]discovery.Endpoint{endpointAt(a, terminating), endpointAt(b, ready)}, map[string]Health{a: Draining, b: Healthy}},
		"it has stopped and its successor is":   {[]discovery.Endpoint{endpointAt(a, stopped), endpointAt(b, ready)}, map[string]Health{a: Draining, b: Healthy}},
		"all terminate, one serves":             {[]discovery.Endpoint{endpointAt(a, terminating), endpointAt(b, stopped)}, map[string]Health{a: Healthy, b: Unhealthy}},
		"all terminate and serve":               {[]discovery.Endpoint{endpointAt(a, terminating), endpointAt(b, terminating)}, map[string]Health{a: Healthy, b: Healthy}},
		"one of each":                           {[]discovery.Endpoint{endpointAt(a, terminating), endpointAt(b, stopped), endpointAt(c, ready)}, map[string]Health{a: Draining, b: Draining, c: Healthy}},
		"a terminating one does not replace":    {[]discovery.Endpoint{endpointAt(a, stopped), endpointAt(b, terminating), endpointAt(c, starting)}, map[string]Health{a: Unhealthy, b: Healthy, c: Unhealthy}},
		"nobody":                                {nil, map[string]Health{}},
		"no condition at all is ready":          {[]discovery.Endpoint{endpointAt(a, "---")}, map[string]Health{a: Healthy}},
		"serving is ready when it is left out":  {[]discovery.Endpoint{endpointAt(a, "f--"), endpointAt(b, "t--")}, map[string]Health{a: Unhealthy, b: Healthy}},
		"ready that is left out says nothing":   {[]discovery.Endpoint{endpointAt(a, "-f-")}, map[string]Health{a: Unhealthy}},
		"ready but not serving is to be used":   {[]discovery.Endpoint{endpointAt(a, "tff")}, map[string]Health{a: Healthy}},
		"so is it when it terminates, alone":    {[]discovery.Endpoint{endpointAt(a, "tft")}, map[string]Health{a: Healthy}},
		"but not when somebody else stays":      {[]discovery.Endpoint{endpointAt(a, "tft"), endpointAt(b, "tff")}, map[string]Health{a: Draining, b: Healthy}},
		"no address is no endpoint":             {[]discovery.Endpoint{{}}, map[string]Health{}},
		"neither is one that is no IP address":  {[]discovery.Endpoint{endpointAt("web-0.example", ready)}, map[string]Health{}},
		"only the first address has a meaning":  {[]discovery.Endpoint{{Addresses: []string{a, b}}}, map[string]Health{a: Healthy}},
		"terminating alone is as good as ready": {[]discovery.Endpoint{endpointAt(a, "--t")}, map[string]Health{a: Healthy}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, one.want, computeHealths(noneCordoned, sliceOf(one.endpoints...)))
			apart := []*discovery.EndpointSlice{}
			for _, e := range one.endpoints {
				apart = append(apart, sliceOf(e))
			}
			require.Equal(t, one.want, computeHealths(noneCordoned, apart...), "each in a slice of its own")
		})
	}
}

func TestCordonedNodes(t *testing.T) {
	const a, b = "10.0.0.1", "10.0.0.2"
	leaves := func(nodes ...string) func(string) bool {
		return func(node string) bool {
			for _, n := range nodes {
				if n == node {
					return true
				}
			}
			return false
		}
	}
	both := sliceOf(endpointAt(a, ready), endpointAt(b, ready))
	require.Equal(t, map[string]Health{a: Draining, b: Healthy}, computeHealths(leaves("n-"+a), both))
	require.Equal(t, map[string]Health{a: Healthy, b: Healthy}, computeHealths(leaves("n-"+a, "n-"+b), both), "nobody stays")
	require.Equal(t, map[string]Health{a: Healthy, b: Unhealthy}, computeHealths(leaves("n-"+a), sliceOf(endpointAt(a, ready), endpointAt(b, starting))))
	nowhere := endpointAt(a, ready)
	nowhere.NodeName = nil
	require.Equal(t, map[string]Health{a: Healthy}, computeHealths(func(string) bool { return true }, sliceOf(nowhere)), "an endpoint without a node")
}

func TestZonesAreDecidedTogether(t *testing.T) {
	old, fresh := endpointAt("10.0.0.1", terminating), endpointAt("10.0.0.2", ready)
	old.Zone, fresh.Zone = ptr.To("z2"), nil
	require.Equal(t, []Endpoint{
		{Address: netip.MustParseAddrPort("10.0.0.2:8080"), Zone: "", Health: Healthy},
		{Address: netip.MustParseAddrPort("10.0.0.1:8080"), Zone: "z2", Health: Draining},
	}, ComputeEndpoints([]*discovery.EndpointSlice{sliceOf(old), sliceOf(fresh)}, discovery.AddressTypeIPv4, http, noneCordoned))
}

func TestAddressInSeveralSlicesIsOneEndpoint(t *testing.T) {
	const a = "10.0.0.1"
	for _, one := range []struct {
		better, worse string
		want          Health
	}{
		{ready, terminating, Healthy}, {ready, starting, Healthy}, {ready, stopped, Healthy}, {terminating, starting, Healthy},
		{terminating, stopped, Healthy}, {starting, stopped, Unhealthy},
	} {
		for _, order := range [][]string{{one.better, one.worse}, {one.worse, one.better}} {
			require.Equal(t, map[string]Health{a: one.want}, computeHealths(noneCordoned, sliceOf(endpointAt(a, order[0])), sliceOf(endpointAt(a, order[1]))), "%v", order)
		}
	}
	// Whose zone counts does not depend on the order either.
	z1, z2 := endpointAt(a, ready), endpointAt(a, ready)
	z2.Zone = ptr.To("z2")
	for _, order := range [][]*discovery.EndpointSlice{{sliceOf(z1), sliceOf(z2)}, {sliceOf(z2), sliceOf(z1)}} {
		require.Equal(t, "z1", ComputeEndpoints(order, discovery.AddressTypeIPv4, http, noneCordoned)[0].Zone)
	}
}

func TestPorts(t *testing.T) {
	slice := func(ports ...discovery.EndpointPort) *discovery.EndpointSlice {
		s := sliceOf(endpointAt("10.0.0.1", ready))
		s.Ports = ports
		return s
	}
	named := discovery.EndpointPort{Name: ptr.To("http"), Port: ptr.To[int32](8080)}
	for name, c := range map[string]struct {
		slice *discovery.EndpointSlice
		port  Port
		want  uint16 // 0 = no endpoint
	}{
		"by name":                         {slice(discovery.EndpointPort{Name: ptr.To("metrics"), Port: ptr.To[int32](9090)}, named), http, 8080},
		"another name":                    {slice(named), Port{Name: "https", Number: 443}, 0},
		"unnamed":                         {slice(discovery.EndpointPort{Port: ptr.To[int32](8080)}), Port{Number: 80}, 8080},
		"unnamed as the empty name":       {slice(discovery.EndpointPort{Name: ptr.To(""), Port: ptr.To[int32](8080)}), Port{Number: 80}, 8080},
		"a name is not the unnamed":       {slice(named), Port{Number: 80}, 0},
		"no number is the service's":      {slice(discovery.EndpointPort{Name: ptr.To("http")}), http, 80},
		"no port is none":                 {slice(), http, 0},
		"nor for a port without a name":   {slice(), Port{Number: 80}, 0},
		"no number anywhere":              {slice(), Port{Name: "http"}, 0},
		"a number that is none":           {slice(discovery.EndpointPort{Name: ptr.To("http"), Port: ptr.To[int32](70000)}), http, 0},
		"another protocol":                {slice(named), Port{Name: "http", Number: 80, Protocol: core.ProtocolUDP}, 0},
		"the protocol that is left out":   {slice(named), Port{Name: "http", Number: 80, Protocol: core.ProtocolTCP}, 8080},
		"one name in several protocols":   {slice(named, discovery.EndpointPort{Name: ptr.To("http"), Protocol: ptr.To(core.ProtocolUDP), Port: ptr.To[int32](53)}), Port{Name: "http", Protocol: core.ProtocolUDP}, 53},
		"slices may differ in the number": {slice(discovery.EndpointPort{Name: ptr.To("http"), Port: ptr.To[int32](8081)}), http, 8081},
	} {
		t.Run(name, func(t *testing.T) {
			found := ComputeEndpoints([]*discovery.EndpointSlice{c.slice}, discovery.AddressTypeIPv4, c.port, noneCordoned)
			if c.want == 0 {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, c.want, found[0].Address.Port())
		})
	}
}

// Each address family is decided by itself: that a pod is replaced in one does not
// help clients of the other.
func TestFamiliesAreApart(t *testing.T) {
	six := sliceOf(endpointAt("fd00::1", terminating))
	six.AddressType = discovery.AddressTypeIPv6
	names := sliceOf(endpointAt("web.example", ready))
	names.AddressType = discovery.AddressTypeFQDN
	all := []*discovery.EndpointSlice{sliceOf(endpointAt("10.0.0.1", terminating), endpointAt("10.0.0.2", ready)), six, names}
	require.Equal(t, map[string]Health{"10.0.0.1": Draining, "10.0.0.2": Healthy}, healths(ComputeEndpoints(all, discovery.AddressTypeIPv4, http, noneCordoned)))
	require.Equal(t, map[string]Health{"fd00::1": Healthy}, healths(ComputeEndpoints(all, discovery.AddressTypeIPv6, http, noneCordoned)))
	require.Empty(t, ComputeEndpoints(all, discovery.AddressTypeFQDN, http, noneCordoned), "xDS has no place for names")
}

// Whatever the endpoints, and however they are spread over slices: the same is decided,
// and the rule of SPEC's table holds for each.
func TestAnyOrderAndAnySlices(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1)) // #nosec G404 -- a test's
		endpoints, left := randomEndpoints(r)
		leaving := func(node string) bool { return left[node] }
		want := ComputeEndpoints([]*discovery.EndpointSlice{sliceOf(endpoints...)}, discovery.AddressTypeIPv4, http, leaving)
		for range 4 {
			require.Equal(t, want, ComputeEndpoints(spread(r, endpoints), discovery.AddressTypeIPv4, http, leaving), "seed %d", seed)
		}
		serves, stays, takes := false, false, false
		for _, e := range endpoints {
			s := serving(e.Conditions)
			serves = serves || s
			stays = stays || s && !ptr.Deref(e.Conditions.Terminating, false) && !left[*e.NodeName]
		}
		for _, e := range want {
			takes = takes || e.Health == Healthy
			require.False(t, e.Health == Draining && !stays, "seed %d: who drains has a replacement", seed)
		}
		require.Equal(t, serves, takes, "seed %d: when anybody serves, somebody takes traffic", seed)
	}
}

// randomEndpoints are some endpoints, of which some have one address, and the nodes
// that leave.
func randomEndpoints(r *rand.Rand) (endpoints []discovery.Endpoint, left map[string]bool) {
	left = map[string]bool{}
	const conditions = "tf-"
	for range r.IntN(7) {
		var three [3]byte
		for i := range three {
			three[i] = conditions[r.IntN(len(conditions))]
		}
		e := endpointAt(fmt.Sprintf("10.0.0.%d", r.IntN(5)), string(three[:]))
		node := fmt.Sprintf("n%d", r.IntN(3))
		e.NodeName, e.Zone = ptr.To(node), []*string{nil, ptr.To("z1"), ptr.To("z2")}[r.IntN(3)]
		left[node] = r.IntN(3) == 0
		endpoints = append(endpoints, e)
	}
	return endpoints, left
}

// spread puts endpoints into slices in another order, some of them twice.
func spread(r *rand.Rand, endpoints []discovery.Endpoint) []*discovery.EndpointSlice {
	all := []*discovery.EndpointSlice{sliceOf(), sliceOf(), sliceOf()}
	for _, i := range r.Perm(len(endpoints)) {
		for range 1 + r.IntN(2) {
			s := all[r.IntN(len(all))]
			s.Endpoints = append(s.Endpoints, endpoints[i])
		}
	}
	return all
}
