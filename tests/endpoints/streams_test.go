package endpoints

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ebb/internal/sandbox"
)

// patientClient asks for the endpoints of one service over one client connection, and opens
// a stream again when one has ended, as Envoy does.
type patientClient struct {
	streams atomic.Int32      // that it has opened
	removed atomic.Int32      // names that were taken from it
	known   map[string]string // versions by name
}

func (p *patientClient) run(ctx context.Context, c *grpc.ClientConn, name string) {
	for ctx.Err() == nil {
		stream, err := discovery.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			continue
		}
		p.streams.Add(1)
		_ = stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{name}, InitialResourceVersions: p.known}) // Recv has the error
		for {
			told, err := stream.Recv()
			if err != nil {
				break
			}
			p.removed.Add(int32(len(told.GetRemovedResources()))) // #nosec G115 -- of one
			for _, r := range told.GetResources() {
				p.known[r.GetName()] = r.GetVersion()
			}
			_ = stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResponseNonce: told.GetNonce()})
		}
	}
}

// After a roll every client is at the gateway that was there first. Its streams end by
// themselves, at different times, and are opened at any gateway; nothing is taken from
// clients meanwhile, and no call that is led by them fails.
func TestClientsSpreadOverGatewaysAfterARoll(t *testing.T) {
	const name, clients, age = "prod/default/aged:80", 6, "maxStreamAge: 4s"
	deployWorkload(t, sandbox.Workload{Name: "aged", Replicas: 2})
	f := servePods(t, "aged")
	f.waitFor(func(at map[string]string) bool { return len(at) == 2 })
	first := newGateway(t, age)
	second := freeAddress(t)
	b := startBalancer(t, first.xdsAddress, second)
	u, stopCalls := startTraffic(t, f, b.address(), name, fmt.Sprintf(
		`{"type": "tls", "config": {"ca_certificate_file": %q, "certificate_file": %q, "private_key_file": %q}}`,
		first.ca.path("ca.crt"), first.ca.path("envoy.prod.crt"), first.ca.path("envoy.prod.key")))
	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	all := make([]*patientClient, clients)
	for i := range all {
		all[i] = &patientClient{known: map[string]string{}}
		c := dial(t, b.address(), []grpc.DialOption{first.ca.clientCredentials(first.ca, "envoy.prod")})
		going.Go(func() { all[i].run(ctx, c, name) })
	}
	streamsOf := func(g *gateway) (open int) {
		_, after, _ := strings.Cut(g.metrics(), "\nebb_endpoints_streams ")
		_, _ = fmt.Sscan(after, &open) // 0 if it is not there
		return open
	}
	require.Eventually(t, func() bool { return streamsOf(first) == clients+1 }, waitTimeout, 50*time.Millisecond, "with that of the calls")
	other := first.replica(second, age)
	require.Eventually(t, func() bool { return streamsOf(first) > 0 && streamsOf(other) > 0 }, waitTimeout, 50*time.Millisecond, "both are used")
	for _, p := range all {
		require.Eventually(t, func() bool { return p.streams.Load() >= 3 }, waitTimeout, 50*time.Millisecond)
	}
	stopCalls()
	cancel()
	going.Wait()
	require.Empty(t, u.failed, "of %d calls", u.calls)
	for _, p := range all {
		require.Zero(t, p.removed.Load())
	}
}

// openAs opens a stream with a token or, without, a certificate, and asks for a service that
// it is told of.
func (g *gateway) openAs(token, cert string) *xdsClient {
	g.t.Helper()
	ctx := g.t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	s := openDelta(ctx, g.t, g.xdsAddress, g.ca.clientCredentials(g.ca, cert))
	s.request(resource.EndpointType, []string{reauthorised}, response{})
	return s
}

const reauthorised = "prod/default/reauthorised:80"

// A token that is taken away, or is good for another cluster, and a certificate whose
// authority is not trusted any more, end the streams that they have opened. Others stay.
func TestOpenStreamsAreAuthorisedAgain(t *testing.T) {
	createServiceWithEndpoint(t, "reauthorised", "10.9.0.1")
	g := newGateway(t)
	told := map[string]string{"10.9.0.1": healthy}
	revoked, changed := g.addToken("revoked", "prod"), g.addToken("changed", "prod")
	require.NoError(t, g.process.Stop())
	g.start() // with both
	streams := map[string]*xdsClient{"revoked": g.openAs(revoked, ""), "changed": g.openAs(changed, ""), "certified": g.openAs("", "envoy.prod"), "kept": g.openAs(g.token, "")}
	for _, s := range streams {
		s.waitForEndpoints(reauthorised, told)
	}
	g.tokens = slices.DeleteFunc(g.tokens, func(one tokenEntry) bool { return one.name == "revoked" })
	g.tokens[len(g.tokens)-1].cluster = "dev" // of the token "changed", which came last
	g.writeTokens()
	other := newCertificateAuthority(t, "somebody else's")
	g.ca.writePEM("ca.crt", "CERTIFICATE", other.cert.Raw)
	for name, want := range map[string]struct {
		code codes.Code
		text string
	}{
		"revoked":   {codes.Unauthenticated, "not known"},
		"changed":   {codes.Unavailable, "what changed may look at has changed"},
		"certified": {codes.Unauthenticated, "signed by unknown authority"},
	} {
		err := streams[name].refusal(reauthorised)
		require.Equal(t, want.code, status.Code(err), "%s: %v", name, err)
		require.ErrorContains(t, err, want.text)
	}
	err := g.openAs(changed, "").refusal(reauthorised)
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	setEndpointAddress(t, "reauthorised", "10.9.0.2")
	streams["kept"].waitForEndpoints(reauthorised, map[string]string{"10.9.0.2": healthy})
}
