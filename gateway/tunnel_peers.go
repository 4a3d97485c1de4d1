package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/tunnel"
	"ebb/internal/tunnel/front"
)

// reviewTimeout is how long a cluster may take to say whose a token is.
const reviewTimeout = 10 * time.Second

// tunnelPeers tells of which cluster agents are, and in which clients may dial.
type tunnelPeers struct {
	settings config.GatewayTunnel
	clusters map[string]config.ClusterTunnel
	registry *cluster.Registry
	failures *auth.Limiter // by IP address
}

func newTunnelPeers(set config.GatewayTunnel, clusters map[string]config.ClusterTunnel, registry *cluster.Registry) *tunnelPeers {
	return &tunnelPeers{settings: set, clusters: clusters, registry: registry, failures: auth.NewLimiter(auth.FailuresPerSecond, auth.FailuresBurst)}
}

// agentCluster returns the cluster of the agent that has opened a stream, or a gRPC status error.
func (p *tunnelPeers) agentCluster(ctx context.Context) (string, error) {
	name, err := p.identifyAgent(ctx)
	return name, p.limit(front.PeerOf(ctx), err)
}

// limit replaces the error of somebody who fails too often.
func (p *tunnelPeers) limit(who front.Peer, err error) error {
	if err != nil && who.Remote != "" && !p.failures.Allow(who.Remote) {
		return status.Error(codes.ResourceExhausted, "too many connections without a valid certificate or token come from your address")
	}
	return err
}

func (p *tunnelPeers) identifyAgent(ctx context.Context) (string, error) {
	who := front.PeerOf(ctx)
	switch {
	case who.Cluster != "":
		return "", status.Error(codes.PermissionDenied, "this socket is for clients: agents connect to gateway.tunnel.listen")
	case who.CommonName != "":
		for _, a := range p.settings.Agents {
			if a.CommonName == who.CommonName {
				return a.Cluster, nil
			}
		}
		return "", status.Errorf(codes.Unauthenticated, "the certificate is of %q, who is not one of gateway.tunnel.agents", who.CommonName)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return p.identifyByToken(ctx, md.Get("authorization"), md.Get(tunnel.HeaderCluster))
}

// identifyByToken lets the cluster that an agent claims to be of check its token.
func (p *tunnelPeers) identifyByToken(ctx context.Context, headers, claimed []string) (string, error) {
	if len(headers) != 1 {
		return "", status.Error(codes.Unauthenticated, "show a certificate, or one token: authorization: Bearer …")
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", status.Error(codes.Unauthenticated, "the metadata authorization must be: Bearer, a space, and the token")
	}
	name, err := p.claimedCluster(claimed)
	if err != nil {
		return "", err
	}
	user, err := p.review(ctx, name, token)
	if err != nil {
		return "", err
	}
	if want := "system:serviceaccount:" + strings.ReplaceAll(p.clusters[name].ServiceAccount, "/", ":"); user != want {
		return "", status.Errorf(codes.PermissionDenied, "the token is of %s, agents of cluster %s are %s", user, name, want)
	}
	return name, nil
}

// claimedCluster returns the cluster whose token an agent shows; it may say nothing when only one takes tokens.
func (p *tunnelPeers) claimedCluster(claimed []string) (string, error) {
	var taken []string
	for _, name := range slices.Sorted(maps.Keys(p.clusters)) {
		if p.clusters[name].ServiceAccount != "" {
			taken = append(taken, name)
		}
	}
	switch {
	case len(claimed) == 0 && len(taken) == 1:
		return taken[0], nil
	case len(claimed) != 1:
		return "", status.Errorf(codes.InvalidArgument, "say once of which cluster the token is, in the metadata %s", tunnel.HeaderCluster)
	case !slices.Contains(taken, claimed[0]):
		return "", status.Errorf(codes.PermissionDenied, "cluster %q has no tunnel.serviceAccount here", wire.Truncate(claimed[0]))
	}
	return claimed[0], nil
}

// review asks a cluster whose a token is.
func (p *tunnelPeers) review(ctx context.Context, name, token string) (user string, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	found, err := p.registry.Get(ctx, name)
	if err != nil {
		return "", status.Errorf(codes.Unavailable, "the token cannot be checked now: %v", err)
	}
	audience := p.clusters[name].Audience
	answer, err := found.Client.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{
		Spec: authentication.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}, meta.CreateOptions{})
	switch {
	case err != nil:
		return "", status.Errorf(codes.Unavailable, "cluster %s cannot check the token now: %v", name, err)
	case !answer.Status.Authenticated || !slices.Contains(answer.Status.Audiences, audience):
		return "", status.Errorf(codes.Unauthenticated, "cluster %s does not accept the token for the audience %s: %s", name, audience, answer.Status.Error)
	}
	return answer.Status.User.Username, nil
}

// clientCluster returns the cluster that konnectivity's client dials in, or a gRPC status error.
func (p *tunnelPeers) clientCluster(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	name, err := p.dialledCluster(front.PeerOf(ctx), md.Get(tunnel.HeaderCluster))
	if err != nil {
		if status.Code(err) == codes.ResourceExhausted {
			return "", err
		}
		return "", status.Error(codes.PermissionDenied, err.Error())
	}
	return name, nil
}

// requestCluster returns the cluster that a client dials in by HTTP.
func (p *tunnelPeers) requestCluster(r *http.Request) (string, error) {
	return p.dialledCluster(front.PeerOf(r.Context()), r.Header.Values(tunnel.HeaderCluster))
}

func (p *tunnelPeers) dialledCluster(who front.Peer, asked []string) (string, error) {
	may, err := p.clustersOf(who)
	if err != nil {
		return "", p.limit(who, err)
	}
	switch {
	case len(asked) > 1:
		return "", fmt.Errorf("want one cluster in %s, got %d", tunnel.HeaderCluster, len(asked))
	case len(asked) == 0 && len(may) == 1:
		return may[0], nil
	case len(asked) == 0:
		return "", fmt.Errorf("say in %s which cluster you dial in: one of %s", tunnel.HeaderCluster, strings.Join(may, ", "))
	case !slices.Contains(may, asked[0]):
		return "", fmt.Errorf("you may not dial in cluster %q", wire.Truncate(asked[0]))
	}
	return asked[0], nil
}

// clustersOf returns the clusters with a tunnel in which a client may dial.
func (p *tunnelPeers) clustersOf(who front.Peer) ([]string, error) {
	switch {
	case who.Cluster != "":
		return []string{who.Cluster}, nil
	case who.CommonName == "":
		return nil, fmt.Errorf("show a certificate of one of gateway.tunnel.clients")
	}
	i := slices.IndexFunc(p.settings.Clients, func(c config.TunnelClient) bool { return c.CommonName == who.CommonName })
	if i < 0 {
		return nil, fmt.Errorf("the certificate is of %q, who is not one of gateway.tunnel.clients", who.CommonName)
	}
	var may []string
	for _, name := range slices.Sorted(maps.Keys(p.clusters)) {
		if all := p.settings.Clients[i].Clusters; slices.Contains(all, "*") || slices.Contains(all, name) {
			may = append(may, name)
		}
	}
	return may, nil
}
