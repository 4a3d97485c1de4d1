package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
)

// bed is a server with its listeners. Agents and clients say in their metadata which cluster
// they are of, and are believed.
type bed struct {
	*Server
	t        *testing.T
	agents   string // address for agents and konnectivity's clients
	socket   string // Unix socket of HTTP CONNECT
	grpc     *grpc.Server
	cordoned sync.Map // IDs of agents

	connected sync.Map // TCP connections of agents and clients
}

const prod = "prod"

func newBed(t *testing.T, edit func(*Options)) *bed {
	t.Helper()
	b := &bed{t: t, socket: filepath.Join(t.TempDir(), "connect")}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	of := func(ctx context.Context) (string, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if name := md.Get("cluster"); len(name) == 1 {
			return name[0], nil
		}
		return "", status.Error(codes.Unauthenticated, "who are you?")
	}
	o := Options{
		ID: "server-1", Agent: of, Client: of, Log: zap.NewNop(),
		Clusters: map[string]Cluster{prod: {
			Strategies: []tunnel.Strategy{tunnel.DestHost, tunnel.Default}, Offers: tunnel.Identifiers{Networks: []netip.Prefix{loopback}},
			Allow: []tunnel.Allow{{Networks: []netip.Prefix{loopback}}},
		}},
		Cordoned: func(_ string, a Agent) bool { _, is := b.cordoned.Load(a.ID); return is },
	}
	if edit != nil {
		edit(&o)
	}
	b.Server = New(o)
	b.serve()
	return b
}

func (b *bed) serve() {
	var serving sync.WaitGroup
	b.grpc = grpc.NewServer()
	b.RegisterAgents(b.grpc)
	b.RegisterClients(b.grpc)
	l, err := new(net.ListenConfig).Listen(b.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b.t, err)
	b.agents = l.Addr().String()
	serving.Go(func() { _ = b.grpc.Serve(noting{l, &b.connected}) })

	socket, err := new(net.ListenConfig).Listen(b.t.Context(), "unix", b.socket)
	require.NoError(b.t, err)
	front := &http.Server{Handler: b.Connect(func(*http.Request) (string, error) { return prod, nil }), ReadHeaderTimeout: time.Minute}
	serving.Go(func() { _ = front.Serve(socket) })
	b.t.Cleanup(func() {
		b.grpc.Stop()
		_ = front.Close()
		serving.Wait()
		require.Eventually(b.t, func() bool { return len(b.Connections()) == 0 }, 10*time.Second, time.Millisecond)
	})
}

// noting notes the connections that it accepts.
type noting struct {
	net.Listener
	accepted *sync.Map
}

func (n noting) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		n.accepted.Store(c, true)
	}
	return c, err
}

// lose cuts the connections of all agents and clients.
func (b *bed) lose() {
	b.connected.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
}

// testAgent is an agent that runs in this process.
type testAgent struct {
	*agent.Agent
	kill  context.CancelFunc
	ended chan error
	done  chan struct{}
}

// agent starts an agent and returns when it is connected.
func (b *bed) agent(id, offers string) *testAgent {
	b.t.Helper()
	ids, err := tunnel.ParseIdentifiers(offers)
	require.NoError(b.t, err)
	before := len(b.Connections())
	ctx, kill := context.WithCancel(b.t.Context())
	a := &testAgent{kill: kill, ended: make(chan error, 1), done: make(chan struct{}), Agent: agent.New(agent.Options{
		ID: id, Identifiers: ids, DrainTimeout: 30 * time.Second, Refresh: time.Second, Log: zap.NewNop(),
		Connect: func() (*grpc.ClientConn, error) {
			return grpc.NewClient(b.agents, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(ofProd))
		},
	})}
	go func() { a.ended <- a.Run(ctx); close(a.done) }()
	b.t.Cleanup(func() {
		kill()
		<-a.done
	})
	b.eventually("the agent connects", func() bool { return len(b.Connections()) == before+1 })
	return a
}

// ofProd says in the metadata of each call that it is for prod.
func ofProd(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(metadata.AppendToOutgoingContext(ctx, "cluster", prod), desc, cc, method, opts...)
}

func (b *bed) eventually(what string, is func() bool) {
	b.t.Helper()
	require.Eventually(b.t, is, time.Minute, time.Millisecond, what)
}

// drained waits until the server knows that an agent drains.
func (b *bed) drained(id string) {
	b.t.Helper()
	b.eventually(id+" drains", func() bool {
		for _, c := range b.Connections() {
			if c.AgentID == id && c.State == Draining {
				return true
			}
		}
		return false
	})
}

// streamsOf returns what each agent carries, by its ID.
func (b *bed) streamsOf() map[string]int {
	n := map[string]int{}
	for _, c := range b.Connections() {
		n[c.AgentID] += c.Streams
	}
	return n
}

// service listens on loopback and serves each connection with f; it returns its address.
func service(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = c.Close() }()
				f(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// echo answers with what it gets, and ends when that ends.
func echo(t *testing.T) string {
	return service(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
}

// exchange writes to a connection and reads the same back.
func exchange(c net.Conn, text string) error {
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return io.ErrUnexpectedEOF
	}
	return nil
}
