package config

import (
	"time"
)

// Defaults that more than one place needs to know.
const (
	DefaultDrainTimeout = Duration(300 * time.Second)
	defaultState        = "Active"
)

func orDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

func orPointer[T any](value **T, fallback T) {
	if *value == nil {
		*value = &fallback
	}
}

// WithDefaults is the cluster with every default of types.go filled in; pointer
// fields are not nil afterwards. Load has applied it already.
func (c Cluster) WithDefaults() Cluster {
	orDefault(&c.SSH.User, "root")
	orDefault(&c.SSH.Port, 22)
	orDefault(&c.SSH.RunDir, "/var/lib/ebb/runs")
	orDefault(&c.SSH.ConnectTimeout, Duration(15*time.Second))
	orDefault(&c.SSH.KeepAlive, Duration(5*time.Second))

	orDefault(&c.Addressing.Mode, AddressNode)
	rules := make([]ForwardingRule, len(c.Addressing.Rules))
	for i, rule := range c.Addressing.Rules {
		orDefault(&rule.State, defaultState)
		rules[i] = rule
	}
	if len(rules) > 0 {
		c.Addressing.Rules = rules
	}

	orDefault(&c.Infrastructure.Provider, InfraNone)
	orDefault(&c.Infrastructure.Timeout, Duration(2*time.Minute))

	if c.Drain.Timeout.D() < time.Second {
		c.Drain.Timeout = DefaultDrainTimeout
	}
	orDefault(&c.Drain.RetryInterval, Duration(30*time.Second))
	orPointer(&c.Drain.GracePeriod, -1)
	orPointer(&c.Drain.DeleteEmptyDir, true)
	orDefault(&c.Drain.Parallel, 16)
	orPointer(&c.Drain.WaitForVolumeDetach, true)
	orDefault(&c.Drain.VolumeDetachTimeout, Duration(60*time.Second))

	orDefault(&c.Scale.Timeout, Duration(time.Hour))
	orDefault(&c.Scale.Attempts, 3)
	orDefault(&c.Scale.MaxParallel, 1)
	orDefault(&c.Scale.MinWorkers, 1)

	orDefault(&c.Upgrade.Script, ScriptKubeadmApt)
	orDefault(&c.Upgrade.BundleDir, "/opt/ebb/bundle")
	orPointer(&c.Upgrade.Retries, 3)
	orDefault(&c.Upgrade.NodeTimeout, Duration(30*time.Minute))
	orDefault(&c.Upgrade.ReadyTimeout, Duration(10*time.Minute))
	orDefault(&c.Upgrade.SteadyInterval, Duration(time.Second))
	orDefault(&c.Upgrade.MaxUnavailable, "1")
	return c
}
