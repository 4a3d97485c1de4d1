package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const tunnelled = `
clusters:
  - name: edge
    kubeconfig: edge.kubeconfig
    addressing: {mode: tunnel}
    tunnel:
      address: ebb.example.com:8472
      certificateFile: worker.crt
      keyFile: /etc/worker.key
      socket: edge.sock
      allow: [{networks: [10.0.0.0/24, 10.1.0.7], ports: [22]}]
gateway:
  tls: {certificateFile: c.pem, keyFile: k.pem}
  tunnel:
    listen: :8472
    clientCAFile: ca.pem
    agents: [{commonName: agent, cluster: edge}]
    clients: [{commonName: worker, clusters: ["*"]}]
`

func TestTunnelHasDefaults(t *testing.T) {
	path := write(t, tunnelled)
	cfg, err := Load(path)
	require.NoError(t, err)
	cluster, gateway := cfg.Clusters[0].Tunnel, cfg.Gateway.Tunnel
	require.True(t, cluster.Serves())
	require.Equal(t, []string{"destHost", "default"}, cluster.Strategies)
	require.Equal(t, "ebb-tunnel", cluster.Audience)
	require.IsType(t, "", cluster.CertificateFile)
	require.NotEqual(t, "worker.crt", cluster.CertificateFile, "relative to the file")
	require.NotEqual(t, "edge.sock", cluster.Socket)
	require.NotEqual(t, "ca.pem", gateway.ClientCAFile)
	require.Equal(t, 1, gateway.Servers)
	require.Equal(t, 10*time.Second, gateway.KeepAlive.D())
	require.NoError(t, cfg.Validate(), "with its defaults it is as valid")
}

func TestTunnelFaultsAllAtOnce(t *testing.T) {
	_, err := Load(write(t, `
clusters:
  - name: a
    kubeconfig: k
    addressing: {mode: tunnel}
    tunnel:
      apiServer: true
      serviceAccount: agents
      allow: [{ports: [0]}, {networks: [10.0.0.7/24], hosts: [a b]}]
      offers: {networks: [x]}
      strategies: [nearest]
      socket: /s
  - name: b
    kubeconfig: k
    tunnel: {address: nowhere, socket: /s, strategies: [default]}
gateway:
  tunnel:
    listen: :8472
    agents: [{commonName: x, cluster: b}, {cluster: c}]
    clients: [{commonName: x, clusters: [a, d]}, {commonName: y}]
    servers: -1
    keepAlive: 10ms
    settle: -1s
`))
	var fault *ValidationError
	require.ErrorAs(t, err, &fault)
	var texts []string
	for _, f := range fault.Errors {
		texts = append(texts, f.String())
	}
	require.ElementsMatch(t, []string{
		`line 6: clusters[0].tunnel.address: is required: host:port of the gateway's tunnel, such as ebb.example.com:8472`,
		`line 8: clusters[0].tunnel.serviceAccount: must be NAMESPACE/NAME, not "agents"`,
		`line 8: clusters[0].tunnel.serviceAccount: does not go with apiServer: the tokens of the agents would be checked through the agents; let them have certificates`,
		`line 9: clusters[0].tunnel.allow[0].networks: is required, or hosts: 0.0.0.0/0 and ::/0 are everything`,
		`line 9: clusters[0].tunnel.allow[0].ports[0]: must be a port from 1 to 65535, not 0`,
		`line 9: clusters[0].tunnel.allow[1].networks[0]: must be the address of a network: 10.0.0.0/24, not 10.0.0.7/24`,
		`line 9: clusters[0].tunnel.allow[1].hosts[0]: must be the name of a host, not "a b"`,
		`line 10: clusters[0].tunnel.offers.networks[0]: must be a network such as 10.0.0.0/24, or an address, not "x"`,
		`line 11: clusters[0].tunnel.strategies[0]: must be destHost, defaultRoute or default, not "nearest"`,
		`line 15: clusters[1].tunnel.address: must be host:port, such as ebb.example.com:8472`,
		`line 15: clusters[1].tunnel.certificateFile: is required: the certificate that the gateway knows you by`,
		`line 15: clusters[1].tunnel.keyFile: is required: the key of certificateFile`,
		`line 15: clusters[1].tunnel.allow: is required with the settings of a gateway: without it nothing may be dialled`,
		`line 15: clusters[1].tunnel.socket: is that of clusters[0] already`,
		`line 18: gateway.tunnel.listen: needs gateway.tls: agents and clients check who the gateway is`,
		`line 17: gateway.tunnel.clientCAFile: is required with agents and clients: who has signed their certificates`,
		`line 19: gateway.tunnel.agents[0].cluster: "b" has no tunnel.allow`,
		`line 19: gateway.tunnel.agents[1].commonName: is required: of the certificate's subject`,
		`line 19: gateway.tunnel.agents[1].cluster: "c" is not a cluster of this file`,
		`line 20: gateway.tunnel.clients[0].commonName: "x" is that of agents[0] already`,
		`line 20: gateway.tunnel.clients[0].clusters: "d" is not a cluster of this file`,
		`line 20: gateway.tunnel.clients[1].clusters: must name clusters, or be ["*"] for all`,
		`line 21: gateway.tunnel.servers: must be 1 or more, not -1`,
		`line 22: gateway.tunnel.keepAlive: must be 1s or more, not 10ms`,
		`line 23: gateway.tunnel.settle: must not be negative`,
	}, texts)
}
