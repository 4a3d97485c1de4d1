package config

import (
	"time"
)

// Defaults that are used in more than one place.
const (
	DefaultDrainTimeout = Duration(300 * time.Second)
	ruleStateActive     = "Active"
)

// setDefault sets a zero value to its default.
func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

// setDefaultPtr sets a nil pointer to its default.
func setDefaultPtr[T any](value **T, fallback T) {
	if *value == nil {
		*value = &fallback
	}
}

// WithDefaults returns the cluster with the defaults that types.go names; its pointer
// fields are not nil. Load applies it.
func (c Cluster) WithDefaults() Cluster {
	setDefault(&c.SSH.User, "root")
	setDefault(&c.SSH.Port, 22)
	setDefault(&c.SSH.RunDir, "/var/lib/ebb/runs")
	setDefault(&c.SSH.ConnectTimeout, Duration(15*time.Second))
	setDefault(&c.SSH.KeepAlive, Duration(5*time.Second))

	setDefault(&c.Addressing.Mode, AddressNode)
	rules := make([]ForwardingRule, len(c.Addressing.Rules))
	for i, rule := range c.Addressing.Rules {
		setDefault(&rule.State, ruleStateActive)
		rules[i] = rule
	}
	if len(rules) > 0 {
		c.Addressing.Rules = rules
	}

	c.Tunnel.setDefaults()

	setDefault(&c.Infrastructure.Provider, InfraNone)
	setDefault(&c.Infrastructure.Timeout, Duration(2*time.Minute))

	if c.Drain.Timeout.D() < time.Second {
		c.Drain.Timeout = DefaultDrainTimeout
	}
	setDefault(&c.Drain.RetryInterval, Duration(30*time.Second))
	setDefaultPtr(&c.Drain.GracePeriod, -1)
	setDefaultPtr(&c.Drain.DeleteEmptyDir, true)
	setDefault(&c.Drain.Parallel, 16)
	setDefault(&c.Drain.Jobs, JobsEvict)
	setDefault(&c.Drain.Returning, ReturningLeave)
	setDefaultPtr(&c.Drain.WaitForVolumeDetach, true)
	setDefault(&c.Drain.VolumeDetachTimeout, Duration(60*time.Second))

	setDefault(&c.Scale.Timeout, Duration(time.Hour))
	setDefault(&c.Scale.Attempts, 3)
	setDefault(&c.Scale.MaxParallel, 1)
	setDefault(&c.Scale.MinWorkers, 1)
	setDefault(&c.Scale.VolumeDetachTimeout, Duration(5*time.Minute))

	setDefault(&c.Upgrade.Script, ScriptKubeadmApt)
	setDefault(&c.Upgrade.BundleDir, "/opt/ebb/bundle")
	setDefaultPtr(&c.Upgrade.Retries, 3)
	setDefault(&c.Upgrade.NodeTimeout, Duration(30*time.Minute))
	setDefault(&c.Upgrade.ReadyTimeout, Duration(10*time.Minute))
	setDefault(&c.Upgrade.SteadyInterval, Duration(time.Second))
	setDefault(&c.Upgrade.MaxUnavailable, "1")
	return c
}
