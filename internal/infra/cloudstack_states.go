package infra

import (
	"context"
	"slices"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

var _ StateLister = (*cloudStack)(nil)

// States implements StateLister. The VMs are listed at once, by their IDs or, for nodes
// without a provider ID, all of the scope. One that is not among them is looked for by
// itself, as State does: that tells whether it is gone.
func (c *cloudStack) States(ctx context.Context, machines []Machine) ([]State, error) {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	in, err := s.resolveScope()
	if err != nil {
		return nil, err
	}
	byID, err := s.listByID(machines, in)
	if err != nil {
		return nil, err
	}
	named, err := s.listForNames(machines, in)
	if err != nil {
		return nil, err
	}
	states := make([]State, len(machines))
	for i, m := range machines {
		listed := named
		if vmIDFromProviderID(m.ProviderID) != "" {
			listed = byID
		}
		if states[i], err = s.stateAmong(m, listed, in); err != nil {
			return nil, wrapMachineError("state", m, err)
		}
	}
	return states, nil
}

// stateAmong returns the state of a machine whose VM is among those listed, or elsewhere.
func (s *session) stateAmong(m Machine, listed []*cloudstack.VirtualMachine, in scope) (State, error) {
	vm, err := selectVM(m, listed, in.members)
	if err == nil && vm == nil {
		vm, err = s.findVM(m)
	}
	switch {
	case err != nil:
		return "", err
	case vm == nil:
		return Gone, nil
	}
	return machineState(vm.State), nil
}

// listByID returns the VMs of the machines that have an ID, as far as CloudStack has them all.
func (s *session) listByID(machines []Machine, in scope) (all []*cloudstack.VirtualMachine, err error) {
	var ids []string
	for _, m := range machines {
		if id := vmIDFromProviderID(m.ProviderID); id != "" {
			ids = append(ids, id)
		}
	}
	for chunk := range slices.Chunk(ids, pageSize) {
		params := s.api.VirtualMachine.NewListVirtualMachinesParams()
		params.SetIds(chunk)
		params.SetListall(true)
		listed, err := s.listVMs(params, in)
		if err != nil && !hasCode(err, codeParam) { // it does not have one of them, and does not say which
			return nil, err
		}
		all = append(all, listed...)
	}
	return all, nil
}

// listForNames returns the VMs among which those machines are that have no ID; none when
// all have one.
func (s *session) listForNames(machines []Machine, in scope) ([]*cloudstack.VirtualMachine, error) {
	if !slices.ContainsFunc(machines, func(m Machine) bool { return vmIDFromProviderID(m.ProviderID) == "" }) {
		return nil, nil
	}
	params := s.api.VirtualMachine.NewListVirtualMachinesParams()
	params.SetListall(in.members != nil)
	return s.listVMs(params, in)
}
