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

// faultyProxy is a network in front of a server that can be cut and frozen.
type faultyProxy struct {
	addr      string
	bytesLeft atomic.Int64 // bytes from the server that still pass, then the connection is cut; below 0 = all
	frozen    atomic.Bool  // nothing passes any more, and nobody is told
}

func startFaultyProxy(t *testing.T, to string) *faultyProxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	p := &faultyProxy{addr: listener.Addr().String()}
	p.bytesLeft.Store(-1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.proxyConn(conn, to)
		}
	}()
	return p
}

func (p *faultyProxy) proxyConn(client net.Conn, to string) {
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
		if p.bytesLeft.Load() >= 0 && p.bytesLeft.Add(int64(-n)) < 0 {
			return
		}
		if _, writeErr := client.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// targetThrough points a target at the proxy; the host's key is known under that address too.
func (p *faultyProxy) targetThrough(t *testing.T, s *testServer) Target {
	t.Helper()
	moved := *s
	moved.addr = p.addr
	return moved.target(t)
}
