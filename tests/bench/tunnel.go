package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/agent"
	"ebb/internal/tunnel/dialer"
	"ebb/internal/tunnel/front"
	"ebb/internal/tunnel/server"
	"ebb/internal/tunnel/tunneltest"
	"ebb/internal/wait"
)

// tunnelRow is the name of the row that needs no cluster: Ebb's tunnel beside a direct
// connection, both with TLS over loopback, and all ends in this process.
const tunnelRow = "tunnel"

const (
	streamSize    = 256 << 20 // bytes of the one stream
	dialsMeasured = 300
)

// heldStreams is how many streams are open while dials are measured.
var heldStreams = []int{1, 100, 1000}

// way is one of the two ways to a service.
type way struct {
	name string
	dial func(ctx context.Context) (net.Conn, error)
}

// benchTunnel measures both ways and prints their ratios.
func benchTunnel(ctx context.Context, dir string, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, err := newTunnelBench(ctx, dir)
	if err != nil {
		return err
	}
	direct, through := way{"direct", b.direct}, way{"tunnel", b.through}
	logProgress("one stream of %d MiB ...", streamSize>>20)
	var rates [2]float64
	for i, w := range []way{direct, through} {
		if rates[i], err = streamRate(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	if _, err := fmt.Fprintf(out, "one stream: direct %.0f MiB/s, tunnel %.0f MiB/s, ratio %.2f\n", rates[0], rates[1], rates[1]/rates[0]); err != nil {
		return err
	}
	for _, held := range heldStreams {
		logProgress("dials beside %d streams ...", held)
		for i, w := range []way{direct, through} {
			if rates[i], err = dialRate(ctx, w, held); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
		if _, err := fmt.Fprintf(out, "dials beside %d streams: direct %.0f/s, tunnel %.0f/s, ratio %.2f\n", held, rates[0], rates[1], rates[1]/rates[0]); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, "A dial is a TLS handshake, one byte there and back, and the end. Through the tunnel it is one with the gateway,\n"+
		"a dial by the agent, and each byte passes four sockets more, two of them of TLS and one of gRPC.")
	return err
}

// streamRate returns MiB/s of one stream to a service that echoes the last byte of all.
func streamRate(ctx context.Context, w way) (float64, error) {
	c, err := w.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	began := time.Now()
	if _, err := io.CopyN(onlyWriter{c}, zeros{}, streamSize); err != nil {
		return 0, err
	}
	if err := ask(c); err != nil { // all of it has arrived
		return 0, err
	}
	return streamSize / (1 << 20) / time.Since(began).Seconds(), nil
}

// dialRate returns dials a second, one after another, beside so many open streams.
func dialRate(ctx context.Context, w way, held int) (rate float64, err error) {
	open := make([]net.Conn, 0, held)
	defer func() {
		for _, c := range open {
			err = errors.Join(err, c.Close())
		}
	}()
	for range held {
		c, err := w.dial(ctx)
		if err != nil {
			return 0, err
		}
		if open = append(open, c); ask(c) != nil {
			return 0, errors.New("a stream that is held does not answer")
		}
	}
	began := time.Now()
	for range dialsMeasured {
		c, err := w.dial(ctx)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(ask(c), c.Close()); err != nil {
			return 0, err
		}
	}
	return dialsMeasured / time.Since(began).Seconds(), nil
}

// ask sends a byte that wants an answer, and waits for that.
func ask(c net.Conn) error {
	b := []byte{1}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// onlyWriter hides ReadFrom: both ways write in the same steps.
type onlyWriter struct{ io.Writer }

// tunnelBench is a gateway's tunnel, an agent and a service with TLS and one without.
type tunnelBench struct {
	secure  string // address of the service with TLS
	plain   string // the same without: the tunnel has its own
	trusted *tls.Config
	dialer  *dialer.Dialer
}

func newTunnelBench(ctx context.Context, dir string) (*tunnelBench, error) {
	authority, err := tunneltest.NewAuthority(dir)
	if err != nil {
		return nil, err
	}
	certificate, key, err := authority.Issue("bench")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(authority.CAFile())
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	b := &tunnelBench{trusted: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	own := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: front.Protocols}
	if b.plain, err = serveBytes(ctx, nil); err != nil {
		return nil, err
	}
	if b.secure, err = serveBytes(ctx, own); err != nil {
		return nil, err
	}
	gateway, err := serveTunnel(ctx, own)
	if err != nil {
		return nil, err
	}
	b.dialer = dialer.New(dialer.Options{Cluster: "bench", Address: gateway, CAFile: authority.CAFile(), CertificateFile: certificate, KeyFile: key})
	a := agent.New(agent.Options{ID: "bench", DrainTimeout: time.Second, Refresh: time.Minute, Log: zap.NewNop(), Connect: func() (*grpc.ClientConn, error) {
		return grpc.NewClient(gateway, grpc.WithTransportCredentials(credentials.NewTLS(b.trusted)))
	}})
	go func() { _ = a.Run(ctx) }() // ends with ctx
	return b, wait.Poll(ctx, 10*time.Millisecond, func() (bool, error) { return a.Ready() == nil, nil })
}

func (b *tunnelBench) direct(ctx context.Context) (net.Conn, error) {
	return (&tls.Dialer{Config: b.trusted}).DialContext(ctx, "tcp", b.secure)
}

func (b *tunnelBench) through(ctx context.Context) (net.Conn, error) {
	return b.dialer.DialContext(ctx, "tcp", b.plain)
}

// serveTunnel serves a tunnel until ctx ends and returns its address.
func serveTunnel(ctx context.Context, own *tls.Config) (string, error) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	everybody := func(context.Context) (string, error) { return "bench", nil }
	s := server.New(server.Options{
		ID: "bench", Agent: everybody, Client: everybody, Log: zap.NewNop(),
		Clusters: map[string]server.Cluster{"bench": {Strategies: []tunnel.Strategy{tunnel.Default}, Allow: []tunnel.Allow{{Networks: loopback}}}},
	})
	f := front.New(front.Options{KeepAlive: 10 * time.Second, Log: zap.NewNop()}, func(r grpc.ServiceRegistrar) { s.RegisterAgents(r) },
		s.Connect(func(*http.Request) (string, error) { return "bench", nil }))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = f.Serve(own, l, nil) }() // ends with the listener
	context.AfterFunc(ctx, func() { _ = l.Close(); f.Stop() })
	return l.Addr().String(), nil
}

// serveBytes answers each byte that is 1, until ctx ends; with TLS if own is set.
func serveBytes(ctx context.Context, own *tls.Config) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	if own != nil {
		l = tls.NewListener(l, own)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerBytes(c)
		}
	}()
	return address, nil
}

func answerBytes(c net.Conn) {
	defer func() { _ = c.Close() }()
	buffer, one := make([]byte, 64<<10), []byte{1}
	for {
		n, err := c.Read(buffer)
		if bytes.HasSuffix(buffer[:n], one) {
			if _, err := c.Write(one); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
