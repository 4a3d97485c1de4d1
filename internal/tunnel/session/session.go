// Package session carries connections over a stream of konnectivity's packets. Both of its
// ends use it: the one that dials (a server towards an agent) and the one that is
// dialled (an agent towards its server, a server towards its clients).
package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Transport is a stream of packets, such as a gRPC stream in both directions. One goroutine
// calls Send, another one Recv; both return an error once the stream has ended.
type Transport interface {
	Send(*client.Packet) error
	Recv() (*client.Packet, error)
}

// sendCloser is a transport whose end can be told after all that was sent, as the client's
// end of a gRPC stream.
type sendCloser interface{ CloseSend() error }

// ErrEnded is in the error of everything that the end of a session has ended.
var ErrEnded = errors.New("the session has ended")

// RefusedError is a dial that the other end has answered with an error.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Options of a session.
type Options struct {
	// Dial answers dial requests. nil = this end dials, and is not dialled.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	FlowControl bool        // both ends have agreed to it
	Draining    func()      // the other end has sent DRAIN; nil = it is not expected to
	Problem     func(error) // a packet that makes no sense; it is ignored. nil = nobody wants to know
	Moved       func(n int) // so many bytes were read from or written to connections; nil = nobody counts
}

// Session is one stream with its connections.
type Session struct {
	transport Transport
	opts      Options
	out       outbox
	ended     chan struct{} // closed when the session has ended
	cause     error         // read it after ended
	lastID    atomic.Int64

	mu       sync.Mutex
	conns    map[int64]*Conn
	pending  map[int64]chan dialed        // dials that wait for their answer, by random
	dialling map[int64]context.CancelFunc // dials that are made for the other end, by random
	workers  sync.WaitGroup
}

// dialed is the answer to a dial.
type dialed struct {
	conn *Conn
	err  error
}

// New returns a session over a transport; Serve lets it live.
func New(transport Transport, o Options) *Session {
	s := &Session{
		transport: transport, opts: o, ended: make(chan struct{}),
		conns: map[int64]*Conn{}, pending: map[int64]chan dialed{}, dialling: map[int64]context.CancelFunc{},
	}
	s.out.init()
	return s
}

// Serve carries packets until the transport ends and returns why; nothing of the session is
// left then. The transport must be made to end its calls, as by its context, when another
// error than its own ends the session.
func (s *Session) Serve(ctx context.Context, end func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	writer := make(chan error, 1)
	go func() {
		err := s.out.drain(s.transport.Send, s.ended)
		if t, ok := s.transport.(sendCloser); ok && err == nil {
			_ = t.CloseSend() // the other end answers by ending the stream
		} else {
			end() // Recv returns
		}
		writer <- err
	}()
	err := s.receive(ctx)
	s.finish(err)
	cancel()
	end()
	err = errors.Join(err, <-writer)
	s.workers.Wait()
	return err
}

// receive handles packets in their order until there are no more.
func (s *Session) receive(ctx context.Context) error {
	for {
		p, err := s.transport.Recv()
		if err != nil {
			return err
		}
		if err := s.handle(ctx, p); err != nil && s.opts.Problem != nil {
			s.opts.Problem(err)
		}
	}
}

// finish ends every connection and every dial.
func (s *Session) finish(cause error) {
	s.mu.Lock()
	s.cause = fmt.Errorf("%w: %w", ErrEnded, cause)
	conns, pending, dialling := s.conns, s.pending, s.dialling
	s.conns, s.pending, s.dialling = nil, nil, nil
	close(s.ended)
	s.mu.Unlock()
	for _, answer := range pending {
		answer <- dialed{err: s.cause}
	}
	for _, cancel := range dialling {
		cancel()
	}
	for _, c := range conns {
		c.fail(s.cause)
	}
}

// Finish ends the session after everything that is on its way has been sent.
func (s *Session) Finish() error { return s.out.finish() }

// Ended returns a channel that is closed when the session has ended.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Streams returns how many dials and connections the session has.
func (s *Session) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) + len(s.pending) + len(s.dialling)
}

// Send queues a packet that belongs to no connection, such as DRAIN.
func (s *Session) Send(p *client.Packet) error { return s.out.control(p) }

// Dial asks the other end for a connection. The error is a *RefusedError when the other end
// has answered, wraps ErrEnded when the session ended before, and is ctx's when that did.
func (s *Session) Dial(ctx context.Context, network, address string) (*Conn, error) {
	answer := make(chan dialed, 1) // there is one answer: from the packet, or from the end
	random, err := s.expect(answer)
	if err != nil {
		return nil, err
	}
	if err := s.out.data(ctx.Done(), s.ended, dialRequest(random, network, address)); err != nil {
		return nil, s.abandon(ctx, random, answer)
	}
	select {
	case got := <-answer:
		return got.conn, got.err
	case <-ctx.Done():
		return nil, s.abandon(ctx, random, answer)
	}
}

// expect registers a dial.
func (s *Session) expect(answer chan dialed) (random int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return 0, s.cause
	}
	for random == 0 || s.pending[random] != nil {
		random = rand.Int64() // #nosec G404 -- it only has to differ from the others
	}
	s.pending[random] = answer
	return random, nil
}

// abandon gives up a dial whose context has ended, or whose session has, and returns why.
func (s *Session) abandon(ctx context.Context, random int64, answer chan dialed) error {
	s.mu.Lock()
	_, waits := s.pending[random]
	delete(s.pending, random)
	s.mu.Unlock()
	if waits {
		_ = s.out.control(dialClose(random)) // the session has ended otherwise
		return ctx.Err()
	}
	got := <-answer // it came in the same moment
	if got.err != nil {
		return got.err
	}
	_ = got.conn.Close()
	return ctx.Err()
}
