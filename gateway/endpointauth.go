package main

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/config"
	"ebb/internal/endpoints"
	"ebb/internal/wait"
)

// sourceCertificate is the source of principals who have authenticated with a client
// certificate.
const sourceCertificate = "certificate"

// authInterceptor authenticates streams, by client certificate or bearer token, now and
// again while they are open, and writes to the log who has opened one and who was refused.
type authInterceptor struct {
	auth     auth.Authenticator
	clients  []config.EndpointClient
	cas      *clientCAs // nil = nobody comes with a certificate
	log      *zap.Logger
	failures *auth.Limiter // of authentications, by IP address, as at the HTTP API
	recheck  time.Duration // for how long a right that was taken away keeps its streams
}

func newAuthInterceptor(by auth.Authenticator, clients []config.EndpointClient, cas *clientCAs, log *zap.Logger) *authInterceptor {
	return &authInterceptor{
		auth: by, clients: clients, cas: cas, log: log.Named("audit"), recheck: auth.RecheckInterval,
		failures: auth.NewLimiter(auth.FailuresPerSecond, auth.FailuresBurst),
	}
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
	ctx, cancel := context.WithCancelCause(stream.Context())
	stop := wait.Every(g.recheck, func() {
		if err := g.withdrawal(ctx, p); err != nil {
			cancel(withdrawn{err})
		}
	})
	err = handler(srv, accessStream{stream, endpoints.WithAuthorizer(ctx, authorizer(p, log))})
	var ended withdrawn
	if errors.As(context.Cause(ctx), &ended) {
		err = ended.status
		log.Info("audit", zap.Stringer("code", status.Code(err)), zap.String("reason", status.Convert(err).Message()))
	}
	cancel(nil) // ends a check that is under way, so that it is not waited for
	stop()
	return err
}

// withdrawn ends the context of a stream that may not go on.
type withdrawn struct{ status error }

func (w withdrawn) Error() string { return w.status.Error() }

// withdrawal returns why a stream may not go on, a gRPC status error: the token or the
// certificate of its principal is not good any more, or good for something else; then its
// client asks for all its names again. It is nil as well when that cannot be found out now.
func (g *authInterceptor) withdrawal(ctx context.Context, was *auth.Principal) error {
	now, err := g.principal(ctx)
	switch {
	case status.Code(err) == codes.Unauthenticated:
		return err
	case err == nil && !sameView(was, now):
		return status.Errorf(codes.Unavailable, "what %s may look at has changed: ask again", was.Name)
	}
	return nil
}

// sameView reports whether two principals may look at the same clusters.
func sameView(a, b *auth.Principal) bool {
	some, all := a.VisibleClusters()
	now, allNow := b.VisibleClusters()
	return all == allNow && slices.Equal(some, now)
}

// authorizer returns what says of which clusters a principal may ask for services.
func authorizer(p *auth.Principal, log *zap.Logger) func(cluster string) error {
	return func(cluster string) error {
		if p.May(auth.Viewer, cluster) {
			return nil
		}
		err := status.Errorf(codes.PermissionDenied, "%s does not have the role %s on cluster %q", p.Name, auth.Viewer, cluster)
		log.Info("audit", zap.String("cluster", wire.Truncate(cluster)), zap.Stringer("code", codes.PermissionDenied))
		return err
	}
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
	if chain := certificates(ctx); len(chain) > 0 {
		return g.certified(chain)
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

// certified returns whose a client certificate is, or a gRPC status error. chain are the
// certificate and those in between.
func (g *authInterceptor) certified(chain []*x509.Certificate) (*auth.Principal, error) {
	if err := g.cas.verify(chain); err != nil {
		return nil, status.Errorf(codes.Unauthenticated, "the certificate is not good any more: %v", err)
	}
	name := chain[0].Subject.CommonName
	for _, c := range g.clients {
		if c.CommonName == name {
			return &auth.Principal{Name: name, Source: sourceCertificate, Grants: []auth.Grant{{Role: auth.Viewer, Clusters: c.Clusters}}}, nil
		}
	}
	return nil, status.Errorf(codes.Unauthenticated, "the certificate is of %q, who is not one of gateway.endpoints.clients", name)
}

// certificates returns the verified certificate of a client, with those in between after
// it; none if it has shown none.
func certificates(ctx context.Context) []*x509.Certificate {
	from, _ := peer.FromContext(ctx)
	if from == nil {
		return nil
	}
	info, secure := from.AuthInfo.(credentials.TLSInfo)
	if !secure || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.PeerCertificates
}
