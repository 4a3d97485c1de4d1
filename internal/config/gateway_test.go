package config

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGatewayNeedsNoClusters(t *testing.T) {
	path := write(t, "gateway:\n  tokensFile: tokens.yaml\n  tls: {certificateFile: ~/c.pem, keyFile: /k.pem}\n  gracePeriod: 20s\n")
	t.Setenv("HOME", "/home/me")
	cfg, err := Load(path)
	require.NoError(t, err)
	require.Empty(t, cfg.Clusters)
	lameDuck := Duration(5 * time.Second)
	require.Equal(t, Gateway{
		Listen: DefaultListen, TokensFile: filepath.Join(filepath.Dir(path), "tokens.yaml"),
		TLS:  TLS{CertificateFile: "/home/me/c.pem", KeyFile: "/k.pem"},
		OIDC: OIDC{UsernameClaim: "sub"}, GracePeriod: Duration(20 * time.Second), LameDuck: &lameDuck,
		RateLimit: RateLimit{PerSecond: 50, Burst: 300}, MaxStreams: 1000, MaxStreamsPerPrincipal: 500,
	}, cfg.Gateway)
}

func TestGatewayFaultsAllAtOnce(t *testing.T) {
	_, err := Load(write(t, minimal(`
gateway:
  listen: localhost
  tls: {keyFile: /k.pem}
  tokensFile: ~other/tokens
  oidc:
    issuer: http://login.example.com
    bindings:
      - {claim: groups, value: a, role: oprator, clusters: [prod]}
      - {role: admin}
  gracePeriod: 1s
  lameDuck: 1m
  rateLimit: {perSecond: -1, burst: -1}
  maxStreams: -1
  port: 1
  endpoints:
    listen: localhost
    clientCAFile: /ca.pem
`)))
	var fault *ValidationError
	require.ErrorAs(t, err, &fault)
	var texts []string
	for _, f := range fault.Errors {
		texts = append(texts, f.String())
	}
	require.Equal(t, []string{
		"line 6: gateway.listen: must be host:port, such as 127.0.0.1:8470 or :8470",
		"line 7: gateway.tls: needs certificateFile and keyFile, both",
		"line 8: gateway.tokensFile: ~user is not expanded: write the full path",
		"line 9: gateway.oidc.audience: is required: what the tokens have in aud, so that one for somebody else is worth nothing here",
		"line 10: gateway.oidc.issuer: must be https; http only to this machine itself",
		`line 12: gateway.oidc.bindings[0].role: must be viewer or operator or admin, not "oprator", did you mean "operator"?`,
		"line 13: gateway.oidc.bindings[1].claim: is required: the claim to look at, such as groups",
		"line 13: gateway.oidc.bindings[1].value: is required: what has to be in the claim",
		`line 13: gateway.oidc.bindings[1].clusters: must name clusters, or be ["*"] for all`,
		"line 14: gateway.gracePeriod: must be 3s or more, not 1s",
		"line 15: gateway.lameDuck: must be 0s or more and less than gracePeriod, not 1m",
		"line 16: gateway.rateLimit.perSecond: must be 1 or more, not -1",
		"line 16: gateway.rateLimit.burst: must be 1 or more, not -1",
		"line 17: gateway.maxStreams: must be 1 or more, not -1",
		"line 18: gateway.port: unknown key; known here: listen, tls, tokensFile, oidc, gracePeriod, lameDuck, rateLimit, maxStreams, maxStreamsPerPrincipal, endpoints, tunnel",
		"line 19: gateway.endpoints.clients: at least one is required with clientCAFile: without it no certificate may ask for anything",
		"line 20: gateway.endpoints.listen: must be host:port, such as 127.0.0.1:8471 or :8471",
		"line 21: gateway.endpoints.clientCAFile: needs gateway.tls: clients show no certificate to a server that has none",
	}, texts)
}

func TestEndpointsFaults(t *testing.T) {
	for text, fault := range map[string]string{
		"{clientCAFile: /ca.pem}":                                                    "gateway.endpoints.listen: is required",
		"{maxStreamAge: 1h}":                                                         "gateway.endpoints.listen: is required",
		"{listen: ':8471', maxStreamAge: 10ms}":                                      "gateway.endpoints.maxStreamAge: must be 1s or more, not 10ms",
		"{listen: ':8471', clients: [{commonName: a, clusters: [prod]}]}":            "gateway.endpoints.clientCAFile: is required with clients",
		"{listen: ':8471', clientCAFile: /ca.pem, clients: [{clusters: [prod]}]}":    "gateway.endpoints.clients[0].commonName: is required",
		"{listen: ':8471', clientCAFile: /ca.pem, clients: [{commonName: envoy}]}":   "gateway.endpoints.clients[0].clusters: must name clusters",
		"{listen: ':8471', clientCAFile: ~other/ca, clients: [{commonName: envoy}]}": "gateway.endpoints.clientCAFile: ~user is not expanded",
	} {
		_, err := Load(write(t, "gateway: {tls: {certificateFile: /c, keyFile: /k}, endpoints: "+text+"}\n"))
		require.ErrorContains(t, err, fault)
	}
	_, err := Load(write(t, "gateway: {endpoints: {listen: ':8471', clientCAFile: /ca.pem, clients: [{commonName: a, clusters: [prod]}]}}\n"))
	require.ErrorContains(t, err, "gateway.endpoints.clientCAFile: needs gateway.tls")
}

func TestOIDCWithoutIssuer(t *testing.T) {
	_, err := Load(write(t, "gateway: {oidc: {audience: ebb}}\n"))
	require.ErrorContains(t, err, "gateway.oidc.issuer: is required")
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example.com": false,
	} {
		require.Equal(t, want, IsLoopback(host), host)
	}
}
