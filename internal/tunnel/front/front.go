// Package front takes the connections of a tunnel's agents and clients: gRPC and HTTP CONNECT
// side by side, at a TLS listener, where ALPN tells them apart, and at Unix sockets, where
// their first bytes do.
package front

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
)

// handshakeTimeout is how long a peer may take to say who it is and what it speaks.
const handshakeTimeout = 10 * time.Second

// Peer is who is at the other end of a connection.
type Peer struct {
	Cluster    string // whose Unix socket it has opened; "" = it came over the network
	CommonName string // of its verified certificate; "" = it has shown none
	Remote     string // IP address; "" = a Unix socket
}

// Options of a front.
type Options struct {
	KeepAlive time.Duration // silence after which gRPC's peers are asked whether they live, and what they have to answer
	Log       *zap.Logger
}

// minPingInterval is how often peers may ask whether the server lives.
const minPingInterval = 5 * time.Second

// Front serves connections by gRPC and by HTTP/1.1.
type Front struct {
	log  *zap.Logger
	grpc *grpc.Server
	http *http.Server
	h2   *queue
	h1   *queue
}

// New returns a front. register registers gRPC's services, handler serves HTTP/1.1; PeerOf
// tells both who calls.
func New(o Options, register func(grpc.ServiceRegistrar), handler http.Handler) *Front {
	f := &Front{
		log: o.Log, h2: newQueue(), h1: newQueue(),
		grpc: grpc.NewServer(
			grpc.Creds(handshaken{}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: o.KeepAlive, Timeout: o.KeepAlive}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		),
		http: &http.Server{
			Handler: handler, ReadHeaderTimeout: handshakeTimeout,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, peerKey{}, c.(*conn).peer)
			},
		},
	}
	register(f.grpc)
	return f
}

type peerKey struct{}

// PeerOf returns who has made a call; the zero Peer when it came through no front.
func PeerOf(ctx context.Context) Peer {
	if p, ok := ctx.Value(peerKey{}).(Peer); ok {
		return p
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			return info.peer
		}
	}
	return Peer{}
}

// Protocols are those that the TLS configuration of a front has to offer by ALPN.
var Protocols = []string{"h2", "http/1.1"}

// Serve takes what the listeners accept until they are closed: those of the network with TLS,
// and those of each cluster's socket. Connections go on until Stop.
func (f *Front) Serve(tlsConfig *tls.Config, network net.Listener, sockets map[string]net.Listener) error {
	var serving sync.WaitGroup
	serving.Go(func() { _ = f.grpc.Serve(f.h2) }) // ends with Stop
	serving.Go(func() { _ = f.http.Serve(f.h1) })
	errs := make(chan error, 1+len(sockets))
	go func() {
		errs <- f.accept(network, func(raw net.Conn) (*conn, bool, error) { return overTLS(raw, tlsConfig) })
	}()
	for cluster, socket := range sockets {
		go func() {
			errs <- f.accept(socket, func(raw net.Conn) (*conn, bool, error) { return overSocket(raw, cluster) })
		}()
	}
	var err error
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	serving.Wait()
	return err
}

// Stop cuts what is left.
func (f *Front) Stop() {
	f.grpc.Stop()
	_ = f.http.Close() // what it has not taken over
	_ = f.h2.Close()
	_ = f.h1.Close()
}

// accept lets each connection say what it speaks, and hands it to the server of that.
func (f *Front) accept(l net.Listener, greet func(net.Conn) (*conn, bool, error)) error {
	for {
		raw, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			_ = raw.SetDeadline(time.Now().Add(handshakeTimeout))
			c, h2, err := greet(raw)
			if err != nil {
				f.log.Info("tunnel: a connection is refused", zap.Stringer("remote", raw.RemoteAddr()), zap.Error(err))
				_ = raw.Close()
				return
			}
			_ = raw.SetDeadline(time.Time{})
			to := f.h1
			if h2 {
				to = f.h2
			}
			to.put(c)
		}()
	}
}

func overTLS(raw net.Conn, config *tls.Config) (*conn, bool, error) {
	secure := tls.Server(raw, config)
	if err := secure.HandshakeContext(context.Background()); err != nil { // raw has a deadline
		return nil, false, err
	}
	state := secure.ConnectionState()
	c := &conn{Conn: secure, peer: Peer{Remote: addressOf(raw)}}
	if len(state.VerifiedChains) > 0 {
		c.peer.CommonName = state.VerifiedChains[0][0].Subject.CommonName
	}
	return c, state.NegotiatedProtocol == "h2", nil
}

// overSocket reads no further than it has to: the rest is the server's.
func overSocket(raw net.Conn, cluster string) (*conn, bool, error) {
	buffered := bufio.NewReaderSize(raw, 16)
	first, err := buffered.Peek(len("PRI"))
	if err != nil {
		return nil, false, err
	}
	return &conn{Conn: raw, buffered: buffered, peer: Peer{Cluster: cluster}}, string(first) == "PRI", nil
}

func addressOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// conn is a connection whose peer is known.
type conn struct {
	net.Conn
	buffered *bufio.Reader // what was read already; nil = nothing
	peer     Peer
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if c.buffered == nil {
		return c.Conn.Read(p)
	}
	return c.buffered.Read(p)
}

// CloseWrite closes one direction.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}

// handshaken are the credentials of connections that have shaken hands already.
type handshaken struct{}

type authInfo struct {
	credentials.CommonAuthInfo
	peer Peer
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "tunnel" }

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, errors.New("the connection did not come through the front")
	}
	return raw, authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, c.peer}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are the credentials of a server")
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (h handshaken) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials.
func (handshaken) OverrideServerName(string) error { return nil }
