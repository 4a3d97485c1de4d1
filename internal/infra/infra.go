// Package infra is the infrastructure providers: they look up and destroy the machines
// behind nodes.
package infra

import (
	"context"
	"fmt"
	"slices"

	"ebb/internal/config"
)

// Machine identifies a machine in every way by which a provider may know it.
type Machine struct {
	Cluster    string   `json:"cluster"`
	Node       string   `json:"node"`
	UID        string   `json:"uid,omitempty"`        // of the Node object
	ProviderID string   `json:"providerID,omitempty"` // spec.providerID of the node
	MachineID  string   `json:"machineID,omitempty"`  // /etc/machine-id of the node
	Addresses  []string `json:"addresses,omitempty"`  // internal addresses
}

// State is the state of a machine.
type State string

// The states of a machine.
const (
	Running State = "running"
	Stopped State = "stopped" // it exists and is off
	Gone    State = "gone"    // it does not exist any more
	Unknown State = "unknown" // the provider cannot tell; never a reason to act
)

// valid reports whether s is one of the states above.
func (s State) valid() bool {
	return s == Running || s == Stopped || s == Gone || s == Unknown
}

// Provider looks up and destroys machines. Callers repeat a call whose result was lost:
// a second call must have the same effect as one, and never on another machine.
type Provider interface {
	// State returns the state of a machine. Unknown with a nil error means that the
	// provider cannot tell and the call need not be repeated. An error may be
	// temporary: see Permanent.
	State(ctx context.Context, m Machine) (State, error)

	// Destroy removes a machine for good. Nil means that it is gone, was gone
	// already, or is going without further calls. An error means that it may
	// still be there, and the call may be repeated.
	Destroy(ctx context.Context, m Machine) error
}

// ForwardingRuleLister is a Provider that knows the port-forwarding rules of public IP
// addresses.
type ForwardingRuleLister interface {
	// ForwardingRules returns the active rules of a public address that lead to the SSH
	// port of a machine, possibly none. The one for q.Machine has the name of its node;
	// those for other machines have a name that no node has. An address that the
	// provider does not know is an error.
	ForwardingRules(ctx context.Context, q ForwardingRuleQuery) ([]config.ForwardingRule, error)
}

// ForwardingRuleQuery is the input of ForwardingRules.
type ForwardingRuleQuery struct {
	PublicAddress string
	Port          int // of the SSH server on the machine
	Machine       Machine
}

// ISODrive is a Provider whose machines have a drive for ISO images.
type ISODrive interface {
	// AttachISO attaches an ISO to a machine. Nil means that it is attached, also when it
	// was already. One of another Kubernetes version is detached first; any other one that
	// is attached is a permanent error. After an error it may be attached or not, and the
	// call may be repeated.
	AttachISO(ctx context.Context, m Machine, iso ISO) error

	// DetachISO detaches what AttachISO attaches: the ISO of this or of another version.
	// The zero ISO stands for whatever is attached, and is errors.ErrUnsupported for a
	// provider that detaches nothing that it was not told to attach. Nil means that
	// nothing of the kind is attached now, or that the machine is gone. An error means
	// that one may still be attached, and the call may be repeated.
	DetachISO(ctx context.Context, m Machine, iso ISO) error
}

// New returns the provider that a cluster's configuration names. Its error means that
// the configuration must be changed.
func New(cfg config.Infrastructure) (Provider, error) {
	switch cfg.Provider {
	case config.InfraNone, "":
		return none{}, nil
	case config.InfraExec:
		return newExecProvider(cfg)
	case config.InfraCloudStack:
		return newCloudStack(cfg)
	}
	return nil, fmt.Errorf("infrastructure.provider: %q is not known: use %s, %s or %s",
		cfg.Provider, config.InfraNone, config.InfraExec, config.InfraCloudStack)
}

// none is the provider for machines that Ebb does not touch.
type none struct{}

// State returns Unknown.
func (none) State(context.Context, Machine) (State, error) { return Unknown, nil }

// States returns Unknown for all.
func (none) States(_ context.Context, machines []Machine) ([]State, error) {
	return slices.Repeat([]State{Unknown}, len(machines)), nil
}

// Destroy does nothing: the machine stays, only its node has left the cluster.
func (none) Destroy(context.Context, Machine) error { return nil }
