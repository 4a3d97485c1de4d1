package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
	"ebb/internal/tunnel/dialer"
	"ebb/internal/tunnel/tunneltest"
)

// tunnelBed is the tunnel of a gateway in this process, for the clusters edge, which takes
// certificates and tokens, and lab.
type tunnelBed struct {
	*tunnelServer
	t         *testing.T
	authority *tunneltest.Authority
	dir       string
	stop      context.CancelFunc
	ended     chan error
}

const tunnelSettings = `
clusters:
  - name: edge
    kubeconfig: edge.kubeconfig
    tunnel: {allow: [{networks: [127.0.0.0/8]}], offers: {networks: [127.0.0.0/8]}, serviceAccount: ebb-system/ebb-agent, socket: edge.sock}
  - name: lab
    kubeconfig: edge.kubeconfig
    tunnel: {allow: [{networks: [127.0.0.1], ports: [22]}]}
gateway:
  gracePeriod: 5s
  lameDuck: 0s
  tls: {certificateFile: gateway.crt, keyFile: gateway.key}
  tunnel:
    listen: 127.0.0.1:0
    clientCAFile: ca.crt
    agents: [{commonName: agent.edge, cluster: edge}]
    clients: [{commonName: worker, clusters: [edge, lab]}, {commonName: labber, clusters: [lab]}, {commonName: all, clusters: ["*"]}]
    servers: 2
    keepAlive: 1s
    settle: 1ms
`

func newTunnelBed(t *testing.T) *tunnelBed {
	t.Helper()
	b := &tunnelBed{t: t, dir: t.TempDir(), ended: make(chan error, 1)}
	var err error
	b.authority, err = tunneltest.NewAuthority(b.dir)
	require.NoError(t, err)
	for _, name := range []string{"gateway", "agent.edge", "agent.other", "worker", "labber", "all"} {
		_, _, err := b.authority.Issue(name)
		require.NoError(t, err)
	}
	api := httptest.NewServer(http.HandlerFunc(reviewTokens))
	t.Cleanup(api.Close)
	kubeconfig := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}", api.URL)
	require.NoError(t, os.WriteFile(b.path("edge.kubeconfig"), []byte(kubeconfig), 0o600))
	require.NoError(t, os.WriteFile(b.path("ebb.yaml"), []byte(tunnelSettings), 0o600))
	file, err := config.Open(b.path("ebb.yaml"))
	require.NoError(t, err)
	current, err := file.Current()
	require.NoError(t, err)
	g := &gateway{file: file, log: zap.NewNop(), settings: current.Gateway}
	registry := cluster.NewRegistry(file, g.log)
	t.Cleanup(registry.Close)
	b.tunnelServer, err = g.openTunnel(t.Context(), registry)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	go func() { b.ended <- b.run(ctx, current.Gateway.GracePeriod.D(), current.Gateway.LameDuck.D()) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-b.ended)
	})
	return b
}

func (b *tunnelBed) path(name string) string { return filepath.Join(b.dir, name) }

// reviewTokens is an API server that knows the token of one account, and that of another for
// another audience, and has no nodes.
func reviewTokens(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	sent, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	review, ok := sent.(*authentication.TokenReview)
	if err != nil || !ok {
		http.NotFound(w, r)
		return
	}
	review.TypeMeta = meta.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	audiences := review.Spec.Audiences
	switch review.Spec.Token {
	case "of-an-agent":
		review.Status = authentication.TokenReviewStatus{Authenticated: true, Audiences: audiences, User: authentication.UserInfo{Username: "system:serviceaccount:ebb-system:ebb-agent"}}
	case "of-somebody":
		review.Status = authentication.TokenReviewStatus{Authenticated: true, Audiences: audiences, User: authentication.UserInfo{Username: "system:serviceaccount:default:default"}}
	case "for-others":
		review.Status = authentication.TokenReviewStatus{Authenticated: true, User: authentication.UserInfo{Username: "system:serviceaccount:ebb-system:ebb-agent"}}
	default:
		review.Status = authentication.TokenReviewStatus{Error: "token has expired"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// secure returns the TLS settings of a client; name "" = it has no certificate.
func (b *tunnelBed) secure(name string) *tls.Config {
	b.t.Helper()
	data, err := os.ReadFile(b.authority.CAFile())
	require.NoError(b.t, err)
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	require.True(b.t, c.RootCAs.AppendCertsFromPEM(data))
	if name != "" {
		pair, err := tls.LoadX509KeyPair(b.path(name+".crt"), b.path(name+".key"))
		require.NoError(b.t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func (b *tunnelBed) grpcConn(name string) *grpc.ClientConn {
	b.t.Helper()
	c, err := grpc.NewClient(b.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(b.secure(name))))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// connect calls the service of agents and returns the error with which the gateway ends the call.
func (b *tunnelBed) connect(ctx context.Context, conn *grpc.ClientConn, md ...string) error {
	md = append(md, tunnel.HeaderAgentID, "w1")
	stream, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, md...), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tunnel.AgentMethod)
	require.NoError(b.t, err)
	return stream.RecvMsg(&client.Packet{})
}

func TestAgentsHaveToProveWhoTheyAre(t *testing.T) {
	b := newTunnelBed(t)
	nobody, other := b.grpcConn(""), b.grpcConn("agent.other")
	for name, c := range map[string]struct {
		conn *grpc.ClientConn
		md   []string
		code codes.Code
		text string
	}{
		"no proof":             {nobody, nil, codes.Unauthenticated, "show a certificate, or one token"},
		"another name":         {other, nil, codes.Unauthenticated, `"agent.other", who is not one of gateway.tunnel.agents`},
		"no bearer":            {nobody, []string{"authorization", "Basic x"}, codes.Unauthenticated, "Bearer, a space"},
		"an expired token":     {nobody, []string{"authorization", "Bearer old", tunnel.HeaderCluster, "edge"}, codes.Unauthenticated, "token has expired"},
		"another audience":     {nobody, []string{"authorization", "Bearer for-others", tunnel.HeaderCluster, "edge"}, codes.Unauthenticated, "audience ebb-tunnel"},
		"another account":      {nobody, []string{"authorization", "Bearer of-somebody", tunnel.HeaderCluster, "edge"}, codes.PermissionDenied, "agents of cluster edge are system:serviceaccount:ebb-system:ebb-agent"},
		"no tokens there":      {nobody, []string{"authorization", "Bearer of-an-agent", tunnel.HeaderCluster, "lab"}, codes.PermissionDenied, `"lab" has no tunnel.serviceAccount`},
		"two clusters":         {nobody, []string{"authorization", "Bearer of-an-agent", tunnel.HeaderCluster, "edge", tunnel.HeaderCluster, "lab"}, codes.InvalidArgument, "say once"},
		"what it may not":      {b.grpcConn("agent.edge"), []string{tunnel.HeaderIdentifiers, "ipv4=10.0.0.1"}, codes.PermissionDenied, "10.0.0.1 is not among what the cluster may offer"},
		"a client's socket":    {b.socketConn(), nil, codes.PermissionDenied, "this socket is for clients"},
		"a client's own proof": {b.grpcConn("worker"), nil, codes.Unauthenticated, `"worker", who is not one of gateway.tunnel.agents`},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.connect(t.Context(), c.conn, c.md...)
			require.Equal(t, c.code, status.Code(err), err)
			require.ErrorContains(t, err, c.text)
		})
	}
	require.Empty(t, b.server.Connections())
	require.NoError(t, testutil.CollectAndCompare(b.server, refusals("agent", 11), "ebb_tunnel_refused_total"))
}

func (b *tunnelBed) socketConn() *grpc.ClientConn {
	c, err := grpc.NewClient("unix://"+b.path("edge.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Whoever fails again and again is not answered in detail any more; others are.
func TestStrangersAreLimited(t *testing.T) {
	b := newTunnelBed(t)
	conn := b.grpcConn("")
	require.Eventually(t, func() bool {
		return status.Code(b.connect(t.Context(), conn)) == codes.ResourceExhausted
	}, 10*time.Second, time.Millisecond)
	b.agent("")
}

// agent starts the agent w1 with a certificate and returns when it is connected.
func (b *tunnelBed) agent(offers string) *agent.Agent {
	b.t.Helper()
	ids, err := tunnel.ParseIdentifiers(offers)
	require.NoError(b.t, err)
	a := agent.New(agent.Options{
		ID: "w1", Identifiers: ids, DrainTimeout: 10 * time.Second, Refresh: time.Minute, Log: zap.NewNop(),
		Connect: func() (*grpc.ClientConn, error) {
			return grpc.NewClient(b.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(b.secure("agent.edge"))))
		},
	})
	ctx, kill := context.WithCancel(b.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = a.Run(ctx) }() // a killed one says so
	b.t.Cleanup(func() { kill(); <-ended })
	require.Eventually(b.t, func() bool { return a.Ready() == nil }, 10*time.Second, time.Millisecond)
	return a
}

// An agent may show the token of its account in place of a certificate, and need not name the
// only cluster that takes tokens.
func TestTokenOfAnAgent(t *testing.T) {
	b := newTunnelBed(t)
	ctx, end := context.WithCancel(t.Context())
	for _, more := range [][]string{nil, {tunnel.HeaderCluster, "edge"}} {
		go func() {
			_ = b.connect(ctx, b.grpcConn(""), append(more, "authorization", "Bearer of-an-agent")...) // ends with ctx
		}()
	}
	require.Eventually(t, func() bool { return len(b.server.Connections()) == 2 }, 10*time.Second, time.Millisecond)
	require.Equal(t, "edge", b.server.Connections()[0].Cluster)
	end()
	require.Eventually(t, func() bool { return len(b.server.Connections()) == 0 }, 10*time.Second, time.Millisecond)
}

// dialer returns what the worker dials with.
func (b *tunnelBed) dialer(name, cluster string) *dialer.Dialer {
	return dialer.New(dialer.Options{
		Cluster: cluster, Address: b.listener.Addr().String(), CAFile: b.authority.CAFile(), CertificateFile: b.path(name + ".crt"), KeyFile: b.path(name + ".key"),
	})
}

// upper listens on loopback and answers with what it was sent when all of it is there.
func upper(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				text, _ := io.ReadAll(c)
				_, _ = fmt.Fprintf(c, "you said: %s", text)
			}()
		}
	}()
	return l.Addr().String()
}

func say(t *testing.T, c net.Conn, text string) string {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	return string(answer)
}

func TestWorkerDialsThroughTheTunnel(t *testing.T) {
	b := newTunnelBed(t)
	b.agent("cidr=127.0.0.0/8")
	address := upper(t)
	for _, name := range []string{"worker", "all"} {
		c, err := b.dialer(name, "edge").DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.Equal(t, "you said: hello", say(t, c, "hello"))
	}
	agents, err := b.dialer("worker", "edge").Agents(t.Context())
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.Equal(t, "w1", agents[0].ID)
	require.Equal(t, "Ready", agents[0].State)
	require.Equal(t, "cidr=127.0.0.0%2F8", agents[0].Offers)
}

func TestClientsThatAreRefused(t *testing.T) {
	b := newTunnelBed(t)
	b.agent("")
	for name, c := range map[string]struct {
		client, cluster, address, text string
		final                          bool // a *RefusedError
	}{
		"another network":    {"worker", "edge", "192.0.2.1:22", "a dial to 192.0.2.1:22 is not allowed for this cluster", true},
		"another port":       {"worker", "lab", "127.0.0.1:23", "not allowed", true},
		"another cluster":    {"labber", "edge", "127.0.0.1:22", `you may not dial in cluster "edge"`, true},
		"an unknown cluster": {"all", "none", "127.0.0.1:22", `you may not dial in cluster "none"`, true},
		"an agent":           {"agent.edge", "edge", "127.0.0.1:22", `"agent.edge", who is not one of gateway.tunnel.clients`, true},
		"no agent there":     {"worker", "lab", "127.0.0.1:22", "no connected agent leads there", false},
		"nobody listens":     {"worker", "edge", "127.0.0.1:1", "connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.dialer(c.client, c.cluster).DialContext(t.Context(), "tcp", c.address)
			require.ErrorContains(t, err, c.text)
			require.ErrorContains(t, err, b.listener.Addr().String(), "which gateway it was")
			var refused *dialer.RefusedError
			require.Equal(t, c.final, errors.As(err, &refused))
		})
	}
	_, err := b.dialer("labber", "edge").Agents(t.Context())
	require.ErrorContains(t, err, "may not dial")
	require.NoError(t, testutil.CollectAndCompare(b.server, refusals("client", 4), "ebb_tunnel_refused_total"))
}

// A socket serves both protocols for its cluster, and only this user may open it.
func TestSocketOfACluster(t *testing.T) {
	b := newTunnelBed(t)
	b.agent("")
	address := upper(t)
	info, err := os.Stat(b.path("edge.sock"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	through, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(t.Context(), t.Context(), "unix://"+b.path("edge.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	c, err := through.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	raw, err := new(net.Dialer).DialContext(t.Context(), "unix", b.path("edge.sock"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(raw, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", address)
	require.NoError(t, err)
	const answer = "HTTP/1.1 200 Connection established\r\n\r\n"
	head := make([]byte, len(answer))
	_, err = io.ReadFull(raw, head)
	require.NoError(t, err)
	require.Equal(t, answer, string(head))
	require.Equal(t, "you said: hi", say(t, raw, "hi"))
}

// What a gateway carries when its end begins goes on; then the socket and the port are free.
func TestTunnelOfAGatewayThatEnds(t *testing.T) {
	b := newTunnelBed(t)
	a := b.agent("")
	c, err := b.dialer("worker", "edge").DialContext(t.Context(), "tcp", upper(t))
	require.NoError(t, err)
	b.stop()
	require.Eventually(t, func() bool { return a.Ready() != nil }, 10*time.Second, time.Millisecond, "the agent looks for another gateway")
	select {
	case err := <-b.ended:
		t.Fatal("it has ended too early", err)
	default:
	}
	require.Equal(t, "you said: good bye", say(t, c, "good bye"))
	require.NoError(t, <-b.ended)
	b.ended <- nil // for the clean-up
	require.NoFileExists(t, b.path("edge.sock"))
	_, err = b.dialer("worker", "edge").DialContext(t.Context(), "tcp", "127.0.0.1:22")
	require.ErrorContains(t, err, "connection refused")
}

func refusals(who string, n int) io.Reader {
	return strings.NewReader(fmt.Sprintf("# HELP ebb_tunnel_refused_total Agents and clients that were refused.\n"+
		"# TYPE ebb_tunnel_refused_total counter\nebb_tunnel_refused_total{who=%q} %d\n", who, n))
}
