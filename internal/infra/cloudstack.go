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

// cloudStack is the provider for Apache CloudStack. It caches nothing: each call looks
// up the VM that it acts on.
type cloudStack struct {
	endpoint          string
	keys              credentials
	tlsConfig         *tls.Config
	project           string // name or ID
	zone              string // name or ID
	kubernetesCluster string // name or ID of a Kubernetes cluster of CloudStack
	expunge           bool
	timeout           time.Duration
}

var (
	_ Provider             = (*cloudStack)(nil)
	_ ForwardingRuleLister = (*cloudStack)(nil)
	_ ISODrive             = (*cloudStack)(nil)
)

// newCloudStack returns the provider. Its error means that the settings must be changed.
func newCloudStack(cfg config.Infrastructure) (Provider, error) {
	if err := config.ValidateEndpoint(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("infrastructure.endpoint: %w", err)
	}
	keys, err := readCredentials(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if tlsConfig.RootCAs, err = loadCAPool(cfg.CAFile); err != nil {
			return nil, err
		}
	}
	timeout := cfg.Timeout.D()
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &cloudStack{
		endpoint: cfg.Endpoint, keys: keys, tlsConfig: tlsConfig, project: cfg.Project, zone: cfg.Zone,
		kubernetesCluster: cfg.KubernetesCluster, expunge: cfg.Expunge, timeout: timeout,
	}, nil
}

// loadCAPool returns the certificates in a PEM file.
func loadCAPool(path string) (*x509.CertPool, error) {
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

// machineState returns the State for the state of a VM in CloudStack. A VM that changes
// its state, or that failed to start, is Unknown.
func machineState(vm string) State {
	switch vm {
	case "Running", "Migrating": // it runs on while it migrates
		return Running
	case "Stopped":
		return Stopped
	case "Destroyed", "Expunging", "Expunged":
		return Gone
	}
	return Unknown // Starting, Stopping, Error, Unknown, and states of later versions
}

// State implements Provider.
func (c *cloudStack) State(ctx context.Context, m Machine) (State, error) {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	vm, err := s.findVM(m)
	switch {
	case err != nil:
		return "", wrapMachineError("state", m, err)
	case vm == nil:
		return Gone, nil
	}
	return machineState(vm.State), nil
}

// Destroy implements Provider. It returns when CloudStack's job has ended, so that nil
// means that the job did not fail.
func (c *cloudStack) Destroy(ctx context.Context, m Machine) error {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	vm, err := s.findVM(m)
	if err == nil && vm != nil && machineState(vm.State) != Gone {
		err = s.recheck(vm.Id, s.destroyVM(vm.Id), func(now *cloudstack.VirtualMachine) bool {
			return now == nil || machineState(now.State) == Gone
		})
		if err != nil && s.cloudManaged && hasCode(err, codeInternal) {
			err = permanentf("%w; CloudStack manages this Kubernetes cluster itself and gives its machines away only to scaleKubernetesCluster: "+
				"name this one to it, in nodeids", err)
		}
	}
	return wrapMachineError("destroy", m, err)
}

// destroyVM destroys a VM and waits for the job.
func (s *session) destroyVM(id string) error {
	const command = "destroyVirtualMachine"
	params := s.api.VirtualMachine.NewDestroyVirtualMachineParams(id)
	if s.expunge { // the parameter is refused, even with false, for an account that may not expunge
		params.SetExpunge(true)
	}
	started, err := invoke(s, command, func() (*cloudstack.DestroyVirtualMachineResponse, error) {
		return s.api.VirtualMachine.DestroyVirtualMachine(params)
	})
	if err != nil {
		return err
	}
	return s.waitForJob(command, started.JobID)
}

// recheck returns nil when a call failed but the VM is as it should be: the answer was
// lost, or another caller did the same. Else it returns the failure.
func (s *session) recheck(id string, failure error, isDone func(*cloudstack.VirtualMachine) bool) error {
	if failure == nil || s.ctx.Err() != nil {
		return failure
	}
	now, err := s.findVMByID(id)
	if err != nil || !isDone(now) {
		return failure
	}
	return nil
}

// wrapMachineError adds the action and the node to an error; nil stays nil.
func wrapMachineError(action string, m Machine, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of the machine of node %s: %w", action, m.Node, err)
}
