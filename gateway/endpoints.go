package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/endpoints"
)

// Keepalive of gRPC connections.
const (
	keepAliveInterval     = 30 * time.Second // between pings to an idle client
	keepAliveTimeout      = 10 * time.Second // for its response; then the connection is closed
	minClientPingInterval = 10 * time.Second // pings of clients at this rate are tolerated; Envoy sends some
)

// sourceCertificate is the source of principals who have authenticated with a client
// certificate.
const sourceCertificate = "certificate"

// endpointServer serves the endpoints of Kubernetes services over xDS.
type endpointServer struct {
	endpoints     *endpoints.Server
	grpc          *grpc.Server
	listener      net.Listener
	cancelStreams context.CancelFunc // ends all streams
}

// openEndpoints listens for xDS clients and returns the server, nil if none is
// configured.
func (g *gateway) openEndpoints(ctx context.Context, auth auth.Authenticator, registry *cluster.Registry) (*endpointServer, error) {
	set := g.settings.Endpoints
	if set.Listen == "" {
		return nil, nil
	}
	options := []grpc.ServerOption{
		grpc.ChainStreamInterceptor(newAuthInterceptor(auth, set.Clients, g.log).interceptStream),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAliveInterval, Timeout: keepAliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if g.settings.TLS.CertificateFile != "" {
		tlsConfig, err := g.tlsConfig()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", set.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", set.Listen, err)
	}
	s := &endpointServer{grpc: grpc.NewServer(options...), listener: l}
	s.endpoints = endpoints.NewServer(endpoints.Options{Log: g.log.Named("endpoints"), Client: func(ctx context.Context, name string) (kubernetes.Interface, error) {
		found, err := registry.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		return found.Client, nil
	}})
	ctx, s.cancelStreams = context.WithCancel(context.WithoutCancel(ctx))
	s.endpoints.Register(ctx, s.grpc)
	return s, nil
}

// collectors returns the metrics of the server; s may be nil.
func (s *endpointServer) collectors() []prometheus.Collector {
	if s == nil {
		return nil
	}
	return []prometheus.Collector{s.endpoints}
}

// run serves until ctx ends, then closes all streams: clients keep their endpoints and
// connect to another gateway. Streams that have not ended after the grace period are
// cut.
func (s *endpointServer) run(ctx context.Context, grace time.Duration) error {
	defer s.endpoints.Close()
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(s.listener) }()
	select {
	case err := <-failed:
		s.cancelStreams()
		return err
	case <-ctx.Done():
	}
	s.cancelStreams()
	cut := time.AfterFunc(grace, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	return nil
}

// authInterceptor authenticates streams, by client certificate or bearer token, and
// writes to the log who has opened one and who was refused.
type authInterceptor struct {
	auth     auth.Authenticator
	clients  []config.EndpointClient
	log      *zap.Logger
	failures *auth.Limiter // of authentications, by IP address, as at the HTTP API
}

func newAuthInterceptor(by auth.Authenticator, clients []config.EndpointClient, log *zap.Logger) *authInterceptor {
	return &authInterceptor{auth: by, clients: clients, log: log.Named("audit"), failures: auth.NewLimiter(auth.FailuresPerSecond, auth.FailuresBurst)}
}

// interceptStream is a grpc.StreamServerInterceptor. Handlers check access to a cluster
// with what it puts into the context.
func (g *authInterceptor) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	remote := remoteAddress(stream.Context())
	log := g.log.With(zap.String("route", info.FullMethod), zap.String("remote", remote))
	p, err := g.principal(stream.Context())
	if err != nil {
		if !g.failures.Allow(remote) {
			err = status.Error(codes.ResourceExhausted, "too many streams without a valid token or certificate come from your address")
		}
		log.Info("audit", zap.Stringer("code", status.Code(err)), zap.String("reason", status.Convert(err).Message()))
		return err
	}
	log = log.With(zap.Stringer("principal", p))
	log.Info("audit", zap.Stringer("code", codes.OK))
	return handler(srv, accessStream{stream, endpoints.WithAuthorizer(stream.Context(), func(cluster string) error {
		if p.May(auth.Viewer, cluster) {
			return nil
		}
		err := status.Errorf(codes.PermissionDenied, "%s does not have the role %s on cluster %q", p.Name, auth.Viewer, cluster)
		log.Info("audit", zap.String("cluster", wire.Truncate(cluster)), zap.Stringer("code", codes.PermissionDenied))
		return err
	})})
}

// remoteAddress returns the IP address that a stream came from.
func remoteAddress(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(from.Addr.String())
	if err != nil {
		return from.Addr.String()
	}
	return host
}

// accessStream is a stream with another context.
type accessStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s accessStream) Context() context.Context { return s.ctx }

// principal returns who has opened a stream, or a gRPC status error.
func (g *authInterceptor) principal(ctx context.Context) (*auth.Principal, error) {
	if name, ok := certificateName(ctx); ok {
		for _, c := range g.clients {
			if c.CommonName == name {
				return &auth.Principal{Name: name, Source: sourceCertificate, Grants: []auth.Grant{{Role: auth.Viewer, Clusters: c.Clusters}}}, nil
			}
		}
		return nil, status.Errorf(codes.Unauthenticated, "the certificate is of %q, who is not one of gateway.endpoints.clients", name)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	p, err := auth.AuthenticateHeaders(ctx, md.Get("authorization"), g.auth)
	var bad *auth.TokenError
	switch {
	case errors.As(err, &bad):
		return nil, status.Error(codes.Unauthenticated, bad.Reason)
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return p, nil
}

// certificateName returns the common name of the verified client certificate; ok is
// false if there is none.
func certificateName(ctx context.Context) (name string, ok bool) {
	from, _ := peer.FromContext(ctx)
	if from == nil {
		return "", false
	}
	info, secure := from.AuthInfo.(credentials.TLSInfo)
	if !secure || len(info.State.VerifiedChains) == 0 {
		return "", false
	}
	return info.State.VerifiedChains[0][0].Subject.CommonName, true
}

// tlsConfig returns the TLS configuration for xDS: client certificates are verified if
// a CA for them is configured, but not required, as a client may have a token instead.
func (g *gateway) tlsConfig() (*tls.Config, error) {
	pair, err := openKeyPair(g.settings.TLS, g.log)
	if err != nil {
		return nil, err
	}
	own := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.current}
	if g.settings.Endpoints.ClientCAFile == "" {
		return own, nil
	}
	cas := &clientCAs{path: g.settings.Endpoints.ClientCAFile, log: g.log}
	if err := cas.load(); err != nil {
		return nil, err
	}
	own.ClientAuth = tls.VerifyClientCertIfGiven
	own.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := own.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, cas.current()
		return now, nil
	}
	return own, nil
}

// clientCAs are the CAs of client certificates, reloaded when their file has changed.
type clientCAs struct {
	path string
	log  *zap.Logger

	mu      sync.Mutex
	version fileVersion
	pool    *x509.CertPool // of the last valid version
}

// current returns the CAs of the file, or of its last valid version.
func (s *clientCAs) current() *x509.CertPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		s.log.Warn("the authorities of clients cannot be read again, the last good ones stay in use", zap.Error(err))
	}
	return s.pool
}

// load reads the file if it has changed. The caller holds mu, or is the only user.
func (s *clientCAs) load() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("gateway.endpoints.clientCAFile: %w", err)
	}
	now := fileVersion{info.ModTime(), info.Size()}
	if now == s.version {
		return nil
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("gateway.endpoints.clientCAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return fmt.Errorf("gateway.endpoints.clientCAFile: there is no certificate in %s", s.path)
	}
	s.pool, s.version = pool, now
	return nil
}
