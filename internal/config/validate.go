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

// Validate returns a *ValidationError with every error of the configuration, or nil. A
// zero value stands for its default and is valid.
func (c *Config) Validate() error { return asError("", c.validate()) }

// validator collects the errors of the fields below one path.
type validator struct {
	path string
	errs *[]FieldError
}

func (v validator) child(key string) validator { return validator{join(v.path, key), v.errs} }

func (v validator) index(key string, i int) validator { return v.child(fmt.Sprintf("%s[%d]", key, i)) }

func (v validator) errorf(key, format string, args ...any) {
	at := v.path
	if key != "" {
		at = join(at, key)
	}
	*v.errs = append(*v.errs, FieldError{Path: at, Message: fmt.Sprintf(format, args...)})
}

func (v validator) required(key, value, what string) {
	if value == "" {
		v.errorf(key, "is required: %s", what)
	}
}

func (v validator) atLeast(key string, value, least int64) {
	if value != 0 && value < least {
		v.errorf(key, "must be %d or more, not %d", least, value)
	}
}

func (v validator) port(key string, value int) {
	if value < 0 || value > 65535 {
		v.errorf(key, "must be a port from 1 to 65535, not %d", value)
	}
}

func (v validator) duration(key string, value Duration) {
	if value < 0 {
		v.errorf(key, "must not be negative")
	}
}

func (v validator) oneOf(key, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		v.errorf(key, "must be %s, not %q%s", strings.Join(known, " or "), shorten(value), didYouMean(value, known))
	}
}

// didYouMean returns the suggestion at the end of an error about a word that is close to
// a known one, else "".
func didYouMean(word string, known []string) string {
	if near := closestName(word, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

func (c *Config) validate() []FieldError {
	var errs []FieldError
	v := validator{errs: &errs}
	if len(c.Clusters) == 0 && !c.Gateway.isSet() { // a gateway alone needs none: operations are the workers'
		v.errorf("clusters", "at least one cluster is required")
	}
	first := map[string]int{}
	for i, cluster := range c.Clusters {
		at := v.index("clusters", i)
		if earlier, twice := first[cluster.Name]; twice && cluster.Name != "" {
			at.errorf("name", "%q is the name of clusters[%d] already", shorten(cluster.Name), earlier)
		} else {
			first[cluster.Name] = i
		}
		cluster.validate(at)
	}
	c.Gateway.validate(v.child("gateway"))
	c.validateTunnels(v)
	return errs
}

// clusterName matches what fits into workflow IDs, metric labels and paths.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

func (c *Cluster) validate(v validator) {
	v.required("name", c.Name, "how commands refer to the cluster")
	if c.Name != "" && !clusterName.MatchString(c.Name) {
		v.errorf("name", "must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends")
	}
	v.required("kubeconfig", c.Kubeconfig, "the path of the cluster's kubeconfig")
	c.SSH.validate(v.child("ssh"))
	c.Addressing.validate(v.child("addressing"), c.Infrastructure.Provider == InfraCloudStack)
	c.Tunnel.validate(v.child("tunnel"), c.Addressing.Mode == AddressTunnel)
	c.Infrastructure.validate(v.child("infrastructure"))
	c.Drain.validate(v.child("drain"))
	c.Scale.validate(v.child("scale"))
	c.Upgrade.validate(v.child("upgrade"))
	c.Upgrade.validateISO(v.child("upgrade"), &c.Infrastructure)
}

func (s *SSH) validate(v validator) {
	v.port("port", s.Port)
	if strings.ContainsAny(s.User, " \t\r\n@:") {
		v.errorf("user", "must be a login name without spaces, '@' or ':'")
	}
	if s.IdentityFile == "" {
		if s.CertificateFile != "" {
			v.errorf("certificateFile", "needs ssh.identityFile, the key that it certifies")
		}
		if s.PassphraseFile != "" {
			v.errorf("passphraseFile", "needs ssh.identityFile, the key that it opens")
		}
	}
	if s.AcceptNew && s.KnownHosts == "" {
		v.errorf("acceptNew", "needs ssh.knownHosts, the file in which new host keys are pinned")
	}
	if s.Jump != "" {
		if err := validateJump(s.Jump); err != nil {
			v.errorf("jump", "%v", err)
		}
	}
	v.duration("connectTimeout", s.ConnectTimeout)
	v.duration("keepAlive", s.KeepAlive)
}

// validateJump returns an error unless jump is [user@]host[:port], with an IPv6 address
// in brackets when it has a port.
func validateJump(jump string) error {
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

// validate validates the section. rulesKnown: the infrastructure provider knows the rules.
func (a *Addressing) validate(v validator, rulesKnown bool) {
	v.oneOf("mode", a.Mode, AddressNode, AddressForwarded, AddressTunnel)
	v.port("basePort", a.BasePort)
	if a.Mode == AddressForwarded {
		v.required("publicAddress", a.PublicAddress, "the address that the forwarding rules are on")
		switch {
		case len(a.Rules) > 0:
		case rulesKnown:
			if a.PublicAddress != "" && net.ParseIP(a.PublicAddress) == nil {
				v.errorf("publicAddress", "must be an IP address, so that its rules can be asked for, unless there are rules here")
			}
		case a.BasePort == 0:
			v.errorf("rules", "mode forwarded needs rules, or a basePort to count from")
		}
	}
	ports, nodes := map[int]int{}, map[string]int{}
	for i, rule := range a.Rules {
		at := v.index("rules", i)
		at.required("node", rule.Node, "the node that the rule forwards to")
		if rule.Port < 1 || rule.Port > 65535 {
			at.errorf("port", "must be a port from 1 to 65535, not %d", rule.Port)
			continue
		}
		if rule.State != "" && rule.State != ruleStateActive {
			continue // not in use: may share a port with its successor
		}
		if earlier, twice := ports[rule.Port]; twice {
			at.errorf("port", "%d is forwarded by rules[%d] already", rule.Port, earlier)
		}
		if earlier, twice := nodes[rule.Node]; twice && rule.Node != "" {
			at.errorf("node", "%q has an active rule already: rules[%d]", shorten(rule.Node), earlier)
		}
		ports[rule.Port], nodes[rule.Node] = i, i
	}
}

func (d *Drain) validate(v validator) {
	if d.GracePeriod != nil && *d.GracePeriod < -1 {
		v.errorf("gracePeriod", "must be seconds, or -1 for each pod's own, not %d", *d.GracePeriod)
	}
	v.atLeast("parallel", int64(d.Parallel), 1)
	// Not the timeout: anything below 1s is its default.
	v.duration("retryInterval", d.RetryInterval)
	v.duration("skipWaitForDeleteTimeout", d.SkipWaitForDeleteTimeout)
	v.duration("volumeDetachTimeout", d.VolumeDetachTimeout)
	v.oneOf("jobs", d.Jobs, JobsEvict, JobsWait)
	v.oneOf("returning", d.Returning, ReturningLeave, ReturningFail)
}

func (s *Scale) validate(v validator) {
	v.duration("timeout", s.Timeout)
	v.atLeast("attempts", int64(s.Attempts), 1)
	v.atLeast("maxParallel", int64(s.MaxParallel), 1)
	v.atLeast("minWorkers", int64(s.MinWorkers), 1)
	v.duration("volumeDetachTimeout", s.VolumeDetachTimeout)
}

func (u *Upgrade) validate(v validator) {
	if !isPath(u.Script) {
		v.script(u.Script)
	}
	v.words("kubeadmFlags", u.KubeadmFlags)
	v.words("kubeadmApplyFlags", u.KubeadmApplyFlags)
	v.words("kubeadmNodeFlags", u.KubeadmNodeFlags)
	if u.BundleDir != "" && !path.IsAbs(u.BundleDir) {
		v.errorf("bundleDir", "must be an absolute path on the node")
	}
	if u.Retries != nil {
		v.atLeast("retries", int64(*u.Retries), 0)
	}
	v.duration("nodeTimeout", u.NodeTimeout)
	v.duration("timeout", u.Timeout)
	v.duration("readyTimeout", u.ReadyTimeout)
	v.duration("steadyInterval", u.SteadyInterval)
	if u.MaxUnavailable != "" {
		if _, _, err := parseMaxUnavailable(u.MaxUnavailable); err != nil {
			v.errorf("maxUnavailable", "%v", err)
		}
	}
}

// words reports flags that are not one word each.
func (v validator) words(key string, flags []string) {
	for i, flag := range flags {
		if flag == "" || strings.ContainsAny(flag, " \t\r\n") {
			v.index(key, i).errorf("", "must be one word: the script gets the flags separated by spaces")
		}
	}
}

func (v validator) script(name string) {
	known := []string{ScriptKubeadmApt, ScriptKubeadmBundle, ScriptCKSISO}
	if name != "" && !slices.Contains(known, name) {
		v.errorf("script", "must be %s, or a path with a /, not %q%s", strings.Join(known, ", "), shorten(name), didYouMean(name, known))
	}
}
