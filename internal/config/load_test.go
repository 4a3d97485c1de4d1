package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// write puts a configuration into a directory of its own and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ebb.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// minimal returns a good configuration of one cluster, with more keys appended to it.
func minimal(more string) string {
	return "clusters:\n  - name: prod\n    kubeconfig: /etc/ebb/prod.kubeconfig\n" + more
}

func TestLoadFillsDefaults(t *testing.T) {
	cfg, err := Load(write(t, minimal("")))
	require.NoError(t, err)
	grace, yes, retries := int64(-1), true, 3
	lameDuck := Duration(5 * time.Second)
	require.Equal(t, &Config{Clusters: []Cluster{{
		Name:       "prod",
		Kubeconfig: "/etc/ebb/prod.kubeconfig",
		SSH: SSH{
			User: "root", Port: 22, RunDir: "/var/lib/ebb/runs",
			ConnectTimeout: Duration(15 * time.Second), KeepAlive: Duration(5 * time.Second),
		},
		Addressing:     Addressing{Mode: "node"},
		Infrastructure: Infrastructure{Provider: "none", Timeout: Duration(2 * time.Minute)},
		Drain: Drain{
			Timeout: Duration(300 * time.Second), RetryInterval: Duration(30 * time.Second),
			GracePeriod: &grace, DeleteEmptyDir: &yes, Parallel: 16, Jobs: JobsEvict, Returning: ReturningLeave,
			WaitForVolumeDetach: &yes, VolumeDetachTimeout: Duration(60 * time.Second),
		},
		Scale: Scale{Timeout: Duration(time.Hour), Attempts: 3, MaxParallel: 1, MinWorkers: 1, VolumeDetachTimeout: Duration(5 * time.Minute)},
		Upgrade: Upgrade{
			Script: "kubeadm-apt", BundleDir: "/opt/ebb/bundle", Retries: &retries,
			NodeTimeout: Duration(30 * time.Minute), ReadyTimeout: Duration(10 * time.Minute),
			SteadyInterval: Duration(time.Second), MaxUnavailable: "1",
		},
	}}, Gateway: Gateway{
		Listen: "127.0.0.1:8470", OIDC: OIDC{UsernameClaim: "sub"}, GracePeriod: Duration(time.Minute), LameDuck: &lameDuck,
		RateLimit: RateLimit{PerSecond: 50, Burst: 300}, MaxStreams: 1000, MaxStreamsPerPrincipal: 500,
	}}, cfg)
}

func TestLoadReadsValues(t *testing.T) {
	t.Setenv("EBB_TEST_USER", "cloud")
	t.Setenv("EBB_TEST_PORT", "2022")
	cfg, err := Load(write(t, minimal(`
    context: admin@prod
    ssh: &ssh {user: "${EBB_TEST_USER}", port: "${EBB_TEST_PORT}", agent: true, jump: "me@[::1]:22", keepAlive: 0s}
    addressing:
      mode: forwarded
      publicAddress: 203.0.113.7
      rules: [{node: w1, port: 2223}, {node: w1, port: 2223, state: Revoke}]
    drain: {timeout: 900ms, gracePeriod: 0, deleteEmptyDir: false, force: true, parallel: 4}
    upgrade: {retries: 0, timeout: 0, maxUnavailable: 25%, kubeadmFlags: [--yes, "--x=$$HOME"]}
  - name: "2"
    kubeconfig: /k
    ssh:
      <<: *ssh
      port: 23
`)))
	require.NoError(t, err)
	prod, err := cfg.Cluster("prod")
	require.NoError(t, err)
	require.Equal(t, "admin@prod", prod.Context)
	require.Equal(t, "cloud", prod.SSH.User)
	require.Equal(t, 2022, prod.SSH.Port)
	require.True(t, prod.SSH.Agent)
	require.Equal(t, 5*time.Second, prod.SSH.KeepAlive.D())
	require.Equal(t, []ForwardingRule{{"w1", 2223, "Active"}, {"w1", 2223, "Revoke"}}, prod.Addressing.Rules)
	require.Equal(t, 300*time.Second, prod.Drain.Timeout.D(), "below 1s is the default")
	require.Zero(t, *prod.Drain.GracePeriod)
	require.False(t, *prod.Drain.DeleteEmptyDir)
	require.True(t, prod.Drain.Force)
	require.Equal(t, 4, prod.Drain.Parallel)
	require.Zero(t, *prod.Upgrade.Retries)
	require.Equal(t, "25%", prod.Upgrade.MaxUnavailable)
	require.Equal(t, []string{"--yes", "--x=$HOME"}, prod.Upgrade.KubeadmFlags)

	second, err := cfg.Cluster("2")
	require.NoError(t, err)
	require.Equal(t, "cloud", second.SSH.User, "merged")
	require.Equal(t, 23, second.SSH.Port, "its own before the merged one")
}

func TestLoadResolvesPaths(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	path := write(t, `
clusters:
  - name: prod
    kubeconfig: prod.kubeconfig
    ssh: {identityFile: ~/.ssh/id, certificateFile: keys/id-cert.pub, passphraseFile: ../pass, knownHosts: ~/known, runDir: ebb/runs}
    infrastructure: {provider: exec, command: [./vm, ./arg]}
    upgrade: {script: scripts/up.sh, bundleDir: /opt/b}
  - {name: other, kubeconfig: /abs/k, infrastructure: {provider: exec, command: [vmctl]}}
`)
	dir := filepath.Dir(path)
	cfg, err := Load(path)
	require.NoError(t, err)
	c := cfg.Clusters[0]
	require.Equal(t, filepath.Join(dir, "prod.kubeconfig"), c.Kubeconfig)
	require.Equal(t, "/home/me/.ssh/id", c.SSH.IdentityFile)
	require.Equal(t, filepath.Join(dir, "keys/id-cert.pub"), c.SSH.CertificateFile)
	require.Equal(t, filepath.Join(filepath.Dir(dir), "pass"), c.SSH.PassphraseFile)
	require.Equal(t, "/home/me/known", c.SSH.KnownHosts)
	require.Equal(t, "ebb/runs", c.SSH.RunDir, "on the node")
	require.Equal(t, []string{filepath.Join(dir, "vm"), "./arg"}, c.Infrastructure.Command)
	require.Equal(t, filepath.Join(dir, "scripts/up.sh"), c.Upgrade.Script)
	require.Equal(t, "/abs/k", cfg.Clusters[1].Kubeconfig)
	require.Equal(t, []string{"vmctl"}, cfg.Clusters[1].Infrastructure.Command, "found through PATH")
}

func TestLoadFaults(t *testing.T) {
	t.Setenv("EBB_TEST_SECRET", "hunter2")
	tests := []struct {
		name, text string
		want       []string // the faults, in order
	}{
		{"empty", "", []string{"clusters: at least one cluster is required"}},
		{"only a comment", "# nothing\n", []string{"clusters: at least one cluster is required"}},
		{"no clusters", "clusters: []\n", []string{"line 1: clusters: at least one cluster is required"}},
		{"not a mapping", "- a\n", []string{
			"line 1: must be a block of keys: clusters, gateway", "line 1: clusters: at least one cluster is required"}},
		{"syntax", "clusters:\n  - name: a\n  kubeconfig: x\n", []string{
			"line 3: not valid YAML: value is not allowed in this context"}},
		{"unclosed", minimal("    ssh: {user: a\n    drain: {timeout: 1s}\n"), []string{
			"line 5: not valid YAML: ',' or '}' must be specified"}},
		{"tab", minimal("\tssh: {}\n"), []string{
			"line 4: not valid YAML: found character '\t' that cannot start any token"}},
		{"unknown anchor", minimal("    ssh: *nope\n"), []string{
			"line 4: not valid YAML: unknown anchor 'nope' referenced"}},
		{"second document", minimal("---\nclusters: []\n"), []string{
			"line 4: holds a second YAML document: everything goes into one"}},
		{"required", "clusters:\n  - context: x\n", []string{
			"line 2: clusters[0].name: is required: how commands refer to the cluster",
			"line 2: clusters[0].kubeconfig: is required: the path of the cluster's kubeconfig"}},
		{"null cluster", "clusters:\n  -\n", []string{
			"line 2: clusters[0].name: is required: how commands refer to the cluster",
			"line 2: clusters[0].kubeconfig: is required: the path of the cluster's kubeconfig"}},
		{"unknown key, near", minimal("    ssh:\n      identityfile: /k\n"), []string{
			`line 5: clusters[0].ssh.identityfile: unknown key, did you mean "identityFile"?`}},
		{"unknown key, swapped", minimal("    ssh: {prot: 22}\n"), []string{
			`line 4: clusters[0].ssh.prot: unknown key, did you mean "port"?`}},
		{"unknown key, far", minimal("    scale: {zebra: 1}\n"), []string{
			"line 4: clusters[0].scale.zebra: unknown key; known here: timeout, attempts, maxParallel, minWorkers, volumeDetachTimeout, destroyAttached"}},
		{"key twice", minimal("    name: again\n"), []string{"line 4: clusters[0].name: appears twice, first on line 2"}},
		{"key of a list", minimal("    ? [a]\n    : b\n"), []string{"line 4: clusters[0]: a key must be a plain name"}},
		{"merge of itself", minimal("    ssh: &s\n      <<: *s\n"), []string{
			"line 5: clusters[0].ssh: << must name an anchor that holds keys and does not merge itself"}},
		{"types", minimal("    ssh: {port: many, agent: yes}\n    drain: [1]\n    upgrade:\n      kubeadmFlags: --x\n      script: [a]\n"), []string{
			`line 4: clusters[0].ssh.port: must be a whole number, not "many"`,
			`line 4: clusters[0].ssh.agent: must be true or false, not "yes"`,
			"line 5: clusters[0].drain: must be a block of keys: timeout, retryInterval, gracePeriod, force, deleteEmptyDir, " +
				"skipWaitForDeleteTimeout, parallel, jobs, returning, waitForVolumeDetach, volumeDetachTimeout",
			"line 7: clusters[0].upgrade.kubeadmFlags: must be a list",
			"line 8: clusters[0].upgrade.script: must be a single value"}},
		{"duration without a unit", minimal("    drain: {timeout: 300, retryInterval: soon}\n"), []string{
			`line 4: clusters[0].drain.timeout: a duration needs a unit: add s, m or h, not "300"`,
			`line 4: clusters[0].drain.retryInterval: must be a duration such as 300s, 10m or 1h30m, not "soon"`}},
		{"negative durations", minimal("    ssh: {keepAlive: -1s, connectTimeout: -1s}\n    scale: {timeout: -1s}\n    infrastructure: {timeout: -1s}\n" +
			"    drain: {timeout: -1s, retryInterval: -1s, skipWaitForDeleteTimeout: -1s, volumeDetachTimeout: -1s}\n" +
			"    upgrade: {nodeTimeout: -1s, timeout: -1s, readyTimeout: -1s, steadyInterval: -1s}\n"), []string{
			"line 4: clusters[0].ssh.connectTimeout: must not be negative",
			"line 4: clusters[0].ssh.keepAlive: must not be negative",
			"line 5: clusters[0].scale.timeout: must not be negative",
			"line 6: clusters[0].infrastructure.timeout: must not be negative",
			"line 7: clusters[0].drain.retryInterval: must not be negative",
			"line 7: clusters[0].drain.skipWaitForDeleteTimeout: must not be negative",
			"line 7: clusters[0].drain.volumeDetachTimeout: must not be negative",
			"line 8: clusters[0].upgrade.nodeTimeout: must not be negative",
			"line 8: clusters[0].upgrade.timeout: must not be negative",
			"line 8: clusters[0].upgrade.readyTimeout: must not be negative",
			"line 8: clusters[0].upgrade.steadyInterval: must not be negative"}},
		{"environment", minimal("    context: ${EBB_TEST_UNSET}\n    ssh:\n      user: ${a-b}\n      jump: ${x\n"), []string{
			"line 4: clusters[0].context: environment variable EBB_TEST_UNSET is not set",
			"line 6: clusters[0].ssh.user: ${a-b} is not the name of an environment variable; write $$ for a dollar sign",
			"line 7: clusters[0].ssh.jump: ${ has no closing }; write $$ for a dollar sign"}},
		{"a variable's content is not shown", minimal("    ssh: {port: \"${EBB_TEST_SECRET}\", agent: \"${EBB_TEST_SECRET}\", keepAlive: \"${EBB_TEST_SECRET}\"}\n"), []string{
			`line 4: clusters[0].ssh.port: must be a whole number, not "${EBB_TEST_SECRET}"`,
			`line 4: clusters[0].ssh.agent: must be true or false, not "${EBB_TEST_SECRET}"`,
			`line 4: clusters[0].ssh.keepAlive: must be a duration such as 300s, 10m or 1h30m, not "${EBB_TEST_SECRET}"`}},
		{"home of another user", minimal("    ssh: {identityFile: ~bob/id}\n"), []string{
			"line 4: clusters[0].ssh.identityFile: ~user is not expanded: write the full path"}},
		{"all at once, by line", "clusters:\n  - name: a b\n    ssh: {prot: 1}\n    scale: {attempts: -1}\n", []string{
			"line 2: clusters[0].name: must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
			"line 2: clusters[0].kubeconfig: is required: the path of the cluster's kubeconfig",
			`line 3: clusters[0].ssh.prot: unknown key, did you mean "port"?`,
			"line 4: clusters[0].scale.attempts: must be 1 or more, not -1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, tt.text)
			_, err := Load(path)
			var fault *ValidationError
			require.ErrorAs(t, err, &fault)
			got := make([]string, len(fault.Errors))
			for i, f := range fault.Errors {
				got[i] = f.String()
			}
			require.ElementsMatch(t, tt.want, got)
			require.Equal(t, path, fault.File)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestErrorText(t *testing.T) {
	one := &ValidationError{File: "ebb.yaml", Errors: []FieldError{{Path: "clusters", Line: 3, Message: "wrong"}}}
	require.EqualError(t, one, "ebb.yaml: line 3: clusters: wrong")
	two := &ValidationError{Errors: []FieldError{{Message: "wrong"}, {Path: "clusters[0].name", Message: "missing"}}}
	require.EqualError(t, two, "configuration: 2 faults\n  wrong\n  clusters[0].name: missing")
}

func TestLoadLongValueIsCut(t *testing.T) {
	_, err := Load(write(t, minimal("    ssh: {port: "+strings.Repeat("x", 5000)+"}\n")))
	require.ErrorContains(t, err, "xxx…")
	require.Less(t, len(err.Error()), 400)
}

func TestLoadBoundsTheFile(t *testing.T) {
	_, err := Load(write(t, strings.Repeat("#", maxSize+1)))
	require.ErrorContains(t, err, "is larger than 1048576 bytes")

	bomb := "clusters:\n  - &c\n    name: a\n    kubeconfig: k\n    addressing: {rules: &r [" +
		strings.Repeat("{node: a, port: 1},", 1000) + "]}\n" + strings.Repeat("  - *c\n", 1000)
	_, err = Load(write(t, bomb))
	require.ErrorContains(t, err, "the file holds more than 200000 values")
}

func TestLoadOfAMissingFile(t *testing.T) {
	t.Setenv("EBB_CONFIG", "")
	t.Setenv("XDG_CONFIG_HOME", "/nowhere")
	t.Chdir(t.TempDir())

	_, err := Load("/nowhere/else.yaml")
	require.EqualError(t, err, "no configuration at /nowhere/else.yaml; name one with --config or EBB_CONFIG: file does not exist")
	require.ErrorIs(t, err, os.ErrNotExist)

	_, err = Load(Path(""))
	require.EqualError(t, err, "no configuration: looked for ./ebb.yaml and /nowhere/ebb/ebb.yaml; "+
		"name one with --config or EBB_CONFIG: file does not exist")
	_, err = Load(t.TempDir())
	require.ErrorContains(t, err, "is a directory")
}

func TestPath(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", "/home/me")
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("EBB_CONFIG", "")
	require.Equal(t, "/home/me/.config/ebb/ebb.yaml", Path(""))
	t.Setenv("XDG_CONFIG_HOME", "/xdg")
	require.Equal(t, "/xdg/ebb/ebb.yaml", Path(""))
	t.Setenv("XDG_CONFIG_HOME", "relative/is/ignored")
	require.Equal(t, "/home/me/.config/ebb/ebb.yaml", Path(""))
	t.Setenv("HOME", "")
	require.Equal(t, "ebb.yaml", Path(""))
	t.Setenv("HOME", "/home/me")
	require.NoError(t, os.WriteFile("ebb.yaml", nil, 0o600))
	require.Equal(t, "ebb.yaml", Path(""))
	t.Setenv("EBB_CONFIG", "/env.yaml")
	require.Equal(t, "/env.yaml", Path(""))
	require.Equal(t, "/flag.yaml", Path("/flag.yaml"))
}

func TestClusterNamesTheKnownOnes(t *testing.T) {
	cfg := &Config{Clusters: []Cluster{{Name: "staging"}, {Name: "prod"}}}
	_, err := cfg.Cluster("stagnig")
	require.EqualError(t, err, `no cluster "stagnig" in the configuration, only prod, staging, did you mean "staging"?`)
	_, err = cfg.Cluster("x")
	require.EqualError(t, err, `no cluster "x" in the configuration, only prod, staging`)
}

func TestMarshalRoundTrip(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	first, err := Load(write(t, minimal(`
    ssh: {user: "a$$b$${HOME}", agent: true, acceptNew: true, knownHosts: /k$$, sudo: true, jump: "[::1]:22"}
    addressing: {mode: forwarded, publicAddress: "::1", basePort: 2222, rules: [{node: w1, port: 1, state: Revoke}]}
    infrastructure: {provider: exec, command: [vm, "", "a b: c", "null", "007"], timeout: 90s}
    drain: {gracePeriod: 0, deleteEmptyDir: false, waitForVolumeDetach: false, skipWaitForDeleteTimeout: 90m}
    upgrade: {retries: 0, maxUnavailable: 50%, timeout: 36h, kubeadmFlags: [--a]}
  - name: cks
    kubeconfig: /k
    infrastructure: {provider: cloudstack, endpoint: "https://c/api", credentialsFile: /k$$, caFile: /ca, project: a b, zone: "1", kubernetesCluster: "null", expunge: true}
`)))
	require.NoError(t, err)
	text, err := Marshal(first)
	require.NoError(t, err)
	require.Contains(t, string(text), "user: a$$b$${HOME}\n")
	second, err := Load(write(t, string(text)))
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "a", "clusters:", minimal(""), minimal("    ssh: {port: x}\n"), minimal("    ssh: &a\n      <<: *a\n"),
		minimal("    ssh: &a {user: x}\n    drain: *a\n"), "clusters: [*a]", "a: &a [*a]", "clusters: &a [*a, *a]", "? {a: b}\n: c", "--- a\n--- b",
		"clusters: [{name: ${X}, kubeconfig: $$}]", "clusters: !!binary x", "\x00", "clusters:\n\t- a", "<<: [{clusters: []}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := load("dir/ebb.yaml", data)
		if err == nil {
			require.NoError(t, cfg.Validate())
			text, err := Marshal(cfg)
			require.NoError(t, err)
			again, err := load("dir/ebb.yaml", text)
			require.NoError(t, err, "%s", text)
			require.Equal(t, cfg, again)
			return
		}
		var fault *ValidationError
		require.ErrorAs(t, err, &fault)
		for _, one := range fault.Errors {
			require.NotEmpty(t, one.Message)
			require.True(t, one.Line > 0 || one.Path != "" || strings.HasPrefix(one.Message, "not valid YAML"), "%+v", one)
			require.Less(t, len(one.String()), 1000)
		}
	})
}
