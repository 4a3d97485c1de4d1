package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// pipe is a transport whose packets are encoded and decoded, as those of a network are.
type pipe struct {
	in, out chan []byte
	ctx     context.Context
	end     context.CancelFunc
}

func pipes(t *testing.T) (dialler, dialled *pipe) {
	ctx, end := context.WithCancel(t.Context())
	a, b := make(chan []byte, 4), make(chan []byte, 4)
	return &pipe{a, b, ctx, end}, &pipe{b, a, ctx, end}
}

func (p *pipe) Send(packet *client.Packet) error {
	body, err := proto.Marshal(packet)
	if err != nil {
		return err
	}
	select {
	case p.out <- body:
		return nil
	case <-p.ctx.Done():
		return errors.New("the pipe is closed")
	}
}

func (p *pipe) Recv() (*client.Packet, error) {
	select {
	case body := <-p.in:
		packet := &client.Packet{}
		return packet, proto.Unmarshal(body, packet)
	case <-p.ctx.Done():
		return nil, errors.New("the pipe is closed")
	}
}

// pair is a session with both of its ends.
type pair struct {
	dialler, dialled *Session
	wire             *pipe // of the dialling end
	problems         chan error
	end              func() // ends both, and returns when they have
}

func newPair(t *testing.T, flowControl bool, dial func(ctx context.Context, network, address string) (net.Conn, error)) *pair {
	t.Helper()
	one, other := pipes(t)
	p := &pair{wire: one, problems: make(chan error, 100)}
	note := func(err error) { p.problems <- err }
	p.dialler = New(one, Options{FlowControl: flowControl, Problem: note, Draining: func() { note(errors.New("draining")) }})
	p.dialled = New(other, Options{FlowControl: flowControl, Problem: note, Dial: dial})
	var both sync.WaitGroup
	for s, wire := range map[*Session]*pipe{p.dialler: one, p.dialled: other} {
		both.Go(func() { _ = s.Serve(t.Context(), wire.end) })
	}
	p.end = func() { one.end(); both.Wait() }
	t.Cleanup(func() {
		p.end()
		require.Zero(t, p.dialler.Streams())
		require.Zero(t, p.dialled.Streams())
	})
	return p
}

// listen serves TCP connections with f until the test is over and returns a function that dials it.
func listen(t *testing.T, f func(*net.TCPConn)) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = c.Close() }()
				f(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// both runs a test with flow control and without.
func both(t *testing.T, f func(t *testing.T, flowControl bool)) {
	for _, flowControl := range []bool{true, false} {
		t.Run(fmt.Sprintf("flow control %v", flowControl), func(t *testing.T) { f(t, flowControl) })
	}
}

// Both ends of a connection behave as net.Conn says, deadlines included.
func TestConnIsANetConn(t *testing.T) {
	both(t, func(t *testing.T, flowControl bool) {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			one, other := pipes(t)
			dialler, dialled := New(one, Options{FlowControl: flowControl}), New(other, Options{FlowControl: flowControl})
			var serving sync.WaitGroup
			serving.Go(func() { _ = dialler.Serve(t.Context(), one.end) })
			serving.Go(func() { _ = dialled.Serve(t.Context(), other.end) })
			a, b := newConn(dialler, 1), newConn(dialled, 1)
			dialler.mu.Lock()
			dialler.conns[1] = a
			dialler.mu.Unlock()
			dialled.mu.Lock()
			dialled.conns[1] = b
			dialled.mu.Unlock()
			return a, b, func() { _, _ = a.Close(), b.Close(); one.end(); serving.Wait() }, nil
		})
	})
}

// A body passes whole in both directions at once, and each side learns where it ends.
func TestBodiesArriveWhole(t *testing.T) {
	both(t, func(t *testing.T, flowControl bool) {
		echo := listen(t, func(c *net.TCPConn) {
			_, _ = io.Copy(c, c)
			_ = c.CloseWrite()
		})
		p := newPair(t, flowControl, echo)
		c, err := p.dialler.Dial(t.Context(), "tcp", "echo:1")
		require.NoError(t, err)
		body := make([]byte, 20<<20)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(body) // never fails
		var writing sync.WaitGroup
		writing.Go(func() {
			_, err := c.Write(body)
			if err == nil && flowControl {
				err = c.CloseWrite()
			}
			if err != nil {
				t.Error(err)
			}
		})
		got := sha256.New()
		if flowControl {
			_, err = io.Copy(got, c)
		} else {
			_, err = io.CopyN(got, c, int64(len(body)))
			require.ErrorIs(t, c.CloseWrite(), ErrNoHalfClose)
		}
		require.NoError(t, err)
		writing.Wait()
		require.Equal(t, sha256.New().Sum(body)[len(body):], sha256.New().Sum(body)[len(body):])
		want := sha256.Sum256(body)
		require.Equal(t, want[:], got.Sum(nil))
		require.NoError(t, c.Close())
	})
}

// What was written before a Close is read before the end is.
func TestACloseNeverOvertakesData(t *testing.T) {
	both(t, func(t *testing.T, flowControl bool) {
		received := make(chan []byte, 1)
		p := newPair(t, flowControl, listen(t, func(c *net.TCPConn) {
			body, err := io.ReadAll(c)
			if err != nil {
				t.Error(err)
			}
			received <- body
		}))
		for i := range 200 {
			body := bytes.Repeat([]byte{byte(i)}, 3*chunk+i)
			c, err := p.dialler.Dial(t.Context(), "tcp", "sink:1")
			require.NoError(t, err)
			_, err = c.Write(body)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.True(t, bytes.Equal(body, <-received), "dial %d", i)
		}
	})
}

func TestTheOtherEndClosesFirst(t *testing.T) {
	both(t, func(t *testing.T, flowControl bool) {
		p := newPair(t, flowControl, listen(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("bye")) }))
		c, err := p.dialler.Dial(t.Context(), "tcp", "short:1")
		require.NoError(t, err)
		body, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Equal(t, "bye", string(body))
		require.NoError(t, c.Close())
		require.Eventually(t, func() bool { return p.dialler.Streams()+p.dialled.Streams() == 0 }, 10*time.Second, time.Millisecond)
	})
}

func TestDialsThatFail(t *testing.T) {
	blocked := make(chan struct{})
	p := newPair(t, true, func(ctx context.Context, _, address string) (net.Conn, error) {
		if address == "refused:1" {
			return nil, errors.New("connection refused")
		}
		close(blocked)
		<-ctx.Done() // the dial was given up by the other end
		return nil, ctx.Err()
	})
	_, err := p.dialler.Dial(t.Context(), "tcp", "refused:1")
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "connection refused", refused.Reason)

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-blocked; cancel() }()
	_, err = p.dialler.Dial(ctx, "tcp", "silent:1")
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return p.dialler.Streams()+p.dialled.Streams() == 0 }, 10*time.Second, time.Millisecond, "the other end gives it up too")
}

// Whatever is under way when the session ends ends at once, and is told why.
func TestTheEndOfASessionEndsEverything(t *testing.T) {
	dialling := make(chan struct{})
	accept := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	p := newPair(t, true, func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "slow:1" {
			close(dialling)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return accept(ctx, network, address)
	})
	c, err := p.dialler.Dial(t.Context(), "tcp", "open:1")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := p.dialler.Dial(t.Context(), "tcp", "slow:1")
		failed <- err
	}()
	<-dialling
	p.end()
	require.ErrorIs(t, <-failed, ErrEnded)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrEnded)
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, ErrEnded)
	_, err = p.dialler.Dial(t.Context(), "tcp", "open:1")
	require.ErrorIs(t, err, ErrEnded)
}

// A reader that stops holds up its own connection, and no more bytes than a window wait for it.
func TestASlowReaderHasBackPressure(t *testing.T) {
	p := newPair(t, true, listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, rand.NewChaCha8([32]byte{})) }))
	slow, err := p.dialler.Dial(t.Context(), "tcp", "endless:1")
	require.NoError(t, err)
	other, err := p.dialler.Dial(t.Context(), "tcp", "endless:1")
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, other, 20*window)
	require.NoError(t, err, "another connection is not held up")
	slow.mu.Lock()
	waiting := slow.size
	slow.mu.Unlock()
	require.Equal(t, window, waiting)
	_, err = io.CopyN(io.Discard, slow, 5*window)
	require.NoError(t, err, "it goes on when it is read")
	require.NoError(t, slow.Close())
	require.NoError(t, other.Close())
}

// A peer without flow control that is not read is held up, and then only its connection is cut.
func TestASlowReaderWithoutFlowControlIsCut(t *testing.T) {
	p := newPair(t, false, listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, rand.NewChaCha8([32]byte{})) }))
	slow, err := p.dialler.Dial(t.Context(), "tcp", "endless:1")
	require.NoError(t, err)
	require.ErrorContains(t, <-p.problems, "its reader has left")
	_, err = io.Copy(io.Discard, slow)
	require.Error(t, err)
	other, err := p.dialler.Dial(t.Context(), "tcp", "endless:1")
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, other, window)
	require.NoError(t, err)
	require.NoError(t, other.Close())
}

// Packets that make no sense are told, and nobody else is hurt.
func TestPacketsThatMakeNoSense(t *testing.T) {
	p := newPair(t, true, listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }))
	c, err := p.dialler.Dial(t.Context(), "tcp", "echo:1")
	require.NoError(t, err)
	for want, packet := range map[string]*client.Packet{
		"the connection 77, which is none": dataPacket(77, []byte("x")),
		"the connection 0, which is none":  {Type: client.PacketType_DATA},
		"type 4711 makes no sense":         {Type: 4711},
		"makes no sense here":              dialResponse(5, 6, ""),
		"says nothing of the destination":  {Type: client.PacketType_DIAL_REQ},
		"DRAIN came from":                  Drain(),
		"window ffffffff0f of":             {Type: packetWindow, Payload: &client.Packet_Data{Data: &client.Data{ConnectID: c.id, Data: []byte{255, 255, 255, 255, 15}}}},
		"window  of the connection 0":      {Type: packetWindow},
	} {
		require.NoError(t, p.dialler.Send(packet))
		require.ErrorContains(t, <-p.problems, want)
	}
	require.NoError(t, p.dialler.Send(closeRequest(78)), "closing what is closed is nothing to tell")
	_, err = c.Write([]byte("still there"))
	require.NoError(t, err)
	got := make([]byte, 11)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, "still there", string(got))
	require.NoError(t, c.Close())
}

// FuzzPackets: no packet of a peer makes the other end panic or hang.
func FuzzPackets(f *testing.F) {
	for _, p := range []*client.Packet{
		dialRequest(1, "tcp", "echo:1"), dialResponse(1, 2, ""), dataPacket(1, []byte("x")), closeRequest(1), closeResponse(1, "x"),
		dialClose(1), Drain(), windowPacket(1, 5), eofPacket(1), {Type: -1},
	} {
		body, err := proto.Marshal(p)
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p := newPair(t, true, func(context.Context, string, string) (net.Conn, error) {
			one, other := net.Pipe()
			_ = other.Close()
			return one, nil
		})
		go func() { // nobody reads what is answered
			for range p.problems {
			}
		}()
		for _, out := range []chan []byte{p.wire.out, p.wire.in} {
			select {
			case out <- body:
			case <-time.After(10 * time.Second):
				t.Error("a packet is not taken")
			}
		}
	})
}
