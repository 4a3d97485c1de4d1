package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// handle does what a packet says. The error is for the log: the packet is ignored.
func (s *Session) handle(ctx context.Context, p *client.Packet) error {
	switch p.GetType() {
	case client.PacketType_DATA:
		return s.handleData(p.GetData())
	case client.PacketType_CLOSE_RSP, client.PacketType_CLOSE_REQ:
		return s.handleClose(p)
	case packetWindow, packetEOF:
		return s.handleFlow(p)
	case client.PacketType_DRAIN:
		if s.opts.Draining == nil {
			return fmt.Errorf("%s came from one that is not an agent", p.GetType())
		}
		s.opts.Draining()
		return nil
	case client.PacketType_DIAL_REQ, client.PacketType_DIAL_RSP, client.PacketType_DIAL_CLS: // it depends on which end this is
	}
	if s.opts.Dial == nil {
		return s.handleAnswer(p)
	}
	return s.handleDial(ctx, p)
}

func (s *Session) conn(id int64) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[id]
}

func (s *Session) handleData(d *client.Data) error {
	c := s.conn(d.GetConnectID())
	if c == nil {
		_ = s.out.control(s.closing(d.GetConnectID(), "no such connection"))
		return fmt.Errorf("%d bytes for the connection %d, which is none", len(d.GetData()), d.GetConnectID())
	}
	return c.deliver(d.GetData())
}

// closing returns the packet with which this end closes a connection.
func (s *Session) closing(id int64, problem string) *client.Packet {
	if s.opts.Dial == nil {
		return closeRequest(id)
	}
	return closeResponse(id, problem)
}

// handleClose hears that the other end has closed a connection. What came before is still
// read. The end that was dialled forgets the connection when it closes it, too.
func (s *Session) handleClose(p *client.Packet) error {
	id, why := p.GetCloseRequest().GetConnectID(), io.EOF
	if r := p.GetCloseResponse(); r != nil {
		id = r.GetConnectID()
		if r.GetError() != "" && r.GetError() != io.EOF.Error() {
			why = &RefusedError{Reason: r.GetError()}
		}
	}
	c := s.conn(id)
	switch {
	case c != nil:
		c.closedByPeer(why)
	case p.GetType() == client.PacketType_CLOSE_REQ:
		_ = s.out.control(closeResponse(id, "")) // it is closed already, which is what the peer waits for
	}
	if s.opts.Dial == nil {
		s.forget(id)
	}
	return nil
}

func (s *Session) handleFlow(p *client.Packet) error {
	if !s.opts.FlowControl {
		return fmt.Errorf("packet of the type %d without flow control", p.GetType())
	}
	if p.GetType() == packetEOF {
		if c := s.conn(p.GetCloseRequest().GetConnectID()); c != nil {
			c.readEnds(io.EOF)
		}
		return nil
	}
	n, size := binary.Uvarint(p.GetData().GetData())
	if size <= 0 || n > window {
		return fmt.Errorf("window %x of the connection %d makes no sense", p.GetData().GetData(), p.GetData().GetConnectID())
	}
	if c := s.conn(p.GetData().GetConnectID()); c != nil {
		c.grant(int(n)) // #nosec G115 -- at most a window
	}
	return nil
}

// handleAnswer hears how a dial of ours went.
func (s *Session) handleAnswer(p *client.Packet) error {
	var random int64
	var got dialed
	switch p.GetType() {
	case client.PacketType_DIAL_RSP:
		r := p.GetDialResponse()
		random = r.GetRandom()
		if r.GetError() != "" {
			got.err = &RefusedError{Reason: r.GetError()}
		} else {
			got.conn = newConn(s, r.GetConnectID())
		}
	case client.PacketType_DIAL_CLS:
		random, got.err = p.GetCloseDial().GetRandom(), &RefusedError{Reason: "the dial was closed"}
	default:
		return fmt.Errorf("packet of the type %d makes no sense here", p.GetType())
	}
	s.mu.Lock()
	answer := s.pending[random]
	delete(s.pending, random)
	taken := got.conn != nil && s.conns[got.conn.id] != nil
	if answer != nil && got.conn != nil && !taken {
		s.conns[got.conn.id] = got.conn // before the next packet, which may have data for it
	}
	s.mu.Unlock()
	switch {
	case answer == nil && got.conn != nil: // the dial was given up, so is the connection
		return s.out.control(closeRequest(got.conn.id))
	case answer == nil:
		return nil
	case taken:
		got = dialed{err: fmt.Errorf("the agent gave the connection %d away twice", got.conn.id)}
	}
	answer <- got
	return nil
}

// handleDial dials for the other end.
func (s *Session) handleDial(ctx context.Context, p *client.Packet) error {
	switch p.GetType() {
	case client.PacketType_DIAL_CLS:
		s.mu.Lock()
		cancel := s.dialling[p.GetCloseDial().GetRandom()]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return nil
	case client.PacketType_DIAL_REQ:
	default:
		return fmt.Errorf("packet of the type %d makes no sense here", p.GetType())
	}
	r := p.GetDialRequest()
	if r == nil {
		return fmt.Errorf("%s says nothing of the destination", p.GetType())
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	_, twice := s.dialling[r.GetRandom()]
	if !twice {
		s.dialling[r.GetRandom()] = cancel
	}
	s.mu.Unlock()
	if twice {
		cancel()
		return fmt.Errorf("a second dial with the number %d", r.GetRandom())
	}
	s.workers.Go(func() {
		defer cancel()
		s.dialFor(ctx, r)
	})
	return nil
}

// dialFor makes a connection and carries it to its end.
func (s *Session) dialFor(ctx context.Context, r *client.DialRequest) {
	remote, err := s.opts.Dial(ctx, r.GetProtocol(), r.GetAddress())
	c := s.dialFinished(r.GetRandom(), err == nil)
	switch {
	case err != nil && c == nil:
		_ = s.out.control(dialResponse(r.GetRandom(), 0, err.Error()))
		return
	case c == nil: // the session has ended
		_ = remote.Close()
		return
	}
	_ = s.out.control(dialResponse(r.GetRandom(), c.id, ""))
	Join(c, remote)
}

// dialFinished replaces a dial by its connection, if it went well.
func (s *Session) dialFinished(random int64, ok bool) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dialling, random)
	if !ok || s.conns == nil {
		return nil
	}
	c := newConn(s, s.lastID.Add(1))
	s.conns[c.id] = c
	return c
}

// forget removes a connection.
func (s *Session) forget(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, id)
}

var _ net.Conn = (*Conn)(nil)
