package activities

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/infra"
	"ebb/internal/infra/cloudstacktest"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

const (
	vmOne = "11111111-1111-4111-8111-111111111111"
	vmTwo = "22222222-2222-4222-8222-222222222222"
)

// w1 is known to CloudStack by its name and address, w2 by its provider ID.
var (
	nodeOne = policy.Node{Name: "w1", Addresses: []string{"10.0.0.4"}, Index: 3}
	nodeTwo = policy.Node{Name: "w2", Addresses: []string{"10.0.0.5"}, Index: 0, ProviderID: "external-cloudstack:///" + vmTwo}
)

// onCloudStack is a cluster whose machines are CloudStack's, with what a test
// changes in its settings.
func onCloudStack(t *testing.T, change func(*config.Cluster)) (*Activities, *cloudstacktest.Server) {
	t.Helper()
	server := cloudstacktest.Start(false,
		cloudstacktest.VM{ID: vmOne, Name: "w1", State: "Running", Addresses: []string{"10.0.0.4"}, ISO: "iso-1"},
		cloudstacktest.VM{ID: vmTwo, Name: "two", State: "Running", Addresses: []string{"10.0.0.5"}})
	t.Cleanup(server.Close)
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("apiKey="+cloudstacktest.APIKey+"\nsecretKey="+cloudstacktest.SecretKey), 0o600))
	c := config.Cluster{
		Name: "prod", Kubeconfig: "x",
		Infrastructure: config.Infrastructure{Provider: "cloudstack", Endpoint: server.Endpoint(), CredentialsFile: keys},
	}
	change(&c)
	settings := func() (config.Cluster, error) { return c.WithDefaults(), nil }
	return &Activities{Clusters: one{cluster.New("prod", fake.NewClientset(), settings, zap.NewNop())}, Log: zap.NewNop()}, server
}

func requireKind(t *testing.T, kind string, err error) {
	t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(t, classify(err), &app)
	require.Equal(t, kind, app.Type())
	require.True(t, app.NonRetryable())
}

func TestDetachISO(t *testing.T) {
	a, server := onCloudStack(t, func(*config.Cluster) {})
	for range 2 { // the answer to the first may be lost
		got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
		require.NoError(t, err)
		require.True(t, got.Detached)
	}
	require.Empty(t, server.VM(vmOne).ISO)
	require.Len(t, server.Calls("detachIso"), 1)

	got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeTwo})
	require.NoError(t, err, "it has none")
	require.True(t, got.Detached)
	require.Len(t, server.Calls("detachIso"), 1)
}

func TestDetachISOFails(t *testing.T) {
	a, server := onCloudStack(t, func(*config.Cluster) {})
	server.JobError = "the host is away"
	got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
	require.EqualError(t, err, "detach the ISO of the machine of node w1: CloudStack detachIso: error 530: the host is away")
	require.False(t, got.Detached)
	require.False(t, infra.Permanent(err))
}

func TestAttachISO(t *testing.T) {
	a, server := onCloudStack(t, func(c *config.Cluster) { c.Upgrade.Script, c.Upgrade.ISO = config.ScriptCKSISO, "setup-v{version}" })
	server.ISOs = []cloudstacktest.ISO{{ID: "iso-1", Name: "setup-v1.36.3"}, {ID: "iso-2", Name: "setup-v1.37.2"}, {ID: "iso-3", Name: "rescue"}}
	for range 2 { // the answer to the first may be lost
		_, err := a.AttachISO(t.Context(), AttachISOInput{Cluster: "prod", Node: nodeOne, Version: "1.37.2"})
		require.NoError(t, err)
	}
	require.Equal(t, "iso-2", server.VM(vmOne).ISO, "in place of that of another version")
	require.Len(t, server.Calls("attachIso"), 1)

	detach := DetachISOInput{Cluster: "prod", Node: nodeOne, Version: "1.37.2"}
	got, err := a.DetachISO(t.Context(), detach)
	require.NoError(t, err)
	require.True(t, got.Detached)
	require.Empty(t, server.VM(vmOne).ISO)

	_, err = a.AttachISO(t.Context(), AttachISOInput{Cluster: "prod", Node: nodeOne, Version: "1.38.1"})
	requireKind(t, operation.TypeConfig, err)
	require.ErrorContains(t, err, "attach the ISO of 1.38.1 of the machine of node w1: upgrade.iso: these keys show no ISO")
}

func TestAttachISOWithoutDrives(t *testing.T) {
	a, _ := onCloudStack(t, func(c *config.Cluster) { c.Infrastructure = config.Infrastructure{Provider: "none"} })
	_, err := a.AttachISO(t.Context(), AttachISOInput{Cluster: "prod", Node: nodeOne, Version: "1.37.2"})
	requireKind(t, operation.TypeConfig, err)
	require.ErrorContains(t, err, "the ISO of 1.37.2 cannot be attached to the machine of node w1: infrastructure.provider has to be cloudstack or exec")
}

func TestDetachISOWithoutDrives(t *testing.T) {
	for _, provider := range []config.Infrastructure{{Provider: "none"}, {Provider: "exec", Command: []string{"/no/program"}}} {
		a, _ := onCloudStack(t, func(c *config.Cluster) { c.Infrastructure = provider })
		got, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "prod", Node: nodeOne})
		require.NoError(t, err)
		require.False(t, got.Detached)
	}
	a, _ := onCloudStack(t, func(*config.Cluster) {})
	_, err := a.DetachISO(t.Context(), DetachISOInput{Cluster: "other", Node: nodeOne})
	requireKind(t, operation.TypeConfig, err)
}
