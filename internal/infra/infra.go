// Package infra reaches what owns the machines behind the nodes.
package infra

import (
	"context"
	"fmt"

	"ebb/internal/config"
)

// Machine says which machine is meant, in every way a provider may know it by.
type Machine struct {
	Cluster    string   `json:"cluster"`
	Node       string   `json:"node"`
	UID        string   `json:"uid,omitempty"`        // of the Node object
	ProviderID string   `json:"providerID,omitempty"` // spec.providerID of the node
	MachineID  string   `json:"machineID,omitempty"`  // /etc/machine-id of the node
	Addresses  []string `json:"addresses,omitempty"`  // internal addresses
}

// State is what the infrastructure knows of a machine.
type State string

// The states of a machine.
const (
	Running State = "running"
	Stopped State = "stopped" // it exists and is off
	Gone    State = "gone"    // it does not exist any more
	Unknown State = "unknown" // the provider cannot tell: never a reason to act
)

// valid says whether a provider may answer this.
func (s State) valid() bool {
	return s == Running || s == Stopped || s == Gone || s == Unknown
}

// Provider reads and destroys machines. Every call may be repeated: a caller
// that did not get an answer asks again, so a second call must find what the
// first one did and not do it to another machine.
type Provider interface {
	// State tells how a machine is. Unknown with a nil error means that nobody
	// can tell, and asking again is useless; an error means that the question
	// failed, and asking again may help.
	State(ctx context.Context, m Machine) (State, error)

	// Destroy removes a machine for good. Nil means that it is gone, was gone
	// already, or is going without further calls. An error means that it may
	// still be there, and the call may be repeated.
	Destroy(ctx context.Context, m Machine) error
}

// Forwarder is a Provider that knows which ports of a public address lead to
// which machines.
type Forwarder interface {
	// Rules are the active rules of a public address that lead to the SSH port of
	// a machine. The one that leads to q.Machine, if any does, bears the name of
	// its node; those that lead to others bear a name that no node has. None is an
	// answer, too. An address that the provider does not know is an error.
	Rules(ctx context.Context, q RuleQuery) ([]config.ForwardingRule, error)
}

// RuleQuery asks how a machine is reached from outside.
type RuleQuery struct {
	PublicAddress string
	Port          int // on the machine, where it answers SSH
	Machine       Machine
}

// ISODetacher is a Provider that can take the ISO image out of a machine's drive.
type ISODetacher interface {
	// DetachISO leaves a machine without an ISO. Nil means that none is attached,
	// any more or at all, or that the machine is gone. An error means that one may
	// still be attached, and the call may be repeated.
	DetachISO(ctx context.Context, m Machine) error
}

// New is the provider that a cluster's configuration names. Its error means
// that the configuration must be changed: trying again is useless.
func New(cfg config.Infrastructure) (Provider, error) {
	switch cfg.Provider {
	case config.InfraNone, "":
		return none{}, nil
	case config.InfraExec:
		return newCommand(cfg)
	case config.InfraCloudStack:
		return newCloudStack(cfg)
	}
	return nil, fmt.Errorf("infrastructure.provider: %q is not known: use %s, %s or %s",
		cfg.Provider, config.InfraNone, config.InfraExec, config.InfraCloudStack)
}

// none is for machines that Ebb does not touch: someone else removes them.
type none struct{}

// State is Unknown: there is nobody to ask.
func (none) State(context.Context, Machine) (State, error) { return Unknown, nil }

// Destroy has nothing to do: the machine stays, only its node has left the cluster.
func (none) Destroy(context.Context, Machine) error { return nil }
