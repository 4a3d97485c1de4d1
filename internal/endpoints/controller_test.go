package endpoints

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	discovery "k8s.io/api/discovery/v1"
)

// What the EndpointSlice controller has written for rollouts that change the ports of
// their pods (tests/endpoints TestNamedTargetPortsInARollout records it): old pods are in
// 10.0.0.0/24, new ones in 10.0.1.0/24, and all are ready.
func TestControllerOutput(t *testing.T) {
	web := Port{Name: "web", Number: 80}
	const old1, old2, fresh = "10.0.0.1", "10.0.0.2", "10.0.1.1"
	for name, c := range map[string]struct {
		port Port
		want map[string]uint16 // the port at each address
	}{
		"renamed":            {web, map[string]uint16{old1: 8080, old2: 8080}},
		"renumbered":         {web, map[string]uint16{old1: 8080, old2: 8080, fresh: 8081}},
		"one-of-two-renamed": {web, map[string]uint16{old1: 8080, old2: 8080}},
		"service-follows":    {web, map[string]uint16{fresh: 8080}},
		"unnamed":            {Port{Number: 80}, map[string]uint16{old1: 8080, old2: 8080}},
		"number":             {web, map[string]uint16{old1: 8080, old2: 8080, fresh: 8080}},
		"never-there":        {web, map[string]uint16{}},
		"no-ports":           {Port{Number: 8080}, map[string]uint16{}},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", "controller", name+".json"))
			require.NoError(t, err)
			var recorded []*discovery.EndpointSlice
			require.NoError(t, json.Unmarshal(data, &recorded))
			got := map[string]uint16{}
			for _, e := range ComputeEndpoints(recorded, discovery.AddressTypeIPv4, c.port, noneCordoned) {
				require.Equal(t, Healthy, e.Health)
				got[e.Address.Addr().String()] = e.Address.Port()
			}
			require.Equal(t, c.want, got)
		})
	}
}
