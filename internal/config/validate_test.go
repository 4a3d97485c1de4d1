package config

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// faultsOf returns the faults of a cluster that is good apart from what change does to it.
func faultsOf(change func(*Cluster)) []string {
	c := Cluster{Name: "prod", Kubeconfig: "/k"}
	change(&c)
	err := (&Config{Clusters: []Cluster{c}}).Validate()
	var fault *ValidationError
	if !errors.As(err, &fault) {
		return nil
	}
	var texts []string
	for _, f := range fault.Errors {
		texts = append(texts, f.String())
	}
	return texts
}

func TestValidate(t *testing.T) {
	minusOne, minusTwo := -1, int64(-2)
	tests := map[string]struct {
		change func(*Cluster)
		want   []string
	}{
		"good":              {func(*Cluster) {}, nil},
		"defaults are good": {func(c *Cluster) { *c = c.WithDefaults() }, nil},
		"name":              {func(c *Cluster) { c.Name = "-a" }, []string{"clusters[0].name: must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"}},
		"port":              {func(c *Cluster) { c.SSH.Port = 65536 }, []string{"clusters[0].ssh.port: must be a port from 1 to 65535, not 65536"}},
		"user":              {func(c *Cluster) { c.SSH.User = "a@b" }, []string{"clusters[0].ssh.user: must be a login name without spaces, '@' or ':'"}},
		"certificate":       {func(c *Cluster) { c.SSH.CertificateFile = "/c" }, []string{"clusters[0].ssh.certificateFile: needs ssh.identityFile, the key that it certifies"}},
		"passphrase":        {func(c *Cluster) { c.SSH.PassphraseFile = "/c" }, []string{"clusters[0].ssh.passphraseFile: needs ssh.identityFile, the key that it opens"}},
		"acceptNew":         {func(c *Cluster) { c.SSH.AcceptNew = true }, []string{"clusters[0].ssh.acceptNew: needs ssh.knownHosts, the file in which new host keys are pinned"}},
		"mode":              {func(c *Cluster) { c.Addressing.Mode = "forward" }, []string{`clusters[0].addressing.mode: must be node or forwarded or tunnel, not "forward", did you mean "forwarded"?`}},
		"basePort":          {func(c *Cluster) { c.Addressing.BasePort = -1 }, []string{"clusters[0].addressing.basePort: must be a port from 1 to 65535, not -1"}},
		"forwarded":         {func(c *Cluster) { c.Addressing.Mode = "forwarded" }, []string{"clusters[0].addressing.publicAddress: is required: the address that the forwarding rules are on", "clusters[0].addressing.rules: mode forwarded needs rules, or a basePort to count from"}},
		"provider":          {func(c *Cluster) { c.Infrastructure.Provider = "exce" }, []string{`clusters[0].infrastructure.provider: must be none or exec or cloudstack, not "exce", did you mean "exec"?`}},
		"exec":              {func(c *Cluster) { c.Infrastructure.Provider = "exec" }, []string{"clusters[0].infrastructure.command: is required with provider exec: the program and its arguments"}},
		"command unused":    {func(c *Cluster) { c.Infrastructure.Command = []string{"x"} }, []string{"clusters[0].infrastructure.command: is used only with provider: exec"}},
		"gracePeriod":       {func(c *Cluster) { c.Drain.GracePeriod = &minusTwo }, []string{"clusters[0].drain.gracePeriod: must be seconds, or -1 for each pod's own, not -2"}},
		"parallel":          {func(c *Cluster) { c.Drain.Parallel = -1 }, []string{"clusters[0].drain.parallel: must be 1 or more, not -1"}},
		"scale":             {func(c *Cluster) { c.Scale = Scale{Attempts: -1, MaxParallel: -1, MinWorkers: -1} }, []string{"clusters[0].scale.attempts: must be 1 or more, not -1", "clusters[0].scale.maxParallel: must be 1 or more, not -1", "clusters[0].scale.minWorkers: must be 1 or more, not -1"}},
		"script":            {func(c *Cluster) { c.Upgrade.Script = "kubeadm-atp" }, []string{`clusters[0].upgrade.script: must be kubeadm-apt, kubeadm-bundle, cks-iso, or a path with a /, not "kubeadm-atp", did you mean "kubeadm-apt"?`}},
		"script path":       {func(c *Cluster) { c.Upgrade.Script = "./up.sh" }, nil},
		"flags":             {func(c *Cluster) { c.Upgrade.KubeadmFlags = []string{"--a", "--b c", ""} }, []string{"clusters[0].upgrade.kubeadmFlags[1]: must be one word: the script gets the flags separated by spaces", "clusters[0].upgrade.kubeadmFlags[2]: must be one word: the script gets the flags separated by spaces"}},
		"flags of a command": {func(c *Cluster) {
			c.Upgrade.KubeadmApplyFlags, c.Upgrade.KubeadmNodeFlags = []string{"-y -f"}, []string{"--a", ""}
		}, []string{"clusters[0].upgrade.kubeadmApplyFlags[0]: must be one word: the script gets the flags separated by spaces", "clusters[0].upgrade.kubeadmNodeFlags[1]: must be one word: the script gets the flags separated by spaces"}},
		"bundleDir":           {func(c *Cluster) { c.Upgrade.BundleDir = "b" }, []string{"clusters[0].upgrade.bundleDir: must be an absolute path on the node"}},
		"retries":             {func(c *Cluster) { c.Upgrade.Retries = &minusOne }, []string{"clusters[0].upgrade.retries: must be 0 or more, not -1"}},
		"maxUnavailable":      {func(c *Cluster) { c.Upgrade.MaxUnavailable = "0" }, []string{`clusters[0].upgrade.maxUnavailable: must be a number of workers from 1, or a percentage such as 25%, not "0"`}},
		"maxUnavailable half": {func(c *Cluster) { c.Upgrade.MaxUnavailable = "2.5" }, []string{`clusters[0].upgrade.maxUnavailable: must be a number of workers from 1, or a percentage such as 25%, not "2.5"`}},
		"maxUnavailable 101%": {func(c *Cluster) { c.Upgrade.MaxUnavailable = "101%" }, []string{`clusters[0].upgrade.maxUnavailable: a percentage must be from 1% to 100%, not "101%"`}},
		"rules": {func(c *Cluster) {
			c.Addressing = Addressing{Mode: "forwarded", PublicAddress: "h", Rules: []ForwardingRule{
				{Node: "w1", Port: 2222}, {Node: "w2", Port: 2222}, {Node: "w1", Port: 2224}, {Port: 0}, {Node: "w3", Port: 2222, State: "Deleting"}}}
		}, []string{
			"clusters[0].addressing.rules[1].port: 2222 is forwarded by rules[0] already",
			`clusters[0].addressing.rules[2].node: "w1" has an active rule already: rules[0]`,
			"clusters[0].addressing.rules[3].node: is required: the node that the rule forwards to",
			"clusters[0].addressing.rules[3].port: must be a port from 1 to 65535, not 0"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, faultsOf(tt.change)) })
	}
}

func TestValidateNamesOnce(t *testing.T) {
	err := (&Config{Clusters: []Cluster{{Name: "a", Kubeconfig: "k"}, {Name: "b", Kubeconfig: "k"}, {Name: "a", Kubeconfig: "k"}}}).Validate()
	require.EqualError(t, err, `configuration: clusters[2].name: "a" is the name of clusters[0] already`)
}

func TestCheckJump(t *testing.T) {
	for _, good := range []string{"h", "h:22", "me@h", "me@h:2222", "::1", "[::1]", "[::1]:22", "me@[fe80::1]:22", "10.0.0.1"} {
		require.NoError(t, validateJump(good), good)
	}
	for _, bad := range []string{"@h", "h:0", "h:99999", "h:ssh", "me@", ":22", "a b", "a@b@c", "ssh://h", "h:1:2", "[]:22"} {
		require.ErrorContains(t, validateJump(bad), "must be [user@]host[:port]: ", bad)
	}
}

func TestUnavailable(t *testing.T) {
	tests := []struct {
		setting       string
		workers, want int
	}{
		{"1", 10, 1}, {"3", 10, 3}, {"25%", 3, 1}, {"50%", 5, 3}, {"25%", 8, 2}, {"25%", 9, 3},
		{"1%", 1, 1}, {"100%", 7, 7}, {"50%", 0, 1}, {"34%", 3, 2}, {"", 10, 1}, {"0%", 10, 1}, {"x", 10, 1},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, Upgrade{MaxUnavailable: tt.setting}.MaxUnavailableWorkers(tt.workers), "%s of %d", tt.setting, tt.workers)
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"300s": 300 * time.Second, "1h30m": 90 * time.Minute, "0": 0, "250ms": 250 * time.Millisecond} {
		var d Duration
		require.NoError(t, yaml.Unmarshal([]byte(text), &d))
		require.Equal(t, want, d.D())
	}
	for text, want := range map[string]string{
		"300":   "line 1: a duration needs a unit: add s, m or h",
		"1.5":   "line 1: a duration needs a unit: add s, m or h",
		"later": "line 1: must be a duration such as 300s, 10m or 1h30m",
		"[1s]":  "line 1: must be a duration such as 300s, 10m or 1h30m",
	} {
		var d Duration
		require.EqualError(t, yaml.Unmarshal([]byte(text), &d), want)
	}
	for d, want := range map[time.Duration]string{
		300 * time.Second: "5m", time.Hour: "1h", 90 * time.Minute: "1h30m", 90 * time.Second: "1m30s", 10 * time.Minute: "10m",
		0: "0s", time.Hour + time.Second: "1h0m1s", -time.Hour: "-1h", 250 * time.Millisecond: "250ms",
	} {
		require.Equal(t, want, Duration(d).String())
		out, err := yaml.Marshal(Duration(d))
		require.NoError(t, err)
		require.Equal(t, want+"\n", string(out))
	}
}

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "1", "EMPTY": "", "NESTED": "${A}$$"}[name]
		return value, ok
	}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "${A}": "1", "x${A}y${A}": "x1y1", "${EMPTY}": "", "$A": "$A", "a$": "a$", "$$": "$",
		"$${A}": "${A}", "$$${A}": "$1", "$$$": "$$", "${NESTED}": "${A}$$",
	} {
		got, err := expand(in, lookup)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
		back, err := expand(escape(in), lookup)
		require.NoError(t, err)
		require.Equal(t, in, back)
	}
}

func TestSuggest(t *testing.T) {
	names := []string{"timeout", "attempts", "maxParallel", "port"}
	for word, want := range map[string]string{
		"timeuot": "timeout", "Timeout": "timeout", "atempts": "attempts", "max_parallel": "maxParallel", "prot": "port", "zebra": "", "": "",
	} {
		require.Equal(t, want, closestName(word, names), word)
	}
}
