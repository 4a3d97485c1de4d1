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

	"ebb/internal/api"
	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/endpoints"
)

// Connections of clients that do not answer are found out within keepAlive and
// keepAliveTimeout; clients may ask for signs of life as often as Envoy does.
const (
	keepAlive        = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
	leastPing        = 10 * time.Second
)

// sourceCertificate is where a principal comes from that has shown a certificate.
const sourceCertificate = "certificate"

// endpointServer serves the endpoints of services over xDS.
type endpointServer struct {
	endpoints *endpoints.Server
	grpc      *grpc.Server
	listener  net.Listener
	end       context.CancelFunc // ends all streams
}

// openEndpoints listens; nil when endpoints are not to be served.
func (c *command) openEndpoints(ctx context.Context, auth api.Authenticator, registry *cluster.Registry) (*endpointServer, error) {
	set := c.settings.Endpoints
	if set.Listen == "" {
		return nil, nil
	}
	options := []grpc.ServerOption{
		grpc.ChainStreamInterceptor((&gatekeeper{auth: auth, clients: set.Clients}).let),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: keepAliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if c.settings.TLS.CertificateFile != "" {
		secured, err := c.secured()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(secured)))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", set.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", set.Listen, err)
	}
	s := &endpointServer{grpc: grpc.NewServer(options...), listener: l}
	s.endpoints = endpoints.NewServer(endpoints.Options{Log: c.log.Named("endpoints"), Client: func(ctx context.Context, name string) (kubernetes.Interface, error) {
		found, err := registry.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		return found.Client, nil
	}})
	ctx, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.endpoints.Register(ctx, s.grpc)
	return s, nil
}

// collectors are what /metrics tells of it.
func (s *endpointServer) collectors() []prometheus.Collector {
	if s == nil {
		return nil
	}
	return []prometheus.Collector{s.endpoints}
}

// run serves until ctx ends, and then ends all streams: clients keep what they were
// told and ask another gateway. Streams that do not end within the grace are cut.
func (s *endpointServer) run(ctx context.Context, grace time.Duration) error {
	defer s.endpoints.Close()
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(s.listener) }()
	select {
	case err := <-failed:
		s.end()
		return err
	case <-ctx.Done():
	}
	s.end()
	cut := time.AfterFunc(grace, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	return nil
}

// gatekeeper lets in streams of those who prove who they are.
type gatekeeper struct {
	auth    api.Authenticator
	clients []config.EndpointClient
}

// let implements grpc.StreamServerInterceptor.
func (g *gatekeeper) let(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	p, err := g.principal(stream.Context())
	if err != nil {
		return err
	}
	return handler(srv, accessStream{stream, endpoints.WithAccess(stream.Context(), func(cluster string) error {
		if p.May(api.Viewer, cluster) {
			return nil
		}
		return status.Errorf(codes.PermissionDenied, "%s does not have the role %s on cluster %q", p.Name, api.Viewer, cluster)
	})})
}

type accessStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s accessStream) Context() context.Context { return s.ctx }

// principal is who has opened a stream: whoever a verified certificate names, or whose
// token it is.
func (g *gatekeeper) principal(ctx context.Context) (*api.Principal, error) {
	if name, ok := certified(ctx); ok {
		for _, c := range g.clients {
			if c.CommonName == name {
				return &api.Principal{Name: name, Source: sourceCertificate, Grants: []api.Grant{{Role: api.Viewer, Clusters: c.Clusters}}}, nil
			}
		}
		return nil, status.Errorf(codes.Unauthenticated, "the certificate is of %q, who is not one of gateway.endpoints.clients", name)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	p, err := api.Identify(ctx, md.Get("authorization"), g.auth)
	var bad *api.TokenError
	switch {
	case errors.As(err, &bad):
		return nil, status.Error(codes.Unauthenticated, bad.Reason)
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return p, nil
}

// certified is the common name of the certificate that a client has shown.
func certified(ctx context.Context) (name string, ok bool) {
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

// secured is how connections are encrypted, and by whom clients may be certified.
func (c *command) secured() (*tls.Config, error) {
	pair, err := openKeyPair(c.settings.TLS, c.log)
	if err != nil {
		return nil, err
	}
	own := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.current}
	if c.settings.Endpoints.ClientCAFile == "" {
		return own, nil
	}
	signers := &signers{path: c.settings.Endpoints.ClientCAFile, log: c.log}
	if err := signers.load(); err != nil {
		return nil, err
	}
	own.ClientAuth = tls.VerifyClientCertIfGiven
	own.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := own.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, signers.current()
		return now, nil
	}
	return own, nil
}

// signers are the authorities whose certificates clients may show, read again when
// their file has changed.
type signers struct {
	path string
	log  *zap.Logger

	mu    sync.Mutex
	stamp stamp
	pool  *x509.CertPool // the last good one
}

func (s *signers) current() *x509.CertPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		s.log.Warn("the authorities of clients cannot be read again, the last good ones stay in use", zap.Error(err))
	}
	return s.pool
}

// load reads the file if it has changed. The caller holds mu, or is alone.
func (s *signers) load() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("gateway.endpoints.clientCAFile: %w", err)
	}
	now := stamp{info.ModTime(), info.Size()}
	if now == s.stamp {
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
	s.pool, s.stamp = pool, now
	return nil
}
