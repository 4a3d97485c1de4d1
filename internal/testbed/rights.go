package testbed

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/deployments"
	"ebb/internal/clusterstate"
)

const serviceAccount = "ebb-worker"

// tokenLifetime is how long the worker's token is good for, in seconds.
const tokenLifetime = int64(24 * 60 * 60)

// grant gives the worker the rights of deployments/ in the sandbox, and no
// others, and writes the kubeconfig with which it logs in.
func (b *Bed) grant(ctx context.Context) error {
	kubectl, err := Binary("kubectl")
	if err != nil {
		return err
	}
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", b.Sandbox.Kubeconfig(), "apply", "-f", "-") // #nosec G204 -- our own binary
	apply.Stdin = bytes.NewReader(bytes.Join([][]byte{deployments.Namespace, deployments.RBAC}, []byte("\n---\n")))
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("apply the worker's rights: %w: %s", err, out)
	}
	seconds := tokenLifetime
	token, err := b.Sandbox.Client().CoreV1().ServiceAccounts(clusterstate.Namespace).CreateToken(ctx, serviceAccount,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}, meta.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of the worker: %w", err)
	}
	config, err := clientcmd.LoadFromFile(b.Sandbox.Kubeconfig())
	if err != nil {
		return err
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	b.Kubeconfig = filepath.Join(b.options.Dir, "worker.kubeconfig")
	return clientcmd.WriteToFile(*config, b.Kubeconfig)
}
