package endpoints

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb/deployments"
	"ebb/internal/clusterstate"
	"ebb/internal/testbed"
)

// The API server takes the manifests of the gateway as they are, and the token that they
// make for it is good for what the gateway reads.
func TestManifestsOfTheGateway(t *testing.T) {
	ctx, client := t.Context(), shared.Client()
	_, err := client.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "ebb"}}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.CoreV1().Namespaces().Delete(context.Background(), "ebb", meta.DeleteOptions{}) })
	inNamespace := strings.ReplaceAll(string(deployments.Gateway), "\nmetadata:\n  name: ", "\nmetadata:\n  namespace: ebb\n  name: ")
	require.NoError(t, shared.Apply(ctx, []byte(inNamespace)))
	deployed, err := client.AppsV1().Deployments("ebb").Get(ctx, "ebb-gateway", meta.GetOptions{})
	require.NoError(t, err)
	pod := deployed.Spec.Template.Spec
	hook := pod.Containers[0].Lifecycle.PreStop.Exec.Command
	require.Equal(t, []string{"ebb-gateway", "leave", "--for"}, hook[:3], "the Service forgets the pod before its signal")
	lasts, err := time.ParseDuration(hook[3])
	require.NoError(t, err)
	require.Greater(t, time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, lasts+time.Minute)
	require.True(t, *pod.Containers[0].EnvFrom[0].SecretRef.Optional)

	for _, manifest := range [][]byte{deployments.Namespace, deployments.GatewayRBAC, deployments.GatewayToken, deployments.RBAC, deployments.WorkerToken} {
		require.NoError(t, shared.Apply(ctx, manifest))
	}
	for _, account := range []string{"ebb-gateway", "ebb-worker"} {
		config, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
		require.NoError(t, err)
		config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
		config.BearerToken = tokenOf(t, client, account)
		own, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		_, err = own.CoreV1().Nodes().List(ctx, meta.ListOptions{})
		require.NoError(t, err, account)
		_, err = own.CoreV1().Secrets(clusterstate.Namespace).List(ctx, meta.ListOptions{})
		require.ErrorContains(t, err, "system:serviceaccount:ebb-system:"+account)
	}
}

// tokenOf returns the token that the cluster has made for an account of Ebb.
func tokenOf(t *testing.T, client kubernetes.Interface, account string) (token string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		secret, err := client.CoreV1().Secrets(clusterstate.Namespace).Get(ctx, account+"-token", meta.GetOptions{})
		if err != nil {
			return false, err
		}
		token = string(secret.Data[core.ServiceAccountTokenKey])
		return token != "", nil
	}))
	return token
}
