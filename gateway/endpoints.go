package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/cluster"
	"ebb/internal/endpoints"
)

// Keepalive of gRPC connections.
const (
	keepAliveInterval     = 30 * time.Second // between pings to an idle client
	keepAliveTimeout      = 10 * time.Second // for its response; then the connection is closed
	minClientPingInterval = 10 * time.Second // pings of clients at this rate are tolerated; Envoy sends some
)

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
	cas, err := g.openClientCAs("gateway.endpoints.clientCAFile", set.ClientCAFile)
	if err != nil {
		return nil, err
	}
	options := []grpc.ServerOption{
		grpc.ChainStreamInterceptor(newAuthInterceptor(auth, set.Clients, cas, g.log).interceptStream),
		grpc.KeepaliveParams(keepAlive(set.MaxStreamAge.D())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if g.settings.TLS.CertificateFile != "" {
		tlsConfig, err := g.tlsConfig(cas)
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
	s.endpoints = endpoints.NewServer(endpoints.Options{Log: g.log.Named("endpoints"), MaxStreamAge: set.MaxStreamAge.D(), Client: func(ctx context.Context, name string) (kubernetes.Interface, error) {
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

// keepAlive returns the parameters of connections whose streams live for maxStreamAge at
// most. A stream that is opened again goes over the same connection, to the same gateway, as
// long as that takes new streams: so it stops before the first of its streams can end, which
// is at 75 % of the age, and stays for those that it has. (gRPC makes it up to 10 % more.)
func keepAlive(maxStreamAge time.Duration) keepalive.ServerParameters {
	return keepalive.ServerParameters{
		Time: keepAliveInterval, Timeout: keepAliveTimeout,
		MaxConnectionAge: maxStreamAge * 6 / 10, MaxConnectionAgeGrace: maxStreamAge + keepAliveTimeout,
	}
}

// collectors returns the metrics of the server; s may be nil.
func (s *endpointServer) collectors() []prometheus.Collector {
	if s == nil {
		return nil
	}
	return []prometheus.Collector{s.endpoints}
}

// followed returns how the server stands with the clusters that it follows; s may be nil.
func (s *endpointServer) followed() (all []wire.FollowedCluster) {
	if s == nil {
		return nil
	}
	for _, c := range s.endpoints.Clusters() {
		one := wire.FollowedCluster{Cluster: c.Name, InStep: c.InStep()}
		if last := c.LastEvent(); !last.IsZero() {
			seconds := int64(time.Since(last).Seconds())
			one.LastEventSeconds = &seconds
		}
		for _, w := range c.Watches {
			if w.Err != nil {
				one.Failing = append(one.Failing, wire.FailingWatch{Resource: w.Resource, Error: w.Err.Error()})
			}
		}
		all = append(all, one)
	}
	return all
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

// tlsConfig returns a TLS configuration with which client certificates are verified if a CA
// for them is configured, but not required, as a client may have a token instead. protocols
// are offered by ALPN.
func (g *gateway) tlsConfig(cas *clientCAs, protocols ...string) (*tls.Config, error) {
	pair, err := openKeyPair(g.settings.TLS, g.log)
	if err != nil {
		return nil, err
	}
	own := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.current, NextProtos: protocols}
	if cas == nil {
		return own, nil
	}
	own.ClientAuth = tls.VerifyClientCertIfGiven
	own.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := own.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, cas.current()
		return now, nil
	}
	return own, nil
}
