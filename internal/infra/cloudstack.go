package infra

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/apache/cloudstack-go/v2/cloudstack"

	"ebb/internal/config"
)

// cloudStack asks the API of Apache CloudStack. It keeps nothing between two
// calls: what it acts on has been looked up in the same call.
type cloudStack struct {
	endpoint string
	keys     credentials
	tls      *tls.Config
	project  string // name or ID
	zone     string // name or ID
	cluster  string // name or ID of a Kubernetes cluster of CloudStack
	expunge  bool
	timeout  time.Duration
}

var (
	_ Provider    = (*cloudStack)(nil)
	_ Forwarder   = (*cloudStack)(nil)
	_ ISODetacher = (*cloudStack)(nil)
)

func newCloudStack(cfg config.Infrastructure) (Provider, error) {
	if err := config.CheckEndpoint(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("infrastructure.endpoint: %w", err)
	}
	keys, err := readCredentials(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if trust.RootCAs, err = readAuthorities(cfg.CAFile); err != nil {
			return nil, err
		}
	}
	timeout := cfg.Timeout.D()
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &cloudStack{
		endpoint: cfg.Endpoint, keys: keys, tls: trust, project: cfg.Project, zone: cfg.Zone,
		cluster: cfg.KubernetesCluster, expunge: cfg.Expunge, timeout: timeout,
	}, nil
}

func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path) // #nosec G304 -- the operator's own path
	if err != nil {
		return nil, fmt.Errorf("infrastructure.caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("infrastructure.caFile: %s holds no certificate in PEM form", path)
	}
	return pool, nil
}

// stateOf is what a state of CloudStack's means here. A machine between two
// states, or one that failed to start, is Unknown: no reason to act.
func stateOf(vm string) State {
	switch vm {
	case "Running", "Migrating": // it runs on while it migrates
		return Running
	case "Stopped":
		return Stopped
	case "Destroyed", "Expunging", "Expunged":
		return Gone
	}
	return Unknown // Starting, Stopping, Error, Unknown, and what is still to come
}

// State implements Provider.
func (c *cloudStack) State(ctx context.Context, m Machine) (State, error) {
	s, closeSession := c.open(ctx)
	defer closeSession()
	vm, err := s.find(m)
	switch {
	case err != nil:
		return "", about("state", m, err)
	case vm == nil:
		return Gone, nil
	}
	return stateOf(vm.State), nil
}

// Destroy implements Provider. It waits for the end of the job, so that nil does
// not stand for a job that may yet fail.
func (c *cloudStack) Destroy(ctx context.Context, m Machine) error {
	s, closeSession := c.open(ctx)
	defer closeSession()
	vm, err := s.find(m)
	if err == nil && vm != nil && stateOf(vm.State) != Gone {
		err = s.settled(vm.Id, s.destroy(vm.Id), func(now *cloudstack.VirtualMachine) bool {
			return now == nil || stateOf(now.State) == Gone
		})
		if err != nil && s.managed && saysCode(err, internalError) {
			err = refuse("%w; CloudStack manages this Kubernetes cluster itself and gives its machines away only to scaleKubernetesCluster: "+
				"name this one to it, in nodeids", err)
		}
	}
	return about("destroy", m, err)
}

func (s *session) destroy(id string) error {
	const command = "destroyVirtualMachine"
	params := s.api.VirtualMachine.NewDestroyVirtualMachineParams(id)
	if s.expunge { // an account that may not expunge may not even say false
		params.SetExpunge(true)
	}
	started, err := ask(s, command, func() (*cloudstack.DestroyVirtualMachineResponse, error) {
		return s.api.VirtualMachine.DestroyVirtualMachine(params)
	})
	if err != nil {
		return err
	}
	return s.wait(command, started.JobID)
}

// DetachISO implements ISODetacher.
func (c *cloudStack) DetachISO(ctx context.Context, m Machine) error {
	s, closeSession := c.open(ctx)
	defer closeSession()
	vm, err := s.find(m)
	if err == nil && vm != nil && stateOf(vm.State) != Gone && vm.Isoid != "" {
		err = s.settled(vm.Id, s.detach(vm.Id), func(now *cloudstack.VirtualMachine) bool {
			return now == nil || now.Isoid == ""
		})
	}
	return about("detach the ISO", m, err)
}

func (s *session) detach(id string) error {
	const command = "detachIso"
	started, err := ask(s, command, func() (*cloudstack.DetachIsoResponse, error) {
		return s.api.ISO.DetachIso(s.api.ISO.NewDetachIsoParams(id))
	})
	if err != nil {
		return err
	}
	return s.wait(command, started.JobID)
}

// settled looks again after a failure: the answer may have been lost, or another
// caller have been faster. When the machine is as it should be, all is well.
func (s *session) settled(id string, failure error, fine func(*cloudstack.VirtualMachine) bool) error {
	if failure == nil || s.ctx.Err() != nil {
		return failure
	}
	now, err := s.byID(id)
	if err != nil || !fine(now) {
		return failure
	}
	return nil
}

// about says which machine an error is about.
func about(action string, m Machine, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of the machine of node %s: %w", action, m.Node, err)
}
