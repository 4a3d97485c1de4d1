package tunnel

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/deployments"
	"ebb/internal/clusterstate"
)

// The API server takes the manifests of the agent as they are, and an agent with their
// arguments and the token that they ask for connects.
func TestManifestsOfTheAgent(t *testing.T) {
	ctx, client := t.Context(), shared.Sandbox.Client()
	require.NoError(t, shared.Sandbox.Apply(ctx, deployments.Agent))
	t.Cleanup(func() {
		_ = client.AppsV1().DaemonSets(clusterstate.Namespace).Delete(context.Background(), "ebb-agent", meta.DeleteOptions{})
	})
	deployed, err := client.AppsV1().DaemonSets(clusterstate.Namespace).Get(ctx, "ebb-agent", meta.GetOptions{})
	require.NoError(t, err)
	pod := deployed.Spec.Template.Spec
	container := pod.Containers[0]
	require.Nil(t, container.Lifecycle, "it drains at its SIGTERM")
	require.False(t, *pod.AutomountServiceAccountToken)
	require.True(t, *pod.SecurityContext.RunAsNonRoot && *container.SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, []core.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
	require.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path)
	wanted := pod.Volumes[1].Projected.Sources[0].ServiceAccountToken

	token, err := client.CoreV1().ServiceAccounts(clusterstate.Namespace).CreateToken(ctx, pod.ServiceAccountName,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{Audiences: []string{wanted.Audience}, ExpirationSeconds: wanted.ExpirationSeconds}}, meta.CreateOptions{})
	require.NoError(t, err)
	file := shared.path("agent.token")
	require.NoError(t, os.WriteFile(file, []byte(token.Status.Token), 0o600))
	g := newGateway(t, "manifests", 1, atOnce)
	resolve := strings.NewReplacer("$(EBB_SERVER)", shared.inner, "$(EBB_CLUSTER)", cluster, "$(NODE_NAME)", "w1", "$(NODE_IP)", nodeAddress(1),
		"/etc/ebb-agent/ca.crt", shared.authority.CAFile(), container.VolumeMounts[1].MountPath+"/"+wanted.Path, file, "--listen=:8473", "--listen=127.0.0.1:0")
	var args []string
	for _, arg := range container.Args {
		args = append(args, resolve.Replace(arg))
	}
	newAgent(t, "w1", args...)
	eventually(t, "it is connected", func() bool { return g.states()["w1"] == "Ready" })
	require.Equal(t, "host=w1&ipv4="+nodeAddress(1), g.agents()[0].Offers)
	c, err := g.dialer().DialContext(ctx, "tcp", echoes(t))
	require.NoError(t, err)
	require.NoError(t, exchange(c, "hello"))
	require.NoError(t, c.Close())
}

// Agents whose proof is none are told why in their own log, and keep trying.
func TestAgentsThatAreRefused(t *testing.T) {
	g := newGateway(t, "refusing", 1, atOnce)
	ctx, client := t.Context(), shared.Sandbox.Client()
	require.NoError(t, shared.Sandbox.Apply(ctx, deployments.Agent))
	write := func(name, account string, audience ...string) string {
		token, err := client.CoreV1().ServiceAccounts(clusterstate.Namespace).CreateToken(ctx, account,
			&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{Audiences: audience}}, meta.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(shared.path(name), []byte(token.Status.Token), 0o600))
		return shared.path(name)
	}
	for name, c := range map[string]struct {
		args []string
		why  string
	}{
		"a stranger":       {[]string{"--certificate-file", shared.path("stranger.crt"), "--key-file", shared.path("stranger.key")}, "who is not one of gateway.tunnel.agents"},
		"another account":  {[]string{"--cluster", cluster, "--token-file", write("gateway.token", "ebb-gateway", "ebb-tunnel")}, "agents of cluster sandbox are system:serviceaccount:ebb-system:ebb-agent"},
		"another audience": {[]string{"--cluster", cluster, "--token-file", write("api.token", "ebb-agent")}, "does not accept the token for the audience ebb-tunnel"},
		"another cluster":  {[]string{"--cluster", "prod", "--token-file", write("other.token", "ebb-agent", "ebb-tunnel")}, "has no tunnel.serviceAccount here"},
		"too much":         {append(certified(), "--offer", "cidr=10.0.0.0/8"), "10.0.0.0/8 is not among what the cluster may offer"},
		"another gateway":  {append(certified(), "--server-name", "elsewhere"), "certificate is valid for localhost, not elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, "bad", c.args...)
			eventually(t, "it says why", func() bool { return strings.Contains(logOf(t, a.name), c.why) })
			require.Empty(t, g.agents())
		})
	}
}
