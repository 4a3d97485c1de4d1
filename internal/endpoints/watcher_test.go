package endpoints

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
)

func TestServicePort(t *testing.T) {
	web := &core.Service{Spec: core.ServiceSpec{Ports: []core.ServicePort{
		{Name: "http", Port: 80}, {Name: "8080", Port: 81}, {Name: "dns", Port: 53, Protocol: core.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: core.ProtocolTCP},
		{Name: "tftp", Port: 69, Protocol: core.ProtocolUDP}, {Name: "quic", Port: 443, Protocol: core.ProtocolUDP}, {Name: "https", Port: 443},
	}}}
	headless := &core.Service{Spec: core.ServiceSpec{ClusterIP: core.ClusterIPNone}}
	for _, c := range []struct {
		service *core.Service
		text    string
		want    Port
		ok      bool
	}{
		{web, "80", Port{Name: "http", Number: 80}, true},
		{web, "http", Port{Name: "http", Number: 80}, true},
		{web, "8080", Port{Name: "8080", Number: 81}, true},
		{web, "53", Port{Name: "dns-tcp", Number: 53, Protocol: core.ProtocolTCP}, true},
		{web, "dns", Port{Name: "dns", Number: 53, Protocol: core.ProtocolUDP}, true},
		{web, "69", Port{Name: "tftp", Number: 69, Protocol: core.ProtocolUDP}, true},
		{web, "443", Port{Name: "https", Number: 443}, true}, // TCP is the API's default
		{web, "dns-tcp", Port{Name: "dns-tcp", Number: 53, Protocol: core.ProtocolTCP}, true},
		{web, "444", Port{Number: 444}, false},
		{web, "http3", Port{}, false},
		{headless, "5432", Port{Number: 5432}, true},
		{headless, "postgres", Port{}, false},
	} {
		got, ok := servicePort(c.service, c.text)
		require.Equal(t, c.ok, ok, c.text)
		require.Equal(t, c.want, got, c.text)
	}
}

func TestAddressType(t *testing.T) {
	for _, c := range []struct {
		asked    core.IPFamily
		families []core.IPFamily
		want     discovery.AddressType
	}{
		{"", []core.IPFamily{core.IPv6Protocol, core.IPv4Protocol}, discovery.AddressTypeIPv6},
		{"", nil, discovery.AddressTypeIPv4},
		{core.IPv4Protocol, []core.IPFamily{core.IPv6Protocol}, discovery.AddressTypeIPv4},
		{core.IPv6Protocol, nil, discovery.AddressTypeIPv6},
	} {
		require.Equal(t, c.want, ResourceName{Family: c.asked}.addressType(&core.Service{Spec: core.ServiceSpec{IPFamilies: c.families}}))
	}
}

// Only the drain of the operation that has cordoned a node says that its endpoints will go,
// also when the fields' managers are dropped that tell whose the cordon is.
func TestDrainingNodes(t *testing.T) {
	const byKubectl = "kubectl-cordon"
	for name, c := range map[string]struct {
		unschedulable     bool
		cordoned, drained string // the marks
		manager           string // of the field; "" = Ebb
		want              bool
	}{
		"its drain has begun":               {unschedulable: true, cordoned: "drain-1", drained: "drain-1", want: true},
		"cordoned, its drain comes later":   {unschedulable: true, cordoned: "drain-1"},
		"cordoned by a person":              {unschedulable: true},
		"uncordoned by a person":            {cordoned: "drain-1", drained: "drain-1"},
		"and cordoned by a person again":    {unschedulable: true, cordoned: "drain-1", drained: "drain-1", manager: byKubectl},
		"and cordoned by another operation": {unschedulable: true, cordoned: "drain-2", drained: "drain-1"},
		"schedulable":                       {},
	} {
		n := &core.Node{Spec: core.NodeSpec{Unschedulable: c.unschedulable}, ObjectMeta: meta.ObjectMeta{Name: "w1", Annotations: map[string]string{}}}
		if c.cordoned != "" {
			n.Annotations["ebb/cordoned-by"] = c.cordoned
		}
		if c.drained != "" {
			n.Annotations["ebb/draining"] = c.drained
		}
		if c.manager != "" {
			n.ManagedFields = []meta.ManagedFieldsEntry{{Manager: c.manager, FieldsV1: meta.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)}}
		}
		for range 2 { // the second changes nothing
			transformNode(n)
			require.Equal(t, c.want, cluster.DrainedBy(n) != "", name)
			require.Nil(t, n.ManagedFields)
		}
	}
}

// Streams that were opened at one moment do not end at one.
func TestStreamAge(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 40 * time.Second, 0.5: 35 * time.Second, 0.999999: 30 * time.Second} {
		require.Equal(t, want, streamAge(40*time.Second, random).Round(time.Millisecond))
	}
}

func TestRoutingResources(t *testing.T) {
	resources, err := routingResources("prod/default/web:80")
	require.NoError(t, err)
	require.Len(t, resources, len(resourceTypes)-1)
	for kind, r := range resources {
		require.NoError(t, r.(interface{ ValidateAll() error }).ValidateAll(), kind)
	}
}
