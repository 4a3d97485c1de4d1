package sandbox

import (
	"fmt"
	"os"
	"time"

	"ebb/internal/config"
)

// Cluster returns what ebb.yaml says of the sandbox: every node's SSH server behind
// its own forwarding rule, and the infrastructure command that owns the machines.
// Waiting times are short, for nothing here takes long.
func (s *Sandbox) Cluster(name string) config.Cluster {
	c := config.Cluster{
		Name:       name,
		Kubeconfig: s.Kubeconfig(),
		SSH: config.SSH{
			User: sshUser, IdentityFile: s.sshKey, KnownHosts: s.knownHosts(), Sudo: true, RunDir: "ebb/runs",
		},
		Addressing: config.Addressing{Mode: config.AddressForwarded, PublicAddress: loopback},
		Infrastructure: config.Infrastructure{
			Provider: config.InfraExec, Command: []string{s.opts.programs["sandbox-node"], "infra", s.opts.Dir},
		},
		Drain: config.Drain{Timeout: config.Duration(30 * time.Second), RetryInterval: config.Duration(time.Second)},
		Upgrade: config.Upgrade{
			Script: config.ScriptKubeadmApt, ReadyTimeout: config.Duration(time.Minute), SteadyInterval: config.Duration(100 * time.Millisecond),
		},
	}
	if n := s.opts.Network; n != nil {
		c.Addressing = config.Addressing{Mode: config.AddressNode}
		c.SSH.Port = n.Port
		return c
	}
	for _, node := range s.nodeNames {
		c.Addressing.Rules = append(c.Addressing.Rules, config.ForwardingRule{Node: node, Port: s.machines[node].ssh.port})
	}
	return c
}

// WriteConfig writes an ebb.yaml with the clusters, mode 0600, in one step: a
// reader sees the old or the new file.
func (s *Sandbox) WriteConfig(path string, clusters ...config.Cluster) error {
	data, err := config.Marshal(&config.Config{Clusters: clusters})
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
