package cluster

import "sync"

// Subscription notifies one subscriber of changes that concern its node, and of
// changes of any budget or namespace. Changes that come faster than they are
// received are one notification, so a slow subscriber never holds up the watch.
type Subscription struct {
	C <-chan struct{}

	node          string
	notifications chan struct{}
	watch         *Watch
	once          sync.Once
}

// Subscribe returns a subscription to the changes that concern a node. Close it.
func (w *Watch) Subscribe(node string) *Subscription {
	notifications := make(chan struct{}, 1)
	s := &Subscription{C: notifications, node: node, notifications: notifications, watch: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribers[s] = struct{}{}
	return s
}

// Close ends the subscription; its channel stays open and silent.
func (s *Subscription) Close() {
	s.once.Do(func() {
		w := s.watch
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subscribers, s)
		if w.retired && len(w.subscribers) == 0 {
			w.cancel()
		}
	})
}

func (s *Subscription) notify() {
	select {
	case s.notifications <- struct{}{}:
	default: // one is pending already
	}
}

// notify notifies the subscribers of a node.
func (w *Watch) notify(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscribers {
		if s.node == node {
			s.notify()
		}
	}
}

// notifyAll notifies every subscriber.
func (w *Watch) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscribers {
		s.notify()
	}
}

// retire stops the watch once its last subscriber has closed.
func (w *Watch) retire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = true
	if len(w.subscribers) == 0 {
		w.cancel()
	}
}

func (w *Watch) stop() { w.cancel() }

func (w *Watch) stopped() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}
