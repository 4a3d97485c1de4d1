package nodessh

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy is a network in front of a server that can be cut and frozen.
type proxy struct {
	addr   string
	budget atomic.Int64 // bytes from the server that still pass, then the connection is cut; below 0 = all
	frozen atomic.Bool  // nothing passes any more, and nobody is told
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	p := &proxy{addr: listener.Addr().String()}
	p.budget.Store(-1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.carry(conn, to)
		}
	}()
	return p
}

func (p *proxy) carry(client net.Conn, to string) {
	defer func() { _ = client.Close() }()
	server, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(context.Background(), "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	buffer := make([]byte, 4096)
	for {
		n, err := server.Read(buffer)
		if p.frozen.Load() {
			continue
		}
		if p.budget.Load() >= 0 && p.budget.Add(int64(-n)) < 0 {
			return
		}
		if _, writeErr := client.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// through points a target at the proxy; the host's key is known under that address too.
func (p *proxy) through(t *testing.T, s *testServer) Target {
	t.Helper()
	moved := *s
	moved.addr = p.addr
	return moved.target(t)
}
