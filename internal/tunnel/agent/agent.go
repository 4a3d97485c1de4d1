// Package agent connects to tunnel servers and dials for them, until it drains: then it
// takes no new connections to servers, lets what it carries end, and is done.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/session"
	"ebb/internal/wait"
)

const (
	// drainAnswer is how long a server may take to answer DRAIN; one that does not know the
	// answer, as konnectivity's, is given as long.
	drainAnswer = time.Second

	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
	maxAgain = 2 * time.Second // when a balancer chooses servers that are connected, while one is missing

	openTimeout = 10 * time.Second // from the call of a server to its header
	dialTimeout = 30 * time.Second // of a destination
)

// Options of an agent.
type Options struct {
	Connect      func() (*grpc.ClientConn, error) // a new connection to one of the servers
	ID           string
	Identifiers  tunnel.Identifiers
	DrainTimeout time.Duration // how long connections may last after the drain began
	Refresh      time.Duration // how often missing servers are looked for while some are connected
	Log          *zap.Logger
}

// Agent connects to as many servers as they say there are.
type Agent struct {
	opts Options
	log  *zap.Logger

	drainOnce sync.Once
	draining  chan struct{} // closed when the drain begins

	mu      sync.Mutex
	servers map[string]*link // by serverID; without those that leave
	leaving map[*link]bool   // servers that are about to end: they carry on what they have
	wanted  int              // serverCount, the last that a server said
}

// link is a connection to a server.
type link struct {
	session  *session.Session
	answered chan struct{} // closed when the server has answered DRAIN
	end      context.CancelFunc
}

// New returns an agent that is not connected yet.
func New(o Options) *Agent {
	return &Agent{opts: o, log: o.Log, draining: make(chan struct{}), servers: map[string]*link{}, leaving: map[*link]bool{}, wanted: 1}
}

// Drain begins the drain; Run returns when it is over.
func (a *Agent) Drain() { a.drainOnce.Do(func() { close(a.draining) }) }

func (a *Agent) isDraining() bool {
	select {
	case <-a.draining:
		return true
	default:
		return false
	}
}

// Ready returns nil while at least one server is connected and the agent does not drain.
func (a *Agent) Ready() error {
	if a.isDraining() {
		return errors.New("draining")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.servers) == 0 {
		return errors.New("no server is connected")
	}
	return nil
}

// Streams returns how many dials and connections the agent carries.
func (a *Agent) Streams() (n int) {
	for _, l := range a.links() {
		n += l.session.Streams()
	}
	return n
}

// Run connects and dials until the drain is over, or ctx ends, which cuts what is left.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var links sync.WaitGroup
	a.connectUntilDrained(ctx, &links)
	err := a.drain(ctx)
	cancel()
	links.Wait()
	return err
}

// connectUntilDrained keeps a connection to each server.
func (a *Agent) connectUntilDrained(running context.Context, links *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(running)
	defer cancel()
	go func() {
		select {
		case <-a.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause := minPause
	for ctx.Err() == nil {
		fresh, err := a.connectOnce(ctx, running, links)
		switch {
		case err != nil:
			a.log.Warn("a server cannot be reached", zap.Error(err), zap.Duration("again after", pause))
			pause = min(2*pause, maxPause)
		case fresh:
			pause = minPause
			if a.missing() {
				continue
			}
		default: // a balancer has chosen one that is connected already
			pause = min(2*pause, maxAgain)
		}
		next := pause
		if err == nil && !a.missing() {
			next = a.opts.Refresh
		}
		if a.sleep(ctx, next/2+rand.N(next)) != nil { // #nosec G404 -- so that agents do not come at once
			return
		}
	}
}

// sleep returns early when a server is lost.
func (a *Agent) sleep(ctx context.Context, d time.Duration) error {
	until := time.Now().Add(d)
	missing := a.missing()
	for left := d; left > 0; left = time.Until(until) {
		if err := wait.Sleep(ctx, min(left, minPause)); err != nil {
			return err
		}
		if !missing && a.missing() {
			return nil
		}
	}
	return nil
}

func (a *Agent) missing() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.servers) < a.wanted
}

// connectOnce opens a stream; fresh = to a server that was not connected yet, which the
// stream then serves.
func (a *Agent) connectOnce(ctx, running context.Context, links *sync.WaitGroup) (fresh bool, err error) {
	conn, err := a.opts.Connect()
	if err != nil {
		return false, err
	}
	streamCtx, end := context.WithCancel(running) // it outlives ctx, which ends when the drain begins
	closeAll := func() { end(); _ = conn.Close() }
	opening, opened := context.WithTimeout(ctx, openTimeout)
	defer opened()
	stream, serverID, flowControl, err := a.open(opening, streamCtx, conn)
	if err != nil {
		closeAll()
		return false, err
	}
	l := &link{answered: make(chan struct{}), end: end}
	var answer sync.Once
	l.session = session.New(stream, session.Options{
		FlowControl: flowControl, Dial: a.dial,
		Draining: func() {
			if a.isDraining() {
				answer.Do(func() { close(l.answered) })
				return
			}
			a.leave(serverID, l)
		},
		Problem: func(err error) { a.log.Warn("a packet is ignored", zap.String("server", serverID), zap.Error(err)) },
	})
	if !a.add(serverID, l) {
		closeAll()
		return false, nil
	}
	a.log.Info("connected", zap.String("server", serverID))
	links.Go(func() {
		defer closeAll()
		err := l.session.Serve(streamCtx, end)
		a.remove(serverID, l)
		a.log.Info("disconnected", zap.String("server", serverID), zap.NamedError("reason", err))
	})
	return true, nil
}

// open calls the server and hears who it is.
func (a *Agent) open(ctx, streamCtx context.Context, conn *grpc.ClientConn) (stream grpc.BidiStreamingClient[client.Packet, client.Packet], serverID string, flowControl bool, err error) {
	md := metadata.Pairs(tunnel.HeaderAgentID, a.opts.ID, tunnel.HeaderIdentifiers, a.opts.Identifiers.String(), session.FlowControlHeader, session.FlowControlVersion)
	raw, err := conn.NewStream(metadata.NewOutgoingContext(streamCtx, md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tunnel.AgentMethod)
	if err != nil {
		return nil, "", false, err
	}
	stream = &grpc.GenericClientStream[client.Packet, client.Packet]{ClientStream: raw}
	header, err := headerOf(ctx, stream)
	if err != nil {
		return nil, "", false, err
	}
	ids, counts := header.Get(tunnel.HeaderServerID), header.Get(tunnel.HeaderServerCount)
	if len(ids) != 1 || len(counts) != 1 {
		return nil, "", false, fmt.Errorf("the server has sent serverID %q and serverCount %q, want one of each", ids, counts)
	}
	count, err := strconv.Atoi(counts[0])
	if err != nil || count < 1 {
		return nil, "", false, fmt.Errorf("the server has sent serverCount %q, want a number above 0", counts[0])
	}
	a.mu.Lock()
	a.wanted = count
	a.mu.Unlock()
	version := header.Get(session.FlowControlHeader)
	return stream, ids[0], len(version) == 1 && version[0] == session.FlowControlVersion, nil
}

// headerOf waits for the server's header. A server that ends the stream sends none, and says why.
func headerOf(ctx context.Context, stream grpc.ClientStream) (metadata.MD, error) {
	type result struct {
		md  metadata.MD
		err error
	}
	got := make(chan result, 1)
	go func() {
		md, err := stream.Header()
		if err == nil && len(md.Get(tunnel.HeaderServerID)) == 0 {
			if err = stream.RecvMsg(&client.Packet{}); err == nil || errors.Is(err, io.EOF) {
				err = nil // it will be told that the header lacks what it must have
			}
		}
		got <- result{md, err}
	}()
	select {
	case r := <-got:
		return r.md, r.err
	case <-ctx.Done():
		return nil, ctx.Err() // the stream is ended by its own context
	}
}

func (a *Agent) add(serverID string, l *link) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.servers[serverID] != nil {
		return false
	}
	a.servers[serverID] = l
	return true
}

func (a *Agent) remove(serverID string, l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.servers[serverID] == l {
		delete(a.servers, serverID)
	}
	delete(a.leaving, l)
}

// leave notes that a server is about to end, so that another one is looked for.
func (a *Agent) leave(serverID string, l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.servers[serverID] == l {
		delete(a.servers, serverID)
		a.leaving[l] = true
		a.log.Info("a server is about to end", zap.String("server", serverID))
	}
}

func (a *Agent) links() (all []*link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.servers {
		all = append(all, l)
	}
	for l := range a.leaving {
		all = append(all, l)
	}
	return all
}

// dial connects to a destination.
func (a *Agent) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("protocol %q, want tcp", network)
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
}

// drain tells every server, and returns when the last connection has ended, or when
// DrainTimeout is over, which is an error with what was cut.
func (a *Agent) drain(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.log.Info("draining", zap.Int("streams", a.Streams()))
	ctx, cancel := context.WithTimeout(ctx, a.opts.DrainTimeout)
	defer cancel()
	var all sync.WaitGroup
	links := a.links()
	errs := make(chan error, len(links))
	for _, l := range links {
		all.Go(func() { errs <- l.drain(ctx) })
	}
	all.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// drain tells the server and ends the link when it carries nothing more.
func (l *link) drain(ctx context.Context) error {
	defer l.end()
	_ = l.session.Send(session.Drain()) // the session has ended otherwise
	select {
	case <-l.answered:
	case <-time.After(drainAnswer):
	case <-l.session.Ended():
		return nil
	}
	err := wait.Poll(ctx, 10*time.Millisecond, func() (bool, error) { return l.session.Streams() == 0, nil })
	if err != nil {
		return fmt.Errorf("%d connections are cut: %w", l.session.Streams(), err)
	}
	_ = l.session.Finish()
	select {
	case <-l.session.Ended():
	case <-time.After(drainAnswer):
	}
	return nil
}
