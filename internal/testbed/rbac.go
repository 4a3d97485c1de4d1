package testbed

import (
	"bytes"
	"context"
	"fmt"

	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/deployments"
	"ebb/internal/clusterstate"
	"ebb/internal/sandbox"
)

// tokenLifetime is how long a token is good for, in seconds.
const tokenLifetime = int64(24 * 60 * 60)

// WriteKubeconfig gives a service account of Ebb the rights of a manifest of
// deployments/ in a sandbox, and no others, and writes a kubeconfig for it to path.
func WriteKubeconfig(ctx context.Context, box *sandbox.Sandbox, account string, manifest []byte, path string) error {
	if err := box.Apply(ctx, bytes.Join([][]byte{deployments.Namespace, manifest}, []byte("\n---\n"))); err != nil {
		return fmt.Errorf("the rights of %s: %w", account, err)
	}
	seconds := tokenLifetime
	token, err := box.Client().CoreV1().ServiceAccounts(clusterstate.Namespace).CreateToken(ctx, account,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}, meta.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of %s: %w", account, err)
	}
	config, err := clientcmd.LoadFromFile(box.Kubeconfig())
	if err != nil {
		return err
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	return clientcmd.WriteToFile(*config, path)
}
