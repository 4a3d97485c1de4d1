package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidateCloudStack(t *testing.T) {
	good := Infrastructure{Provider: "cloudstack", Endpoint: "https://cloud.example.com/client/api", CredentialsFile: "/keys"}
	tests := map[string]struct {
		change func(*Cluster)
		want   []string
	}{
		"least": {func(*Cluster) {}, nil},
		"everything": {func(c *Cluster) {
			i := &c.Infrastructure
			i.CAFile, i.Project, i.Zone, i.KubernetesCluster, i.Expunge = "/ca", "a project", "z", "k", true
		}, nil},
		"nothing": {func(c *Cluster) { c.Infrastructure = Infrastructure{Provider: "cloudstack"} }, []string{
			"clusters[0].infrastructure.endpoint: is required: the URL of the CloudStack API, such as https://cloud.example.com/client/api",
			"clusters[0].infrastructure.credentialsFile: is required: the path of the file that holds apiKey and secretKey"}},
		"all at once": {func(c *Cluster) {
			i := &c.Infrastructure
			i.Endpoint, i.CredentialsFile, i.Command, i.Timeout = "http://cloud/api", "", []string{"vm"}, -1
			i.Project, i.Zone, i.KubernetesCluster = " p", "z ", "\tk"
		}, []string{
			"clusters[0].infrastructure.timeout: must not be negative",
			"clusters[0].infrastructure.command: is used only with provider: exec",
			"clusters[0].infrastructure.endpoint: must begin with https:// (http only to this machine itself)",
			"clusters[0].infrastructure.credentialsFile: is required: the path of the file that holds apiKey and secretKey",
			"clusters[0].infrastructure.project: must not begin or end with a space",
			"clusters[0].infrastructure.zone: must not begin or end with a space",
			"clusters[0].infrastructure.kubernetesCluster: must not begin or end with a space"}},
		"an authority for http": {func(c *Cluster) {
			c.Infrastructure.Endpoint, c.Infrastructure.CAFile = "http://[::1]:8080/client/api", "/ca"
		}, []string{
			"clusters[0].infrastructure.caFile: is used only with an https endpoint"}},
		"of another provider": {func(c *Cluster) {
			i := &c.Infrastructure
			i.Provider, i.Project, i.Zone, i.KubernetesCluster, i.CAFile, i.Expunge = "none", "p", "z", "k", "/ca", true
		}, []string{
			"clusters[0].infrastructure.endpoint: is used only with provider: cloudstack",
			"clusters[0].infrastructure.credentialsFile: is used only with provider: cloudstack",
			"clusters[0].infrastructure.caFile: is used only with provider: cloudstack",
			"clusters[0].infrastructure.project: is used only with provider: cloudstack",
			"clusters[0].infrastructure.zone: is used only with provider: cloudstack",
			"clusters[0].infrastructure.kubernetesCluster: is used only with provider: cloudstack",
			"clusters[0].infrastructure.expunge: is used only with provider: cloudstack"}},
		"many states of another provider": {func(c *Cluster) { c.Infrastructure.States = true }, []string{
			"clusters[0].infrastructure.states: is used only with provider: exec"}},
		"a provider that is mistyped": {func(c *Cluster) { c.Infrastructure.Provider = "cloudstak" }, []string{
			`clusters[0].infrastructure.provider: must be none or exec or cloudstack, not "cloudstak", did you mean "cloudstack"?`}},
		"rules are asked for": {func(c *Cluster) { c.Addressing = Addressing{Mode: "forwarded", PublicAddress: "2001:db8::7"} }, nil},
		"rules of a name": {func(c *Cluster) { c.Addressing = Addressing{Mode: "forwarded", PublicAddress: "nodes.example.com"} }, []string{
			"clusters[0].addressing.publicAddress: must be an IP address, so that its rules can be asked for, unless there are rules here"}},
		"rules in the file": {func(c *Cluster) {
			c.Addressing = Addressing{Mode: "forwarded", PublicAddress: "nodes.example.com", Rules: []ForwardingRule{{Node: "w1", Port: 1}}}
		}, nil},
		"no address for the rules": {func(c *Cluster) { c.Addressing = Addressing{Mode: "forwarded"} }, []string{
			"clusters[0].addressing.publicAddress: is required: the address that the forwarding rules are on"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, faultsOf(func(c *Cluster) {
				c.Infrastructure = good
				tt.change(c)
			}))
		})
	}
}

func TestCheckEndpoint(t *testing.T) {
	for _, good := range []string{
		"https://cloud.example.com/client/api", "https://cloud.example.com:8443/client/api", "HTTPS://cloud", "https://[2001:db8::1]/client/api",
		"http://localhost:8080/client/api", "http://127.0.0.1/client/api", "http://127.9.9.9:1/", "http://[::1]:8080/client/api",
	} {
		require.NoError(t, ValidateEndpoint(good), good)
	}
	const password = "hunter2"
	for bad, want := range map[string]string{
		"": "must be a URL", "cloud.example.com": "must be a URL", "/client/api": "must be a URL", "https://": "must be a URL", "https://:443/": "must be a URL",
		"https://me:" + password + "@cloud/api":     "must not hold a user or password",
		"https://cloud/%zz" + password:              "must be a URL",
		"https://cloud/api?apiKey=" + password:      "must end with the path of the API",
		"https://cloud/api?":                        "must end with the path of the API",
		"https://cloud/api#" + password:             "must end with the path of the API",
		"http://cloud.example.com/client/api":       "must begin with https://",
		"http://localhost.example.com/" + password:  "must begin with https://",
		"http://10.0.0.1/client/api":                "must begin with https://",
		"ftp://127.0.0.1/client/api":                "must begin with https://",
		"unix://127.0.0.1/client/api?x=" + password: "must end with the path of the API",
	} {
		err := ValidateEndpoint(bad)
		require.ErrorContains(t, err, want, bad)
		require.NotContains(t, err.Error(), password)
	}
}

func TestLoadResolvesPathsOfCloudStack(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	path := write(t, minimal(`
    infrastructure: {provider: cloudstack, endpoint: "https://c/api", credentialsFile: ~/keys, caFile: /etc/ca.pem, expunge: true}
`))
	cfg, err := Load(path)
	require.NoError(t, err)
	i := cfg.Clusters[0].Infrastructure
	require.Equal(t, "/home/me/keys", i.CredentialsFile)
	require.Equal(t, "/etc/ca.pem", i.CAFile)
	require.True(t, i.Expunge)

	_, err = Load(write(t, minimal("    infrastructure:\n      provider: cloudstack\n      endpoint: http://c/api\n      project: \" p\"\n      credentials: /x\n")))
	for _, want := range []string{
		"4 faults", "line 6: clusters[0].infrastructure.endpoint: must begin with https://", "line 7: clusters[0].infrastructure.project: must not begin",
		`line 8: clusters[0].infrastructure.credentials: unknown key`, "line 4: clusters[0].infrastructure.credentialsFile: is required",
	} {
		require.ErrorContains(t, err, want)
	}
}
