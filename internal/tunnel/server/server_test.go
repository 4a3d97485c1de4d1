package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
)

// dialler is a way to dial a destination in prod.
type dialler func(ctx context.Context, address string) (net.Conn, error)

// frontEnds are all ways into a tunnel.
func (b *bed) frontEnds() map[string]dialler {
	return map[string]dialler{
		"in process": func(ctx context.Context, address string) (net.Conn, error) {
			c, err := b.Dial(ctx, prod, "tcp", address)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		"konnectivity's client": b.throughGRPC,
		"HTTP CONNECT":          b.throughConnect,
	}
}

func (b *bed) throughGRPC(ctx context.Context, address string) (net.Conn, error) {
	t, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, b.t.Context(), b.agents,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(ofProd))
	if err != nil {
		return nil, err
	}
	return t.DialContext(ctx, "tcp", address)
}

func (b *bed) throughConnect(ctx context.Context, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", b.socket)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(onebyte{c}), nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(answer.Body)
		return nil, fmt.Errorf("%s: %s", answer.Status, body)
	}
	return c, nil
}

// onebyte lets nothing be read ahead.
type onebyte struct{ io.Reader }

func (o onebyte) Read(p []byte) (int, error) { return o.Reader.Read(p[:1]) }

func TestBodiesArriveWhole(t *testing.T) {
	b := newBed(t, nil)
	b.agent("w1", "")
	body := make([]byte, 100<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(body) // never fails
	want := sha256.Sum256(body)
	address := echo(t)
	for name, dial := range b.frontEnds() {
		t.Run(name, func(t *testing.T) {
			c, err := dial(t.Context(), address)
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			var writing sync.WaitGroup
			writing.Go(func() {
				if _, err := io.Copy(c, struct{ io.Reader }{bytes.NewReader(body)}); err != nil { // konnectivity sends a Write as one packet
					t.Error(err)
				}
			})
			got := sha256.New()
			_, err = io.CopyN(got, c, int64(len(body)))
			require.NoError(t, err)
			writing.Wait()
			require.Equal(t, want[:], got.Sum(nil))
		})
	}
	b.eventually("nothing is left", func() bool { return b.streamsOf()["w1"] == 0 })
}

// A client that has said all still gets the answer to it.
func TestHalfClosed(t *testing.T) {
	b := newBed(t, nil)
	b.agent("w1", "")
	count := service(t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		_, _ = fmt.Fprintf(c, "%d bytes", n)
	})
	for name, dial := range b.frontEnds() {
		if name == "konnectivity's client" {
			continue // its connections cannot be closed in one direction
		}
		t.Run(name, func(t *testing.T) {
			c, err := dial(t.Context(), count)
			require.NoError(t, err)
			_, err = c.Write(make([]byte, 1<<20))
			require.NoError(t, err)
			require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
			answer, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "1048576 bytes", string(answer))
			require.NoError(t, c.Close())
		})
	}
}

func TestAThousandShortConnections(t *testing.T) {
	b := newBed(t, nil)
	b.agent("w1", "")
	address := echo(t)
	for name, dial := range b.frontEnds() {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			slots := make(chan struct{}, 50)
			for i := range 1000 {
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					c, err := dial(t.Context(), address)
					if err == nil {
						err = exchange(c, fmt.Sprint("number ", i))
						_ = c.Close()
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
	b.eventually("nothing is left", func() bool { return b.streamsOf()["w1"] == 0 })
}

// Six agents are rolled one after another: no dial fails, no stream is cut, and none gets a
// new dial once the server knows that it drains.
func TestAgentsAreRolledUnderLoad(t *testing.T) {
	b := newBed(t, nil)
	address := echo(t)
	agents := map[string]*testAgent{}
	for i := range 6 {
		id := fmt.Sprint("old-", i)
		agents[id] = b.agent(id, "")
	}
	var long []net.Conn
	for range 20 {
		c, err := b.Dial(t.Context(), prod, "tcp", address)
		require.NoError(t, err)
		long = append(long, c)
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var dials atomic.Int64
	for range 5 {
		load.Go(func() {
			for ctx.Err() == nil {
				c, err := b.Dial(t.Context(), prod, "tcp", address)
				if err == nil {
					err = exchange(c, "short")
					_ = c.Close()
				}
				if err != nil {
					t.Error(err)
				}
				dials.Add(1)
			}
		})
	}
	for i := range 6 {
		id := fmt.Sprint("old-", i)
		b.agent(fmt.Sprint("new-", i), "")
		agents[id].Drain()
		b.drained(id)
	}
	before := dials.Load()
	b.eventually("some hundred dials more", func() bool { return dials.Load() > before+300 })
	for _, c := range long {
		require.NoError(t, exchange(c, "still there"))
	}
	held := 0
	for id, n := range b.streamsOf() {
		if _, old := agents[id]; old {
			held += n
		}
	}
	require.Equal(t, len(long), held, "the draining ones have the long streams and nothing else")
	for _, c := range long {
		require.NoError(t, c.Close())
	}
	for _, a := range agents {
		require.NoError(t, <-a.ended, "it ends with its last stream")
	}
	stop()
	load.Wait()
}

func TestTheLastAgentDrainsAndServes(t *testing.T) {
	b := newBed(t, nil)
	a := b.agent("w1", "")
	address := echo(t)
	c, err := b.Dial(t.Context(), prod, "tcp", address)
	require.NoError(t, err)
	a.Drain()
	b.drained("w1")
	again, err := b.Dial(t.Context(), prod, "tcp", address)
	require.NoError(t, err)
	require.NoError(t, exchange(again, "hello"))
	require.Equal(t, []string{"Cordoned 0", "Draining 1", "Ready 0"}, gauges(t, b, "ebb_tunnel_agent_connections"))
	require.ErrorContains(t, a.Ready(), "draining")
	require.NoError(t, c.Close())
	require.NoError(t, again.Close())
	require.NoError(t, <-a.ended)
}

// gauges returns the values of a metric, by its label state, sorted.
func gauges(t *testing.T, b *bed, name string) (values []string) {
	t.Helper()
	for _, state := range []State{Cordoned, Draining, Ready} {
		n := 0
		for _, c := range b.Connections() {
			if c.State == state {
				n++
			}
		}
		values = append(values, fmt.Sprint(state, " ", n))
	}
	problems, err := testutil.CollectAndLint(b.Server, name)
	require.NoError(t, err)
	require.Empty(t, problems)
	return values
}

// An agent on a cordoned node gets no dial while another one is there, and is taken back.
func TestAgentsOfCordonedNodes(t *testing.T) {
	b := newBed(t, nil)
	b.agent("w1", "cidr=127.0.0.0/8")
	address := echo(t)
	open := func(want map[string]int) {
		t.Helper()
		c, err := b.Dial(t.Context(), prod, "tcp", address)
		require.NoError(t, err)
		require.Equal(t, want, b.streamsOf())
		t.Cleanup(func() { _ = c.Close() })
	}
	b.cordoned.Store("w1", true)
	open(map[string]int{"w1": 1})
	b.agent("w2", "")
	open(map[string]int{"w1": 1, "w2": 1})
	open(map[string]int{"w1": 1, "w2": 2})
	b.cordoned.Delete("w1")
	open(map[string]int{"w1": 2, "w2": 2})
}

// Two servers behind one address say that they are two: an agent connects to each, and comes
// back to one that was away.
func TestAgentsConnectToEachServer(t *testing.T) {
	count := func(id string) func(*Options) { return func(o *Options) { o.ID, o.Count = id, 2 } }
	one, two := newBed(t, count("one")), newBed(t, count("two"))
	var calls atomic.Int64
	a := agent.New(agent.Options{
		ID: "w1", DrainTimeout: time.Minute, Refresh: 10 * time.Millisecond, Log: zap.NewNop(),
		Connect: func() (*grpc.ClientConn, error) {
			address := []string{one.agents, one.agents, two.agents}[calls.Add(1)%3] // whatever a balancer does
			return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(ofProd))
		},
	})
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	both := func() bool { return len(one.Connections()) == 1 && len(two.Connections()) == 1 }
	one.eventually("the agent is connected to both", both)
	require.NoError(t, a.Ready())
	since := two.Connections()[0].Since
	two.lose()
	one.eventually("it comes back", func() bool { return both() && two.Connections()[0].Since.After(since) })
	a.Drain()
	require.NoError(t, <-ended, "it carries nothing")
	one.eventually("nobody is left", func() bool { return len(one.Connections())+len(two.Connections()) == 0 })
}

// An agent dies with a dial under way: the dial goes to another agent, or fails at once.
func TestAnAgentDiesWithADialUnderWay(t *testing.T) {
	for name := range newBed(t, nil).frontEnds() {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, nil)
			dial := b.frontEnds()[name]
			a := b.agent("w1", "")
			failed := make(chan error, 1)
			go func() {
				_, err := dial(t.Context(), unanswered(t))
				failed <- err
			}()
			b.eventually("the dial is under way", func() bool { return b.streamsOf()["w1"] == 1 })
			a.kill()
			began := time.Now()
			require.Error(t, <-failed)
			require.Less(t, time.Since(began), time.Second) // the contract's figure, of a call within one process
		})
	}
}

// unanswered is an address whose listener's backlog is full, so that a dial takes forever.
func unanswered(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	raw, err := l.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { setBacklog(int(fd)) }))
	for range 4 {
		go func() {
			if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
		}()
	}
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
		return err != nil
	}, 30*time.Second, time.Millisecond)
	return l.Addr().String()
}

// Two connections with the same agent ID are two: their bytes never mix, and the drain of one
// is not the other's.
func TestTwoAgentsWithTheSameID(t *testing.T) {
	b := newBed(t, nil)
	first := b.agent("twin", "")
	second := b.agent("twin", "")
	address := echo(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			c, err := b.Dial(t.Context(), prod, "tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				if err := exchange(c, fmt.Sprintf("%050d", i)); err != nil {
					t.Error(err)
				}
			}
			_ = c.Close()
		})
	}
	all.Wait()
	b.eventually("nothing is left", func() bool { return b.Streams()+first.Streams()+second.Streams() == 0 })
	var held [2]net.Conn // one for each of them
	for i := range held {
		c, err := b.Dial(t.Context(), prod, "tcp", address)
		require.NoError(t, err)
		held[i] = c
	}
	require.Equal(t, []int{1, 1}, []int{first.Streams(), second.Streams()})
	first.Drain()
	b.drained("twin")
	c, err := b.Dial(t.Context(), prod, "tcp", address)
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, []int{first.Streams(), second.Streams()}, "the other one gets what is new")
	for _, c := range append(held[:], c) {
		require.NoError(t, exchange(c, "whoever has it"))
		require.NoError(t, c.Close())
	}
	require.NoError(t, <-first.ended)
	require.NoError(t, second.Ready())
}

func TestDialsThatAreDenied(t *testing.T) {
	b := newBed(t, nil)
	b.agent("w1", "")
	for address, want := range map[string]string{"192.0.2.1:22": "not allowed", "127.0.0.1": "want HOST:PORT", "127.0.0.1:0": "port from 1"} {
		for name, dial := range b.frontEnds() {
			_, err := dial(t.Context(), address)
			require.ErrorContains(t, err, want, name)
		}
	}
	_, err := b.Dial(t.Context(), prod, "udp", "127.0.0.1:53")
	require.ErrorContains(t, err, "want tcp")
	_, err = b.Dial(t.Context(), "other", "tcp", "127.0.0.1:53")
	require.ErrorContains(t, err, "no tunnel for it")
	require.Equal(t, float64(9+1), testutil.ToFloat64(b.metrics.dials.WithLabelValues(prod, "denied", "")))
	require.Equal(t, map[string]int{"w1": 0}, b.streamsOf())
}

func TestNoAgentIsConnected(t *testing.T) {
	b := newBed(t, nil)
	_, err := b.Dial(t.Context(), prod, "tcp", "127.0.0.1:22")
	require.ErrorIs(t, err, tunnel.ErrNoAgent)
	require.ErrorContains(t, err, "tunnel to cluster prod")
}

// Agents that say of themselves what makes no sense are told so, by name.
func TestAgentsThatAreRefused(t *testing.T) {
	b := newBed(t, nil)
	conn, err := grpc.NewClient(b.agents, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	for name, c := range map[string]struct {
		md   metadata.MD
		code codes.Code
		text string
	}{
		"nobody":              {metadata.MD{}, codes.Unauthenticated, "who are you"},
		"an unknown cluster":  {metadata.Pairs("cluster", "other", tunnel.HeaderAgentID, "a"), codes.PermissionDenied, `"other"`},
		"no ID":               {metadata.Pairs("cluster", prod), codes.InvalidArgument, "exactly one agentID"},
		"two IDs":             {metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "a", tunnel.HeaderAgentID, "b"), codes.InvalidArgument, `["a" "b"]`},
		"bad identifiers":     {metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "a", tunnel.HeaderIdentifiers, "ipv4=x"), codes.InvalidArgument, `ipv4="x"`},
		"identifiers twice":   {metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "a", tunnel.HeaderIdentifiers, "", tunnel.HeaderIdentifiers, ""), codes.InvalidArgument, "at most one"},
		"what it may not":     {metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "a", tunnel.HeaderIdentifiers, "ipv4=10.0.0.7"), codes.PermissionDenied, "10.0.0.7"},
		"a route for nothing": {metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "a", tunnel.HeaderIdentifiers, "default-route=true"), codes.PermissionDenied, "default route"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := conn.NewStream(metadata.NewOutgoingContext(t.Context(), c.md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tunnel.AgentMethod)
			require.NoError(t, err)
			err = stream.RecvMsg(&client.Packet{})
			require.Equal(t, c.code, status.Code(err), err)
			require.ErrorContains(t, err, c.text)
		})
	}
	require.Empty(t, b.Connections())
}

// A server that is about to end takes no agents and sends those that it has to another one;
// what they carry goes on until it has ended by itself.
func TestServerDrains(t *testing.T) {
	old, next := newBed(t, func(o *Options) { o.ID = "old" }), newBed(t, func(o *Options) { o.ID = "next" })
	var address atomic.Value
	address.Store(old.agents)
	a := agent.New(agent.Options{
		ID: "w1", DrainTimeout: time.Minute, Refresh: time.Minute, Log: zap.NewNop(),
		Connect: func() (*grpc.ClientConn, error) {
			return grpc.NewClient(address.Load().(string), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(ofProd))
		},
	})
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	old.eventually("the agent is connected", func() bool { return len(old.Connections()) == 1 })
	c, err := old.Dial(t.Context(), prod, "tcp", echo(t))
	require.NoError(t, err)
	address.Store(next.agents)
	old.Drain()
	next.eventually("the agent has come", func() bool { return len(next.Connections()) == 1 })
	require.NoError(t, a.Ready())
	require.NoError(t, exchange(c, "still there"))
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, old.AwaitIdle(short), context.DeadlineExceeded)

	conn, err := grpc.NewClient(old.agents, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	md := metadata.Pairs("cluster", prod, tunnel.HeaderAgentID, "late")
	stream, err := conn.NewStream(metadata.NewOutgoingContext(t.Context(), md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tunnel.AgentMethod)
	require.NoError(t, err)
	require.Equal(t, codes.Unavailable, status.Code(stream.RecvMsg(&client.Packet{})))

	require.NoError(t, c.Close())
	require.NoError(t, old.AwaitIdle(t.Context()))
	a.Drain()
	require.NoError(t, <-ended)
}

// A dial that comes before the agents are back waits for them, for a while.
func TestServerSettles(t *testing.T) {
	b := newBed(t, func(o *Options) { o.Settle = 30 * time.Second })
	address := echo(t)
	dialled := make(chan error, 1)
	go func() {
		c, err := b.Dial(t.Context(), prod, "tcp", address)
		if err == nil {
			err = c.Close()
		}
		dialled <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := b.Dial(short, prod, "tcp", address)
	require.ErrorIs(t, err, tunnel.ErrNoAgent)
	b.agent("w1", "")
	require.NoError(t, <-dialled)
}
