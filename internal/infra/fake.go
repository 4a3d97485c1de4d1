package infra

import (
	"context"
	"slices"
	"sync"
)

// FakeProvider is a Provider for tests. The zero value knows no machine: its
// states are Unknown and every Destroy works.
type FakeProvider struct {
	mu         sync.Mutex
	states     map[string]State // by node
	stateErr   map[string][]error
	destroyErr map[string][]error
	asked      []Machine
	destroyed  []Machine
}

var _ Provider = (*FakeProvider)(nil)

// SetState sets what State answers for the machine of a node.
func (f *FakeProvider) SetState(node string, s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil {
		f.states = map[string]State{}
	}
	f.states[node] = s
}

// FailState makes the next calls of State for a node fail, one per error.
func (f *FakeProvider) FailState(node string, errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stateErr == nil {
		f.stateErr = map[string][]error{}
	}
	f.stateErr[node] = append(f.stateErr[node], errs...)
}

// FailDestroy makes the next calls of Destroy for a node fail, one per error.
func (f *FakeProvider) FailDestroy(node string, errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.destroyErr == nil {
		f.destroyErr = map[string][]error{}
	}
	f.destroyErr[node] = append(f.destroyErr[node], errs...)
}

// State is the state that was set, Gone once destroyed, Unknown otherwise.
func (f *FakeProvider) State(ctx context.Context, m Machine) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, m)
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := next(f.stateErr, m.Node); err != nil {
		return "", err
	}
	if s, set := f.states[m.Node]; set {
		return s, nil
	}
	return Unknown, nil
}

// Destroy makes the machine Gone, and notes it.
func (f *FakeProvider) Destroy(ctx context.Context, m Machine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := next(f.destroyErr, m.Node); err != nil {
		return err
	}
	f.destroyed = append(f.destroyed, m)
	if f.states == nil {
		f.states = map[string]State{}
	}
	f.states[m.Node] = Gone
	return nil
}

// Asked are the machines whose state was asked for, in order, failed calls included.
func (f *FakeProvider) Asked() []Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// Destroyed are the machines of the Destroy calls that worked, in order.
func (f *FakeProvider) Destroyed() []Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.destroyed)
}

func next(errs map[string][]error, node string) error {
	if len(errs[node]) == 0 {
		return nil
	}
	err := errs[node][0]
	errs[node] = errs[node][1:]
	return err
}
