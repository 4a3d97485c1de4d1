package infra

import (
	"context"
	"slices"
	"sync"
)

// FakeProvider is a Provider for tests. The zero value knows no machine: its
// states are Unknown and every Destroy works.
type FakeProvider struct {
	mu          sync.Mutex
	states      map[string]State // by node
	stateErrs   map[string][]error
	destroyErrs map[string][]error
	stateCalls  []Machine
	destroyed   []Machine
}

var _ Provider = (*FakeProvider)(nil)

// SetState sets what State returns for the machine of a node.
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
	if f.stateErrs == nil {
		f.stateErrs = map[string][]error{}
	}
	f.stateErrs[node] = append(f.stateErrs[node], errs...)
}

// FailDestroy makes the next calls of Destroy for a node fail, one per error.
func (f *FakeProvider) FailDestroy(node string, errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.destroyErrs == nil {
		f.destroyErrs = map[string][]error{}
	}
	f.destroyErrs[node] = append(f.destroyErrs[node], errs...)
}

// State returns the state that was set, Gone once destroyed, Unknown otherwise.
func (f *FakeProvider) State(ctx context.Context, m Machine) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stateCalls = append(f.stateCalls, m)
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := popError(f.stateErrs, m.Node); err != nil {
		return "", err
	}
	if s, set := f.states[m.Node]; set {
		return s, nil
	}
	return Unknown, nil
}

// Destroy sets the state of the machine to Gone and records the call.
func (f *FakeProvider) Destroy(ctx context.Context, m Machine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := popError(f.destroyErrs, m.Node); err != nil {
		return err
	}
	f.destroyed = append(f.destroyed, m)
	if f.states == nil {
		f.states = map[string]State{}
	}
	f.states[m.Node] = Gone
	return nil
}

// StateCalls returns the machines of the calls of State, in order, failed ones included.
func (f *FakeProvider) StateCalls() []Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stateCalls)
}

// Destroyed returns the machines of the Destroy calls that worked, in order.
func (f *FakeProvider) Destroyed() []Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.destroyed)
}

func popError(errs map[string][]error, node string) error {
	if len(errs[node]) == 0 {
		return nil
	}
	err := errs[node][0]
	errs[node] = errs[node][1:]
	return err
}
