package infra

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// StateLister is a Provider that tells the states of many machines in one call.
type StateLister interface {
	// States returns the state of each machine, in their order, as State does. It is one
	// call of the provider: its timeout is that of one.
	States(ctx context.Context, machines []Machine) ([]State, error)
}

// StatesAtOnce is how many calls are made at a time of a provider that is asked for one
// machine after another: each may be a process on the worker.
const StatesAtOnce = 10

// States returns the states of machines, in their order, in one call where the provider can.
// Its error is the first.
func States(ctx context.Context, p Provider, machines []Machine) ([]State, error) {
	if lister, ok := p.(StateLister); ok {
		return lister.States(ctx, machines)
	}
	states := make([]State, len(machines))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(StatesAtOnce)
	for i, m := range machines {
		group.Go(func() (err error) {
			if states[i], err = p.State(ctx, m); err != nil {
				return fmt.Errorf("state of the machine of %s: %w", m.Node, err)
			}
			return nil
		})
	}
	return states, group.Wait()
}
