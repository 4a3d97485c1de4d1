package cluster

import "sync"

// Subscription wakes one listener when something about its node, or about any
// budget or namespace, has changed. Changes that come faster than they are
// received are one wake-up, so a slow listener never holds up the watch.
type Subscription struct {
	C <-chan struct{}

	node  string
	wakes chan struct{}
	watch *Watch
	once  sync.Once
}

// Subscribe listens for changes that concern a node.
func (w *Watch) Subscribe(node string) *Subscription {
	wakes := make(chan struct{}, 1)
	s := &Subscription{C: wakes, node: node, wakes: wakes, watch: w}
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

func (s *Subscription) wake() {
	select {
	case s.wakes <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// wake tells those whom a change of something on a node concerns.
func (w *Watch) wake(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscribers {
		if s.node == node {
			s.wake()
		}
	}
}

func (w *Watch) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscribers {
		s.wake()
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
