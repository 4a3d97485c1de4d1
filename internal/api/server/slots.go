package server

import "sync"

// slotLimits are how many slots may be taken at once.
type slotLimits struct{ all, ofPrincipal int }

// slots count what is bounded, for all principals and for each, so that one cannot take
// all of it.
type slots struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by principal; no entry = none
}

func newSlots() *slots { return &slots{of: map[string]int{}} }

// acquire takes a slot for a principal. reached is the limit that forbids it, 0 if none
// does: then release must be called at its end.
func (s *slots) acquire(principal string, limits slotLimits) (release func(), reached int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.of[principal] >= limits.ofPrincipal:
		return nil, limits.ofPrincipal
	case s.all >= limits.all:
		return nil, limits.all
	}
	s.all++
	s.of[principal]++
	return func() { s.release(principal) }, 0
}

func (s *slots) release(principal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[principal]--; s.of[principal] == 0 {
		delete(s.of, principal)
	}
}

// taken returns how many are.
func (s *slots) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}
