package server

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ebb/internal/tunnel/session"
	"ebb/internal/wait"
)

// idleInterval is how often AwaitIdle looks.
const idleInterval = 20 * time.Millisecond

// errDraining is what agents hear that come while the server drains.
var errDraining = status.Error(codes.Unavailable, "this gateway is about to end: connect to another one")

// Drain begins the end of the server: agents are refused, and those that are connected are
// told to connect to another server; konnectivity's do not understand that and come to one
// when this one has ended. Dials go on.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	var told []*connection
	for _, all := range s.connections {
		told = append(told, all...)
	}
	s.mu.Unlock()
	for _, c := range told {
		if c.flowControl {
			_ = c.session.Send(session.Drain()) // the session has ended otherwise
		}
	}
	s.log.Info("tunnel: draining", zap.Int("agents", len(told)), zap.Int("streams", s.Streams()))
}

// Streams returns how many dials are under way and connections carried.
func (s *Server) Streams() (n int) {
	for _, c := range s.Connections() {
		n += c.Streams
	}
	return n
}

// AwaitIdle returns nil when nothing is carried, and the error of ctx when that ends before.
func (s *Server) AwaitIdle(ctx context.Context) error {
	return wait.Poll(ctx, idleInterval, func() (bool, error) { return s.Streams() == 0, nil })
}
