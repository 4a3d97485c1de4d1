package server

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/session"
)

// agentService describes the service that agents call. Konnectivity's client module has no
// description of it, and generating one again would clash with its names.
var agentService = grpc.ServiceDesc{
	ServiceName: "AgentService",
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Connect", ServerStreams: true, ClientStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error {
			return server.(*Server).connect(&grpc.GenericServerStream[client.Packet, client.Packet]{ServerStream: stream})
		},
	}},
}

// RegisterAgents lets agents connect to a gRPC server.
func (s *Server) RegisterAgents(to grpc.ServiceRegistrar) { to.RegisterService(&agentService, s) }

// RegisterClients lets konnectivity's clients dial through a gRPC server.
func (s *Server) RegisterClients(to grpc.ServiceRegistrar) {
	client.RegisterProxyServiceServer(to, proxyService{server: s})
}

// connect serves an agent until its stream ends.
func (s *Server) connect(stream grpc.BidiStreamingServer[client.Packet, client.Packet]) error {
	ctx := stream.Context()
	cluster, err := s.opts.Agent(ctx)
	if err != nil {
		return s.Refuse("agent", cluster, err)
	}
	agent, flowControl, err := s.greet(ctx, cluster)
	if err != nil {
		return s.Refuse("agent", cluster, err)
	}
	if s.isDraining() {
		return errDraining
	}
	if err := stream.SendHeader(s.header(flowControl)); err != nil {
		return err
	}
	log := s.log.With(zap.String("cluster", cluster), zap.String("agent", agent.ID))
	c := &connection{Agent: agent, flowControl: flowControl, since: time.Now()}
	c.session = session.New(stream, session.Options{
		FlowControl: flowControl,
		Draining: func() {
			s.drain(c)
			log.Info("tunnel: an agent drains")
			if flowControl {
				_ = c.session.Send(session.Drain()) // from now on it gets no dial that another one can take
			}
		},
		Problem: func(err error) { s.metrics.problem(cluster); log.Warn("tunnel: a packet is ignored", zap.Error(err)) },
		Moved:   func(n int) { s.metrics.moved(cluster, n) },
	})
	if !s.add(cluster, c) {
		return errDraining
	}
	defer s.remove(cluster, c)
	log.Info("tunnel: an agent has connected", zap.String("offers", agent.Identifiers.String()))
	err = c.session.Serve(ctx, func() {})
	log.Info("tunnel: an agent has gone", zap.NamedError("reason", err))
	return nil
}

// Refuse counts and logs that an agent or a client is refused, and returns why.
func (s *Server) Refuse(who, cluster string, err error) error {
	s.metrics.refused.WithLabelValues(who).Inc()
	s.log.Warn("tunnel: refused", zap.String("who", who), zap.String("cluster", cluster), zap.Error(err))
	return err
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// greet reads what an agent says of itself.
func (s *Server) greet(ctx context.Context, cluster string) (agent Agent, flowControl bool, err error) {
	settings, known := s.opts.Clusters[cluster]
	if !known {
		return Agent{}, false, status.Errorf(codes.PermissionDenied, "the configuration has no tunnel for the cluster %q", cluster)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	ids := md.Get(tunnel.HeaderAgentID)
	if len(ids) != 1 || ids[0] == "" {
		return Agent{}, false, status.Errorf(codes.InvalidArgument, "want exactly one agentID, got %q", ids)
	}
	agent.ID = ids[0]
	switch offers := md.Get(tunnel.HeaderIdentifiers); len(offers) {
	case 0:
	case 1:
		if agent.Identifiers, err = tunnel.ParseIdentifiers(offers[0]); err != nil {
			return Agent{}, false, status.Error(codes.InvalidArgument, err.Error())
		}
	default:
		return Agent{}, false, status.Errorf(codes.InvalidArgument, "want at most one agentIdentifiers, got %q", offers)
	}
	if err := agent.Identifiers.Within(settings.Offers); err != nil {
		return Agent{}, false, status.Errorf(codes.PermissionDenied, "cluster %s: %s", cluster, err)
	}
	version := md.Get(session.FlowControlHeader)
	return agent, len(version) == 1 && version[0] == session.FlowControlVersion, nil
}

func (s *Server) header(flowControl bool) metadata.MD {
	md := metadata.Pairs(tunnel.HeaderServerID, s.opts.ID, tunnel.HeaderServerCount, strconv.Itoa(s.opts.Count))
	if flowControl {
		md.Set(session.FlowControlHeader, session.FlowControlVersion)
	}
	return md
}

// proxyService dials for konnectivity's clients.
type proxyService struct {
	client.UnimplementedProxyServiceServer
	server *Server
}

// Proxy serves a client until its stream ends.
func (p proxyService) Proxy(stream client.ProxyService_ProxyServer) error {
	ctx := stream.Context()
	cluster, err := p.server.opts.Client(ctx)
	if err != nil {
		return p.server.Refuse("client", cluster, err)
	}
	s := session.New(stream, session.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := p.server.Dial(ctx, cluster, network, address)
			if err != nil {
				return nil, err // a nil *session.Conn is not a nil net.Conn
			}
			return c, nil
		},
		Problem: func(err error) {
			p.server.metrics.problem(cluster)
			p.server.log.Warn("tunnel: a packet of a client is ignored", zap.String("cluster", cluster), zap.Error(err))
		},
	})
	if err := s.Serve(ctx, func() {}); ctx.Err() != nil {
		return fmt.Errorf("the client's stream has ended: %w", err)
	}
	return nil
}
