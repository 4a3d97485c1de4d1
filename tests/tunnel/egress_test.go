package tunnel

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ebb/internal/sandbox"
)

// bodySize is that of a long log and of a large upload, in bytes.
const bodySize = 100 << 20

// A real kube-apiserver reaches kubelets through the tunnel, in each of the three ways that
// its egress has: logs and uploads arrive whole, a thousand short requests do, and so does a
// connection that changes its protocol, as exec does.
func TestKubeAPIServersEgress(t *testing.T) {
	g := newGateway(t, "egress", 1, atOnce)
	connected(t, []*gateway{g}, "w1", "w2")
	kubelet(t, "w1", 1)
	pod := podOn(t, "w1")
	t.Cleanup(func() { useEgress(t, "proxyProtocol: Direct") })
	socket := "\n    transport: {uds: {udsName: " + shared.path("egress.sock") + "}}"
	for name, connection := range map[string]string{
		"GRPC over a socket":        "proxyProtocol: GRPC" + socket,
		"HTTPConnect over a socket": "proxyProtocol: HTTPConnect" + socket,
		"HTTPConnect by mTLS": fmt.Sprintf("proxyProtocol: HTTPConnect\n    transport: {tcp: {url: %q, tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}}",
			"https://"+g.tunnel, shared.authority.CAFile(), shared.path("apiserver.crt"), shared.path("apiserver.key")),
	} {
		t.Run(name, func(t *testing.T) {
			useEgress(t, connection)
			before := carriedBytes(t, g)
			logs, err := shared.Sandbox.Client().CoreV1().Pods(sandbox.Namespace).GetLogs(pod, &core.PodLogOptions{}).Stream(t.Context())
			require.NoError(t, err)
			got := sha256.New()
			n, err := io.Copy(got, logs)
			require.NoError(t, err)
			require.NoError(t, logs.Close())
			require.EqualValues(t, bodySize, n)
			require.Equal(t, sumOfBody(), hex.EncodeToString(got.Sum(nil)))
			require.Greater(t, carriedBytes(t, g)-before, float64(bodySize), "it went through the tunnel")
			if !shared.network.isolated() {
				return // the API server proxies to no kubelet on loopback
			}
			require.Equal(t, sumOfBody(), upload(t, "w1"))
			manyShort(t, "w1")
			upgraded(t, "w1")
			require.Greater(t, carriedBytes(t, g)-before, float64(2*bodySize), "it went through the tunnel")
		})
	}
	eventually(t, "only idle connections are left", func() bool { return g.streams()["w1"]+g.streams()["w2"] < 100 })
}

// useEgress restarts the API server with another way to the nodes.
func useEgress(t *testing.T, connection string) {
	t.Helper()
	require.NoError(t, shared.writeEgress(connection))
	require.NoError(t, shared.Sandbox.RestartAPIServer(context.WithoutCancel(t.Context()), 0))
	require.NoError(t, shared.Sandbox.RestartControllers())
}

func carriedBytes(t *testing.T, g *gateway) (n float64) {
	t.Helper()
	for _, line := range g.metrics("ebb_tunnel_bytes_total") {
		_, err := fmt.Sscanf(line[strings.LastIndex(line, " ")+1:], "%g", &n)
		require.NoError(t, err)
	}
	return n
}

// body is what the kubelet's logs consist of.
func body() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{9}), bodySize) }

var sumOfBody = sync.OnceValue(func() string {
	h := sha256.New()
	_, _ = io.Copy(h, body()) // neither fails
	return hex.EncodeToString(h.Sum(nil))
})

// kubelet serves as the kubelet of a node, the machine i, in the private network.
func kubelet(t *testing.T, node string, i int) {
	t.Helper()
	l, err := shared.network.listen(t.Context(), nodeAddress(i)+":0")
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(shared.path("gateway.crt"), shared.path("gateway.key"))
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, body()) })
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "hello ", r.URL.RawQuery) //nolint:gosec // no browser reads it
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		_, _ = io.Copy(h, r.Body) // what is missing is missing in the sum
		_, _ = fmt.Fprint(w, hex.EncodeToString(h.Sum(nil)))
	})
	mux.HandleFunc("GET /echo", echo)
	server := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, ReadHeaderTimeout: patience}
	go func() { _ = server.ServeTLS(l, "", "") }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	patch := fmt.Sprintf(`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, l.Addr().(*net.TCPAddr).Port)
	_, err = shared.Sandbox.Client().CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(patch), meta.PatchOptions{}, "status")
	require.NoError(t, err)
}

// echo changes the protocol and sends back what it gets.
func echo(w http.ResponseWriter, _ *http.Request) {
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(c, buffered)
}

func podOn(t *testing.T, node string) string {
	t.Helper()
	pods := shared.Sandbox.Client().CoreV1().Pods(sandbox.Namespace)
	p, err := pods.Create(t.Context(), &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "egress-"},
		Spec:       core.PodSpec{NodeName: node, Containers: []core.Container{{Name: "main", Image: "main"}}},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	now := int64(0)
	t.Cleanup(func() { _ = pods.Delete(context.Background(), p.Name, meta.DeleteOptions{GracePeriodSeconds: &now}) })
	return p.Name
}

// proxied is the path of the API server that leads to a kubelet.
func proxied(node, path string) string { return "/api/v1/nodes/" + node + "/proxy" + path }

func upload(t *testing.T, node string) string {
	t.Helper()
	config, client := apiClient(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+proxied(node, "/upload"), body())
	require.NoError(t, err)
	answer, err := client.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	sum, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(sum)
}

func apiClient(t *testing.T) (*rest.Config, *http.Client) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", shared.Sandbox.Kubeconfig())
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	return config, client
}

func manyShort(t *testing.T, node string) {
	t.Helper()
	config, client := apiClient(t)
	slots := make(chan struct{}, 50)
	var all sync.WaitGroup
	for i := range 1000 {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s%s?%d", config.Host, proxied(node, "/hello"), i), nil)
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			text, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err != nil || string(text) != fmt.Sprint("hello ", i) {
				t.Errorf("request %d: %q, %v", i, text, err)
			}
		})
	}
	all.Wait()
}

// upgraded changes the protocol of a connection through the API server, and talks over it.
func upgraded(t *testing.T, node string) {
	t.Helper()
	config, _ := apiClient(t)
	secure, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	at, err := url.Parse(config.Host)
	require.NoError(t, err)
	c, err := (&tls.Dialer{Config: secure}).DialContext(t.Context(), "tcp", at.Host)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", proxied(node, "/echo"), at.Host)
	require.NoError(t, err)
	var head strings.Builder
	for one := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); head.Write(one) {
		_, err := io.ReadFull(c, one)
		require.NoError(t, err, head.String())
	}
	require.Contains(t, head.String(), "101 Switching Protocols")
	for i := range 100 {
		require.NoError(t, exchange(c, fmt.Sprintf("line %d of a shell", i)))
	}
}
