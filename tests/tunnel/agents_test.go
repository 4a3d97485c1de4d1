package tunnel

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/wait"
)

// Nobody but an agent reaches the machines.
func TestThereIsNoWayAroundTheTunnel(t *testing.T) {
	if !shared.network.isolated() {
		t.Skip("needs the right to make a network namespace")
	}
	address := echoes(t)
	_, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	require.ErrorContains(t, err, "connection refused")
	g := newGateway(t, "way", 1, atOnce)
	_, err = g.dialer().DialContext(t.Context(), "tcp", address)
	require.ErrorContains(t, err, "no connected agent leads there")
	connected(t, []*gateway{g}, "w1")
	c, err := g.dialer().DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	require.NoError(t, exchange(c, "hello"))
	require.NoError(t, c.Close())
}

// load dials again and again, at a rate, until it is stopped; it fails the test when a dial fails.
type load struct {
	dials  atomic.Int64
	stop   context.CancelFunc
	ending sync.WaitGroup
}

// dialsPerSecond is what every load asks for; on a busy machine fewer come about.
const dialsPerSecond = 50

func startLoad(t *testing.T, dial func(context.Context) (net.Conn, error)) *load {
	t.Helper()
	l := &load{}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	l.ending.Go(func() {
		_ = wait.Poll(ctx, time.Second/dialsPerSecond, func() (bool, error) { // until it is stopped
			l.ending.Go(func() {
				c, err := dial(context.WithoutCancel(ctx))
				if err == nil {
					err = exchange(c, "short")
					_ = c.Close()
				}
				if err != nil {
					t.Errorf("dial %d: %v", l.dials.Load(), err)
				}
				l.dials.Add(1)
			})
			return false, nil
		})
	})
	t.Cleanup(l.end)
	return l
}

// more waits for so many more dials.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	want := l.dials.Load() + n
	eventually(t, fmt.Sprintf("%d more dials", n), func() bool { return l.dials.Load() >= want })
}

func (l *load) end() {
	l.stop()
	l.ending.Wait()
}

// Six agents on three nodes are rolled one by one: no dial fails, no stream is cut, and each
// exits 0 as soon as its last stream has ended.
func TestAgentsAreRolled(t *testing.T) {
	g := newGateway(t, "roll", 1, atOnce)
	address := echoes(t)
	ids := []string{"w1", "w2", "w3", "x1", "x2", "x3"}
	old := connected(t, []*gateway{g}, ids...)
	dial := func(ctx context.Context) (net.Conn, error) { return g.dialer().DialContext(ctx, "tcp", address) }
	var long []net.Conn
	for range 20 {
		c, err := dial(t.Context())
		require.NoError(t, err)
		long = append(long, c)
	}
	l := startLoad(t, dial)
	for _, id := range ids {
		connected(t, []*gateway{g}, "new-"+id)
		old[id].signal(syscall.SIGTERM)
		eventually(t, id+" drains", func() bool { return g.states()[id] == "Draining" })
		l.more(t, 50)
		for _, c := range long {
			require.NoError(t, exchange(c, "still there"))
		}
	}
	carried := 0
	for id, n := range g.streams() {
		if old[id] != nil {
			carried += n
		}
	}
	require.Equal(t, len(long), carried, "the old ones carry what they had and nothing else")
	require.Equal(t, []string{`ebb_tunnel_agent_connections{cluster="sandbox",state="Draining"} 6`}, g.metrics(`ebb_tunnel_agent_connections{cluster="sandbox",state="Draining"}`))
	for _, c := range long {
		require.NoError(t, c.Close())
	}
	for id, a := range old {
		ended(t, a, 0, id)
	}
	l.end()
	require.Empty(t, g.metrics(`ebb_tunnel_dials_total{cluster="sandbox",outcome="refused"`))
}

// ended waits for the end of an agent.
func ended(t *testing.T, a *agent, code int, what string) {
	t.Helper()
	select {
	case <-a.process.Done():
		require.Equal(t, code, a.process.ExitCode(), what)
	case <-time.After(patience):
		t.Fatal("it has not ended: ", what)
	}
}

// What an agent carries for longer than its drain may last is cut, and its exit code says so.
func TestDrainThatTakesTooLong(t *testing.T) {
	g := newGateway(t, "long", 1, atOnce)
	a := newAgent(t, "w1", append(certified(), "--drain-timeout", "300ms")...)
	eventually(t, "it is connected", func() bool { return g.states()["w1"] == "Ready" })
	c, err := g.dialer().DialContext(t.Context(), "tcp", echoes(t))
	require.NoError(t, err)
	a.signal(syscall.SIGTERM)
	ended(t, a, 1, "a connection is cut")
	require.Contains(t, logOf(t, a.name), "1 connections are cut")
	require.Error(t, exchange(c, "gone"))
}

// The second signal does not wait.
func TestSecondSignalEndsAnAgent(t *testing.T) {
	g := newGateway(t, "second", 1, atOnce)
	a := connected(t, []*gateway{g}, "w1")["w1"]
	c, err := g.dialer().DialContext(t.Context(), "tcp", echoes(t))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	a.signal(syscall.SIGTERM)
	eventually(t, "it drains", func() bool { return g.states()["w1"] == "Draining" })
	a.signal(syscall.SIGTERM)
	ended(t, a, -1, "by the signal")
	eventually(t, "the gateway has noticed", func() bool { return len(g.agents()) == 0 })
}

// An agent that is killed: what it carried ends at once, and dials go to the others.
func TestAgentIsKilled(t *testing.T) {
	g := newGateway(t, "killed", 1, atOnce)
	all := connected(t, []*gateway{g}, "w1", "w2")
	address := echoes(t)
	var held []net.Conn
	for range 10 {
		c, err := g.dialer().DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		held = append(held, c)
	}
	require.Equal(t, map[string]int{"w1": 5, "w2": 5}, g.streams())
	l := startLoad(t, func(ctx context.Context) (net.Conn, error) { return g.dialer().DialContext(ctx, "tcp", address) })
	l.more(t, 20)
	l.end() // what it carries is lost with it, and that is right
	began := time.Now()
	require.NoError(t, all["w1"].process.Kill())
	cut := 0
	for _, c := range held {
		if exchange(c, "who is left?") != nil {
			cut++
		}
		_ = c.Close()
	}
	require.Equal(t, 5, cut)
	require.Less(t, time.Since(began), 5*time.Second, "nothing waits for a dead agent")
	for range 20 {
		c, err := g.dialer().DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, exchange(c, "on"))
		require.NoError(t, c.Close())
	}
	eventually(t, "nothing is left", func() bool { return g.streams()["w2"] == 0 && len(g.agents()) == 1 })
}

// An agent that is stuck blocks nobody else, and is dropped after its keepalive: a dial that
// it has not answered goes to another one.
func TestAgentIsStuck(t *testing.T) {
	g := newGateway(t, "stuck", 1, atOnce)
	all := connected(t, []*gateway{g}, "w1", "w2")
	address := echoes(t)
	all["w1"].signal(syscall.SIGSTOP)
	var dials sync.WaitGroup
	for i := range 20 { // half of them to the stuck one
		dials.Go(func() {
			c, err := g.dialer().DialContext(t.Context(), "tcp", address)
			if err == nil {
				err = exchange(c, fmt.Sprint("number ", i))
				_ = c.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	dials.Wait()
	require.Equal(t, map[string]string{"w2": "Ready"}, g.states())
	all["w1"].signal(syscall.SIGCONT)
	eventually(t, "it comes back by itself", func() bool { return g.states()["w1"] == "Ready" })
}

// Agents of two gateways connect to each, and come back to one that was killed, or that ends
// in an orderly way and takes no dial with it.
func TestGatewaysAreRestarted(t *testing.T) {
	one, two := newGateway(t, "one", 2, patiently), newGateway(t, "two", 2, patiently)
	both := []*gateway{one, two}
	connected(t, both, "w1", "w2", "w3")
	address := echoes(t)
	anywhere := func(ctx context.Context) (net.Conn, error) {
		return dialerAt(shared.outer, "worker").DialContext(ctx, "tcp", address)
	}
	for _, g := range both {
		require.Len(t, g.agents(), 3, "each agent once")
	}
	held, err := one.dialer().DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	l := startLoad(t, anywhere)
	l.more(t, 20)
	shared.removeGateway(one.tunnel) // as what is in front of it does when /readyz says so
	require.NoError(t, syscall.Kill(one.process.PID(), syscall.SIGTERM))
	l.more(t, 50)
	require.NoError(t, exchange(held, "still there"))
	require.NoError(t, held.Close())
	require.Zero(t, one.process.ExitCode())
	one.start()
	shared.addGateway(one.tunnel)
	awaitAgents(t, one, 3)
	l.more(t, 20)
	l.end()

	require.NoError(t, two.process.Kill())
	for range 20 {
		c, err := anywhere(t.Context())
		require.NoError(t, err)
		require.NoError(t, exchange(c, "on"))
		require.NoError(t, c.Close())
	}
	two.start()
	awaitAgents(t, two, 3)
	awaitAgents(t, one, 3)
}

func awaitAgents(t *testing.T, g *gateway, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d agents are connected to %s", n, g.name), func() bool {
		ready := 0
		for _, state := range g.states() {
			if state == "Ready" {
				ready++
			}
		}
		return ready == n
	})
}

// A lone gateway that is killed and comes back: so do its agents.
func TestAgentsComeBack(t *testing.T) {
	g := newGateway(t, "alone", 1, atOnce)
	connected(t, []*gateway{g}, "w1", "w2")
	require.NoError(t, g.process.Kill())
	g.start()
	awaitAgents(t, g, 2)
}
