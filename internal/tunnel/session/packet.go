package session

import (
	"encoding/binary"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Packets of our own, between peers that have agreed to flow control (FlowControlHeader).
// Konnectivity has nothing like them: there the reader of one connection either holds up
// all others or is cut off, and a connection ends in both directions at once.
const (
	packetWindow client.PacketType = 1001 // the reader takes so many bytes more; in Data, as a varint
	packetEOF    client.PacketType = 1002 // the writer is done, the other direction goes on; in CloseRequest
)

// FlowControlHeader is the metadata by which an agent offers, and a server accepts, flow
// control and half-closed connections. Its value is FlowControlVersion.
const (
	FlowControlHeader  = "ebb-flow-control"
	FlowControlVersion = "1"
)

func dialRequest(random int64, protocol, address string) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_REQ, Payload: &client.Packet_DialRequest{
		DialRequest: &client.DialRequest{Protocol: protocol, Address: address, Random: random},
	}}
}

func dialResponse(random, id int64, problem string) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{
		DialResponse: &client.DialResponse{Random: random, ConnectID: id, Error: problem},
	}}
}

func dialClose(random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_CLS, Payload: &client.Packet_CloseDial{CloseDial: &client.CloseDial{Random: random}}}
}

func dataPacket(id int64, data []byte) *client.Packet {
	return &client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: data}}}
}

func closeRequest(id int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_CLOSE_REQ, Payload: &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: id}}}
}

func closeResponse(id int64, problem string) *client.Packet {
	return &client.Packet{Type: client.PacketType_CLOSE_RSP, Payload: &client.Packet_CloseResponse{
		CloseResponse: &client.CloseResponse{ConnectID: id, Error: problem},
	}}
}

func windowPacket(id int64, n int) *client.Packet {
	p := dataPacket(id, binary.AppendUvarint(nil, uint64(n))) // #nosec G115 -- a number of bytes
	p.Type = packetWindow
	return p
}

func eofPacket(id int64) *client.Packet {
	p := closeRequest(id)
	p.Type = packetEOF
	return p
}

// Drain is what an agent sends when it takes no new dials.
func Drain() *client.Packet {
	return &client.Packet{Type: client.PacketType_DRAIN, Payload: &client.Packet_Drain{Drain: &client.Drain{}}}
}
