package endpoints

import (
	"net/netip"
	"testing"

	configcore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

func TestLoadAssignment(t *testing.T) {
	one := func(address, zone string, h Health) Endpoint {
		return Endpoint{Address: netip.MustParseAddrPort(address), Zone: zone, Health: h}
	}
	a := loadAssignment("prod/default/web:http", core.ProtocolTCP, []Endpoint{
		one("10.0.0.9:8080", "", Draining),
		one("10.0.0.1:8080", "z1", Healthy), one("10.0.0.2:8080", "z1", Healthy), one("10.0.0.3:8080", "z1", Unhealthy),
		one("10.0.0.4:8080", "z2", Healthy),
	})
	require.NoError(t, a.ValidateAll())
	require.Equal(t, "prod/default/web:http", a.GetClusterName())
	type locality struct {
		zone   string
		weight uint32
		health []configcore.HealthStatus
	}
	var got []locality
	for _, l := range a.GetEndpoints() {
		require.NotNil(t, l.GetLocality(), "a client takes a locality that is missing for a fault")
		one := locality{zone: l.GetLocality().GetZone(), weight: l.GetLoadBalancingWeight().GetValue()}
		for _, e := range l.GetLbEndpoints() {
			one.health = append(one.health, e.GetHealthStatus())
		}
		got = append(got, one)
	}
	healthy, draining, unhealthy := configcore.HealthStatus_HEALTHY, configcore.HealthStatus_DRAINING, configcore.HealthStatus_UNHEALTHY
	require.Equal(t, []locality{
		{"", 1, []configcore.HealthStatus{draining}},
		{"z1", 2, []configcore.HealthStatus{healthy, healthy, unhealthy}},
		{"z2", 1, []configcore.HealthStatus{healthy}},
	}, got)
	address := a.GetEndpoints()[1].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	require.Equal(t, "10.0.0.1", address.GetAddress())
	require.EqualValues(t, 8080, address.GetPortValue())
	require.Equal(t, configcore.SocketAddress_TCP, address.GetProtocol())

	udp := loadAssignment("prod/dns/dns:53", core.ProtocolUDP, []Endpoint{one("[fd00::1]:53", "", Healthy)})
	require.NoError(t, udp.ValidateAll())
	address = udp.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	require.Equal(t, configcore.SocketAddress_UDP, address.GetProtocol())
	require.Equal(t, "fd00::1", address.GetAddress())

	none := loadAssignment("prod/default/web:http", "", nil)
	require.NoError(t, none.ValidateAll())
	require.Empty(t, none.GetEndpoints())
}

func TestParseResourceName(t *testing.T) {
	for text, want := range map[string]ResourceName{
		"prod/default/web:80":        {"prod", "default", "web", "80", ""},
		"Prod_1.eu/kube-system/a:b":  {"Prod_1.eu", "kube-system", "a", "b", ""},
		"prod/default/web:http/ipv6": {"prod", "default", "web", "http", core.IPv6Protocol},
		"prod/default/web:http/ipv4": {"prod", "default", "web", "http", core.IPv4Protocol},
	} {
		n, err := ParseResourceName(text)
		require.NoError(t, err)
		require.Equal(t, want, n)
		require.Equal(t, text, n.String())
	}
	for _, text := range []string{
		"", "web", "default/web:80", "prod/default/web", "prod/default/web:", "prod//web:80", "/default/web:80", "prod/default/:80",
		"prod/default/web:80/ipv5", "prod/default/web:80/", "prod/default/web:80/ipv4/x", "prod/default/Web:80", "prod/default/web:80:81", "*",
	} {
		_, err := ParseResourceName(text)
		require.ErrorContains(t, err, "<cluster>/<namespace>/<service>:<port>", text)
	}
}
