package session

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// FuzzSequences sends a session whatever packets, one after another: whichever end it is, with flow control or
// without, it handles each or says what is wrong with it, and nothing is left when its stream
// has ended. What is sent is a list of packets, each after its length in one byte.
func FuzzSequences(f *testing.F) {
	whole := func(packets ...*client.Packet) (all []byte) {
		for _, p := range packets {
			body, err := proto.Marshal(p)
			require.NoError(f, err)
			all = append(append(all, byte(len(body))), body...)
		}
		return all
	}
	f.Add(whole(dialRequest(7, "tcp", "127.0.0.1:22"), dataPacket(1, []byte("hello")), eofPacket(1), closeRequest(1)))
	f.Add(whole(dialResponse(7, 1, ""), dialResponse(7, 1, "no"), windowPacket(1, window), closeResponse(1, "EOF"), Drain()))
	f.Add(whole(dialRequest(7, "tcp", "x"), dialClose(7), dataPacket(0, nil), dataPacket(-1, nil), windowPacket(9, 1)))
	f.Add(whole(&client.Packet{Type: 99}, &client.Packet{Type: client.PacketType_DIAL_REQ}, &client.Packet{Type: client.PacketType_DATA}))
	f.Fuzz(func(t *testing.T, sent []byte) {
		var packets []*client.Packet
		for len(sent) > 1 {
			n := min(int(sent[0]), len(sent)-1)
			p := &client.Packet{}
			if proto.Unmarshal(sent[1:1+n], p) == nil {
				packets = append(packets, p)
			}
			sent = sent[1+n:]
		}
		for _, flowControl := range []bool{true, false} {
			for _, dialled := range []bool{true, false} {
				receive(t, packets, flowControl, dialled)
			}
		}
	})
}

// receive lets one end of a session have packets, and then the end of its stream.
func receive(t *testing.T, packets []*client.Packet, flowControl, dialled bool) {
	t.Helper()
	problems := 0
	o := Options{FlowControl: flowControl, Problem: func(err error) {
		require.NotEmpty(t, err.Error())
		problems++
	}}
	if dialled {
		o.Dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			_ = there.Close()
			return here, nil
		}
	} else {
		o.Draining = func() {}
	}
	s := New(&recorded{packets: slices.Clone(packets)}, o)
	require.Error(t, s.Serve(t.Context(), func() {}))
	require.Zero(t, s.Streams())
	require.LessOrEqual(t, problems, len(packets))
}

// recorded is a transport that has some packets, and takes whatever it is sent.
type recorded struct{ packets []*client.Packet }

func (*recorded) Send(*client.Packet) error { return nil }

func (r *recorded) Recv() (*client.Packet, error) {
	if len(r.packets) == 0 {
		return nil, net.ErrClosed
	}
	p := r.packets[0]
	r.packets = r.packets[1:]
	return p, nil
}
