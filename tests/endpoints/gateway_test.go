package endpoints

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/deployments"
	"ebb/internal/api/auth"
	"ebb/internal/embedded"
	"ebb/internal/freeport"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// certificateAuthority signs certificates for servers and clients of a test.
type certificateAuthority struct {
	t      *testing.T
	dir    string
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	serial int64
}

func newCertificateAuthority(t *testing.T, name string) *certificateAuthority {
	t.Helper()
	a := &certificateAuthority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.writePEM("ca.crt", "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *certificateAuthority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	a.serial++
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(a.serial), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(a.t, err)
	return cert, key
}

func (a *certificateAuthority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *certificateAuthority) writePEM(name, kind string, raw []byte) {
	a.t.Helper()
	require.NoError(a.t, os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600))
}

// issue writes name.crt and name.key, good for a server on loopback and for a client.
func (a *certificateAuthority) issue(name string) {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	a.writePEM(name+".crt", "CERTIFICATE", cert.Raw)
	a.writePEM(name+".key", "EC PRIVATE KEY", secret)
}

// clientCredentials returns how somebody dials who trusts the authority, and shows a certificate of
// another one; "" = none.
func (a *certificateAuthority) clientCredentials(from *certificateAuthority, name string) grpc.DialOption {
	a.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	c := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(from.path(name+".crt"), from.path(name+".key"))
		require.NoError(a.t, err)
		// Also to a server that would not accept it.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(c))
}

// gateway is an ebb-gateway with the rights of deployments/ in the sandbox.
type gateway struct {
	t          *testing.T
	dir        string
	ca         *certificateAuthority
	token      string // of a viewer of prod
	adminToken string // of a viewer of all clusters
	tokens     []tokenEntry
	xdsAddress string // where it serves endpoints
	apiAddress string // where everything else
	env        []string
	process    *testbed.Process
}

// newGateway starts an engine and a gateway with more lines in its section of endpoints.
func newGateway(t *testing.T, more ...string) *gateway {
	t.Helper()
	g := &gateway{t: t, dir: t.TempDir(), ca: newCertificateAuthority(t, "the lab's"), xdsAddress: freeAddress(t), apiAddress: freeAddress(t)}
	engine, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(g.dir, "engine"), UIPort: -1, Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(engine.Stop)
	g.env = append(os.Environ(), "TEMPORAL_ADDRESS="+engine.Address(), "TEMPORAL_NAMESPACE="+engine.Namespace())
	require.NoError(t, testbed.WriteKubeconfig(t.Context(), shared, "ebb-gateway", deployments.GatewayRBAC, filepath.Join(g.dir, "kubeconfig")))
	g.token, g.adminToken = g.addToken("vera", "prod"), g.addToken("prometheus", auth.AllClusters)
	g.ca.issue("gateway")
	g.ca.issue("envoy.prod")
	g.ca.issue("envoy.dev")
	g.ca.issue("stranger")
	g.configure(more...)
	g.start()
	return g
}

// addToken adds a token of a viewer of a cluster to the tokens file.
func (g *gateway) addToken(name, cluster string) string {
	g.t.Helper()
	token, hash, err := auth.NewToken()
	require.NoError(g.t, err)
	g.tokens = append(g.tokens, tokenEntry{name, hash, cluster})
	g.writeTokens()
	return token
}

// tokenEntry is what the tokens file has of a token.
type tokenEntry struct{ name, hash, cluster string }

func (g *gateway) writeTokens() {
	g.t.Helper()
	text := "tokens:\n"
	for _, one := range g.tokens {
		line, err := auth.TokenFileEntry(one.name, one.hash, auth.Viewer, []string{one.cluster})
		require.NoError(g.t, err)
		text += line + "\n"
	}
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, "tokens.yaml"), []byte(text), 0o600))
}

// configure writes ebb.yaml.
func (g *gateway) configure(more ...string) {
	g.t.Helper()
	text := fmt.Sprintf(`
clusters:
  - {name: prod, kubeconfig: kubeconfig}
  - {name: dev, kubeconfig: kubeconfig}
gateway:
  listen: %s
  tokensFile: tokens.yaml
  tls: {certificateFile: %s, keyFile: %s}
  gracePeriod: 10s
  lameDuck: 0s
  endpoints:
    listen: %s
    clientCAFile: %s
    clients:
      - {commonName: envoy.prod, clusters: [prod]}
      - {commonName: envoy.dev, clusters: [dev]}
`, g.apiAddress, g.ca.path("gateway.crt"), g.ca.path("gateway.key"), g.xdsAddress, g.ca.path("ca.crt"))
	for _, line := range more {
		text += "    " + line + "\n"
	}
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, "ebb.yaml"), []byte(text), 0o600))
}

// replica starts another gateway with the same settings, engine and tokens, which serves
// endpoints at that address.
func (g *gateway) replica(xdsAddress string, more ...string) *gateway {
	g.t.Helper()
	other := *g
	other.dir, other.xdsAddress, other.apiAddress = g.t.TempDir(), xdsAddress, freeAddress(g.t)
	data, err := os.ReadFile(filepath.Join(g.dir, "kubeconfig"))
	require.NoError(g.t, err)
	require.NoError(g.t, os.WriteFile(filepath.Join(other.dir, "kubeconfig"), data, 0o600))
	other.writeTokens()
	other.configure(more...)
	other.start()
	return &other
}

// freeAddress returns a loopback address that nobody uses now, and that is kept for nobody else.
func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := freeport.One(t.Context(), "127.0.0.1")
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// start starts the process and returns when it accepts connections.
func (g *gateway) start() {
	g.t.Helper()
	binary, err := testbed.Binary("ebb-gateway")
	require.NoError(g.t, err)
	process, err := testbed.StartProcess(g.t.Context(), filepath.Join(g.dir, "gateway.log"), g.env, binary, "--config", filepath.Join(g.dir, "ebb.yaml"))
	require.NoError(g.t, err)
	g.process = process
	g.t.Cleanup(func() {
		_ = process.Kill() // whatever state the test left it in
		if log, err := os.ReadFile(process.Log); g.t.Failed() && err == nil {
			g.t.Logf("the gateway's log:\n%s", log)
		}
	})
	ctx, cancel := context.WithTimeout(g.t.Context(), waitTimeout)
	defer cancel()
	require.NoError(g.t, testbed.Poll(ctx, func() (bool, error) {
		select {
		case <-process.Done():
			return false, errors.New("the gateway has ended")
		default:
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", g.xdsAddress)
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	}))
}

func TestAuthentication(t *testing.T) {
	createServiceWithEndpoint(t, "guarded", "10.9.0.1")
	g := newGateway(t)
	other := newCertificateAuthority(t, "somebody else's")
	other.issue("envoy.prod")
	const prod, dev = "prod/default/guarded:80", "dev/default/guarded:80"
	for name, c := range map[string]struct {
		from  *certificateAuthority
		cert  string
		token string
		asked string
		code  codes.Code // OK = it is told
		text  string
	}{
		"certificate":               {cert: "envoy.prod", asked: prod},
		"of another cluster":        {cert: "envoy.dev", asked: prod, code: codes.PermissionDenied, text: `envoy.dev does not have the role viewer on cluster "prod"`},
		"certificate of a stranger": {cert: "stranger", asked: prod, code: codes.Unauthenticated, text: "gateway.endpoints.clients"},
		"by another authority":      {from: other, cert: "envoy.prod", asked: prod, code: codes.Unavailable},
		"token":                     {token: g.token, asked: prod},
		"token for another cluster": {token: g.token, asked: dev, code: codes.PermissionDenied, text: `vera does not have the role viewer on cluster "dev"`},
		"wrong token":               {token: "ebb_no", asked: prod, code: codes.Unauthenticated, text: "not known"},
		"nothing":                   {asked: prod, code: codes.Unauthenticated, text: "send a token"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.from == nil {
				c.from = g.ca
			}
			ctx := t.Context()
			if c.token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
			}
			s := openSotW(ctx, t, g.xdsAddress, g.ca.clientCredentials(c.from, c.cert))
			s.request(resource.EndpointType, []string{c.asked}, response{})
			if c.code == codes.OK {
				s.waitForEndpoints(c.asked, map[string]string{"10.9.0.1": healthy})
				return
			}
			err := s.refusal(c.asked)
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.ErrorContains(t, err, c.text)
		})
	}
	log, err := os.ReadFile(filepath.Join(g.dir, "gateway.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), g.token)
	for _, audit := range []string{
		`"principal":"certificate:envoy.prod","code":"OK"`, `"principal":"token:vera","code":"OK"`,
		`"principal":"certificate:envoy.dev","cluster":"prod","code":"PermissionDenied"`, `"principal":"token:vera","cluster":"dev","code":"PermissionDenied"`,
		`"code":"Unauthenticated","reason":"send a token`,
	} {
		require.Contains(t, string(log), audit)
	}
	g.requireStrangersAreLimited()
	require.Contains(t, g.metrics(), "ebb_endpoints_refusals_total 0")
	require.Contains(t, g.metrics(), "ebb_endpoints_clusters 1")
}

// requireStrangersAreLimited opens streams without a token until it is told that these
// are too many, and then one with a token, which is none of them.
func (g *gateway) requireStrangersAreLimited() {
	g.t.Helper()
	const asked = "prod/default/guarded:80"
	ask := func(ctx context.Context) *xdsClient {
		s := openSotW(ctx, g.t, g.xdsAddress, g.ca.clientCredentials(g.ca, ""))
		s.request(resource.EndpointType, []string{asked}, response{})
		return s
	}
	limited := false
	for range 4 * auth.FailuresBurst {
		if limited = status.Code(ask(g.t.Context()).refusal(asked)) == codes.ResourceExhausted; limited {
			break
		}
	}
	require.True(g.t, limited)
	good := ask(metadata.AppendToOutgoingContext(g.t.Context(), "authorization", "Bearer "+g.token))
	good.waitForEndpoints(asked, map[string]string{"10.9.0.1": healthy})
}

func (g *gateway) metrics() string {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "https://"+g.apiAddress+"/metrics", nil)
	require.NoError(g.t, err)
	r.Header.Set("Authorization", "Bearer "+g.adminToken)
	pool := x509.NewCertPool()
	pool.AddCert(g.ca.cert)
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer browser.CloseIdleConnections()
	answer, err := browser.Do(r)
	require.NoError(g.t, err)
	defer func() { require.NoError(g.t, answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(g.t, err)
	require.Equal(g.t, http.StatusOK, answer.StatusCode, "%s", body)
	return string(body)
}

// The gateway ends on SIGTERM and comes back while a service is used and its pod is
// replaced: no call fails, and its successor tells what has changed.
func TestGatewayIsRestartedUnderTraffic(t *testing.T) {
	deployWorkload(t, sandbox.Workload{Name: "kept", Replicas: 1, Annotations: map[string]string{"sandbox.ebb/delete-delay": "8s"}})
	f := servePods(t, "kept")
	f.waitFor(func(at map[string]string) bool { return len(at) == 1 })
	g := newGateway(t)
	u, stop := startTraffic(t, f, g.xdsAddress, "prod/default/kept:80", fmt.Sprintf(
		`{"type": "tls", "config": {"ca_certificate_file": %q, "certificate_file": %q, "private_key_file": %q}}`,
		g.ca.path("ca.crt"), g.ca.path("envoy.prod.crt"), g.ca.path("envoy.prod.key")))
	began := time.Now()
	require.NoError(t, g.process.Stop())
	require.Less(t, time.Since(began), 9*time.Second, "streams are ended, not cut when the grace is over")
	calls := u.callCount()
	require.Eventually(t, func() bool { return u.callCount() > calls+100 }, waitTimeout, 10*time.Millisecond, "clients keep what they were told")
	g.start()
	pod := runningPods(t, "kept")[0]
	require.NoError(t, shared.Client().CoreV1().Pods(sandbox.Namespace).EvictV1(t.Context(), &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: pod.Name}}))
	f.waitFor(func(at map[string]string) bool { _, there := at[pod.Status.PodIP]; return !there && len(at) == 1 })
	stop()
	require.Empty(t, u.failed, "of %d calls", u.calls)
}
