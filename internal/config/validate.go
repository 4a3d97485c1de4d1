package config

import (
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Validate reports every fault of the configuration at once, as an *Error. A
// zero value stands for its default and is no fault.
func (c *Config) Validate() error { return faultsError("", c.check()) }

// checker collects faults under one path.
type checker struct {
	at     string
	faults *[]Fault
}

func (k checker) under(key string) checker { return checker{join(k.at, key), k.faults} }

func (k checker) item(key string, i int) checker { return k.under(fmt.Sprintf("%s[%d]", key, i)) }

func (k checker) fault(key, format string, args ...any) {
	at := k.at
	if key != "" {
		at = join(at, key)
	}
	*k.faults = append(*k.faults, Fault{Path: at, Text: fmt.Sprintf(format, args...)})
}

func (k checker) required(key, value, what string) {
	if value == "" {
		k.fault(key, "is required: %s", what)
	}
}

func (k checker) atLeast(key string, value, least int64) {
	if value != 0 && value < least {
		k.fault(key, "must be %d or more, not %d", least, value)
	}
}

func (k checker) port(key string, value int) {
	if value < 0 || value > 65535 {
		k.fault(key, "must be a port from 1 to 65535, not %d", value)
	}
}

func (k checker) duration(key string, value Duration) {
	if value < 0 {
		k.fault(key, "must not be negative")
	}
}

func (k checker) oneOf(key, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		k.fault(key, "must be %s, not %q%s", strings.Join(known, " or "), brief(value), hint(value, known))
	}
}

// hint is the end of an error about a word that looks like one of the known ones.
func hint(word string, known []string) string {
	if near := suggest(word, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

func (c *Config) check() []Fault {
	var faults []Fault
	k := checker{faults: &faults}
	if len(c.Clusters) == 0 && !c.Gateway.given() { // a gateway alone needs none: operations are the workers'
		k.fault("clusters", "at least one cluster is required")
	}
	first := map[string]int{}
	for i, cluster := range c.Clusters {
		at := k.item("clusters", i)
		if earlier, twice := first[cluster.Name]; twice && cluster.Name != "" {
			at.fault("name", "%q is the name of clusters[%d] already", brief(cluster.Name), earlier)
		} else {
			first[cluster.Name] = i
		}
		cluster.check(at)
	}
	c.Gateway.check(k.under("gateway"))
	return faults
}

// clusterName is what fits into workflow IDs, metrics and paths.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

func (c *Cluster) check(k checker) {
	k.required("name", c.Name, "how commands refer to the cluster")
	if c.Name != "" && !clusterName.MatchString(c.Name) {
		k.fault("name", "must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends")
	}
	k.required("kubeconfig", c.Kubeconfig, "the path of the cluster's kubeconfig")
	c.SSH.check(k.under("ssh"))
	c.Addressing.check(k.under("addressing"), c.Infrastructure.Provider == InfraCloudStack)
	c.Infrastructure.check(k.under("infrastructure"))
	c.Drain.check(k.under("drain"))
	c.Scale.check(k.under("scale"))
	c.Upgrade.check(k.under("upgrade"))
}

func (s *SSH) check(k checker) {
	k.port("port", s.Port)
	if strings.ContainsAny(s.User, " \t\r\n@:") {
		k.fault("user", "must be a login name without spaces, '@' or ':'")
	}
	if s.IdentityFile == "" {
		if s.CertificateFile != "" {
			k.fault("certificateFile", "needs ssh.identityFile, the key that it certifies")
		}
		if s.PassphraseFile != "" {
			k.fault("passphraseFile", "needs ssh.identityFile, the key that it opens")
		}
	}
	if s.AcceptNew && s.KnownHosts == "" {
		k.fault("acceptNew", "needs ssh.knownHosts, the file in which new host keys are pinned")
	}
	if s.Jump != "" {
		if err := checkJump(s.Jump); err != nil {
			k.fault("jump", "%v", err)
		}
	}
	k.duration("connectTimeout", s.ConnectTimeout)
	k.duration("keepAlive", s.KeepAlive)
}

// checkJump accepts [user@]host[:port], an IPv6 address with a port in brackets.
func checkJump(jump string) error {
	const form = "must be [user@]host[:port]"
	host := jump
	if user, rest, named := strings.Cut(jump, "@"); named {
		if user == "" {
			return fmt.Errorf("%s: the user is empty", form)
		}
		host = rest
	}
	if name, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("%s: the port must be from 1 to 65535", form)
		}
		host = name
	} else if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		host = strings.TrimSuffix(inner, "]")
	}
	if host == "" || strings.ContainsAny(host, " \t\r\n@/[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return fmt.Errorf("%s: the host is not valid", form)
	}
	return nil
}

// check takes whether the infrastructure knows the forwarding rules.
func (a *Addressing) check(k checker, rulesKnown bool) {
	k.oneOf("mode", a.Mode, AddressNode, AddressForwarded)
	k.port("basePort", a.BasePort)
	if a.Mode == AddressForwarded {
		k.required("publicAddress", a.PublicAddress, "the address that the forwarding rules are on")
		switch {
		case len(a.Rules) > 0:
		case rulesKnown:
			if a.PublicAddress != "" && net.ParseIP(a.PublicAddress) == nil {
				k.fault("publicAddress", "must be an IP address, so that its rules can be asked for, unless there are rules here")
			}
		case a.BasePort == 0:
			k.fault("rules", "mode forwarded needs rules, or a basePort to count from")
		}
	}
	ports, nodes := map[int]int{}, map[string]int{}
	for i, rule := range a.Rules {
		at := k.item("rules", i)
		at.required("node", rule.Node, "the node that the rule forwards to")
		if rule.Port < 1 || rule.Port > 65535 {
			at.fault("port", "must be a port from 1 to 65535, not %d", rule.Port)
			continue
		}
		if rule.State != "" && rule.State != defaultState {
			continue // not in use: may share a port with its successor
		}
		if earlier, twice := ports[rule.Port]; twice {
			at.fault("port", "%d is forwarded by rules[%d] already", rule.Port, earlier)
		}
		if earlier, twice := nodes[rule.Node]; twice && rule.Node != "" {
			at.fault("node", "%q has an active rule already: rules[%d]", brief(rule.Node), earlier)
		}
		ports[rule.Port], nodes[rule.Node] = i, i
	}
}

func (d *Drain) check(k checker) {
	if d.GracePeriod != nil && *d.GracePeriod < -1 {
		k.fault("gracePeriod", "must be seconds, or -1 for each pod's own, not %d", *d.GracePeriod)
	}
	k.atLeast("parallel", int64(d.Parallel), 1)
	// Not the timeout: anything below 1s is its default.
	k.duration("retryInterval", d.RetryInterval)
	k.duration("skipWaitForDeleteTimeout", d.SkipWaitForDeleteTimeout)
	k.duration("volumeDetachTimeout", d.VolumeDetachTimeout)
}

func (s *Scale) check(k checker) {
	k.duration("timeout", s.Timeout)
	k.atLeast("attempts", int64(s.Attempts), 1)
	k.atLeast("maxParallel", int64(s.MaxParallel), 1)
	k.atLeast("minWorkers", int64(s.MinWorkers), 1)
}

func (u *Upgrade) check(k checker) {
	if !isPath(u.Script) {
		k.script(u.Script)
	}
	for i, flag := range u.KubeadmFlags {
		if flag == "" || strings.ContainsAny(flag, " \t\r\n") {
			k.item("kubeadmFlags", i).fault("", "must be one word: the script gets the flags separated by spaces")
		}
	}
	if u.BundleDir != "" && !path.IsAbs(u.BundleDir) {
		k.fault("bundleDir", "must be an absolute path on the node")
	}
	if u.Retries != nil {
		k.atLeast("retries", int64(*u.Retries), 0)
	}
	k.duration("nodeTimeout", u.NodeTimeout)
	k.duration("timeout", u.Timeout)
	k.duration("readyTimeout", u.ReadyTimeout)
	k.duration("steadyInterval", u.SteadyInterval)
	if u.MaxUnavailable != "" {
		if _, _, err := parseUnavailable(u.MaxUnavailable); err != nil {
			k.fault("maxUnavailable", "%v", err)
		}
	}
}

func (k checker) script(name string) {
	known := []string{ScriptKubeadmApt, ScriptKubeadmBundle}
	if name != "" && !slices.Contains(known, name) {
		k.fault("script", "must be %s, or a path with a /, not %q%s", strings.Join(known, ", "), brief(name), hint(name, known))
	}
}
