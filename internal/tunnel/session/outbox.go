package session

import (
	"errors"
	"os"
	"sync"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const (
	// dataSlots is how many packets with data may be queued: enough to keep the stream busy,
	// few enough that whoever writes feels a peer that does not read.
	dataSlots = 16

	// maxQueue is how many packets may be queued in all: each connection has a few that carry no
	// data, so that only a peer who reads nothing reaches it.
	maxQueue = 100_000
)

// outbox keeps the packets that leave in their order. Only data waits for room: the
// goroutine that receives must never wait for the one that sends.
type outbox struct {
	slots chan struct{} // one is taken by each packet with data
	wake  chan struct{} // there is something in queue; capacity 1

	mu    sync.Mutex
	queue []queued
}

// queued is a packet that waits to be sent.
type queued struct {
	*client.Packet
	slot bool // it has taken one
	last bool // there is no packet, and nothing comes after it
}

func (o *outbox) init() {
	o.slots, o.wake = make(chan struct{}, dataSlots), make(chan struct{}, 1)
}

// control queues a packet without data.
func (o *outbox) control(p *client.Packet) error {
	return o.append(queued{Packet: p})
}

func (o *outbox) append(p queued) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxQueue {
		return errors.New("the peer reads nothing: a packet is dropped")
	}
	o.queue = append(o.queue, p)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

// data waits for room and queues a packet. It returns os.ErrDeadlineExceeded when cancel is
// closed before, ErrEnded when ended is.
func (o *outbox) data(cancel, ended <-chan struct{}, p *client.Packet) error {
	select {
	case o.slots <- struct{}{}:
		return o.append(queued{Packet: p, slot: true})
	case <-cancel:
		return os.ErrDeadlineExceeded
	case <-ended:
		return ErrEnded
	}
}

// finish lets drain return nil once all that was queued before has been sent.
func (o *outbox) finish() error { return o.append(queued{last: true}) }

// drain sends until that fails, ended is closed or all has been sent before finish.
func (o *outbox) drain(send func(*client.Packet) error, ended <-chan struct{}) error {
	for {
		select {
		case <-ended:
			return nil
		case <-o.wake:
		}
		for _, p := range o.take() {
			if p.last {
				return nil
			}
			if err := send(p.Packet); err != nil {
				return err
			}
			if p.slot {
				<-o.slots
			}
		}
	}
}

func (o *outbox) take() []queued {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.queue
	o.queue = nil
	return queue
}
