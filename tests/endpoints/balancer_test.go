package endpoints

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// balancer accepts connections and leads them in turn to the backends that listen, as a
// Service does.
type balancer struct {
	listener net.Listener
	backends []string
	turn     atomic.Int32
	stop     func() // closes the listener and cuts the connections
}

func startBalancer(t *testing.T, backends ...string) *balancer {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{listener: l, backends: backends}
	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	going.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			going.Go(func() { b.forward(ctx, c) })
		}
	})
	b.stop = sync.OnceFunc(func() {
		cancel()
		_ = l.Close() // its goroutine ends with it
		going.Wait()
	})
	t.Cleanup(b.stop)
	return b
}

func (b *balancer) address() string { return b.listener.Addr().String() }

// forward leads a connection to the next backend that listens, until one side ends or ctx does.
func (b *balancer) forward(ctx context.Context, from net.Conn) {
	defer func() { _ = from.Close() }()
	for range b.backends {
		to, err := new(net.Dialer).DialContext(ctx, "tcp", b.backends[int(b.turn.Add(1))%len(b.backends)])
		if err != nil {
			continue
		}
		end := func() {
			_ = from.Close()
			_ = to.Close()
		}
		stop := context.AfterFunc(ctx, end)
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(to, from) // that it ends is all
			end()
		})
		_, _ = io.Copy(from, to)
		end()
		back.Wait()
		stop()
		return
	}
}
