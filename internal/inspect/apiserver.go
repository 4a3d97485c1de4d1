package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/cluster"
	"ebb/internal/nodeaccess"
	"ebb/internal/nodessh"
	"ebb/internal/policy"
	"ebb/internal/tail"
)

// endpointAnnotation is where kubeadm says, on the static pod of an API server, at which
// address (host:port) that one answers.
const endpointAnnotation = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint"

// readyzTimeout is how long an answer to /readyz may take.
const readyzTimeout = 2 * time.Second

// APIServer is the API server on one control plane. It is asked over SSH from its own node:
// the address in the kubeconfig may lead to any control plane. Where it is not kubeadm's
// static pod, there is only the address in the kubeconfig. Close it after use.
type APIServer struct {
	cluster *cluster.Cluster
	node    policy.Node
	log     *zap.Logger

	address string          // host:port, as the node sees it; empty = not known
	ssh     *nodessh.Client // nil = not connected
	client  kubernetes.Interface
}

// NewAPIServer returns the API server on a control plane.
func NewAPIServer(c *cluster.Cluster, n policy.Node, log *zap.Logger) *APIServer {
	return &APIServer{cluster: c, node: n, log: log}
}

// Ready returns nil when the API server says that it is ready, and otherwise what it says,
// or why it cannot be asked. The next call connects again.
func (a *APIServer) Ready(ctx context.Context) error {
	err := a.connect(ctx)
	if err == nil {
		err = readyz(ctx, a.client)
	}
	if err != nil && a.ssh != nil && !answered(err) {
		a.Close()
	}
	if err != nil && a.address != "" {
		return fmt.Errorf("the API server on %s (%s): %w", a.node.Name, a.address, err)
	}
	return err
}

// answered reports whether an error is the API server's own answer.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

func readyz(ctx context.Context, client kubernetes.Interface) error {
	body, err := client.CoreV1().RESTClient().Get().AbsPath("/readyz").Timeout(readyzTimeout).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("%w %s", err, tail.Of(string(body), 200))
	}
	return nil
}

// connect finds the API server and the way to it, unless they are known.
func (a *APIServer) connect(ctx context.Context) (err error) {
	if a.address == "" {
		if a.address, err = a.find(ctx); err != nil {
			return err
		}
	}
	if a.address == "" {
		a.client = a.cluster.Client
		return nil
	}
	if a.ssh != nil {
		return nil
	}
	if a.ssh, err = nodeaccess.Dial(ctx, a.cluster, a.node, a.log); err != nil {
		return err
	}
	ssh := a.ssh
	a.client, err = a.cluster.Through(func(ctx context.Context) (net.Conn, error) { return ssh.Dial(ctx, a.address) })
	return err
}

// find returns the address of the API server; empty = there is no static pod that says it.
func (a *APIServer) find(ctx context.Context) (string, error) {
	pods, err := a.cluster.Client.CoreV1().Pods(meta.NamespaceSystem).List(ctx, meta.ListOptions{
		LabelSelector: "component=kube-apiserver,tier=control-plane", FieldSelector: "spec.nodeName=" + a.node.Name,
	})
	if err != nil {
		return "", fmt.Errorf("find the API server on %s: %w", a.node.Name, err)
	}
	for i := range pods.Items {
		if address := pods.Items[i].Annotations[endpointAnnotation]; address != "" && pods.Items[i].Spec.NodeName == a.node.Name {
			return address, nil
		}
	}
	return "", nil
}

// Close ends the connection.
func (a *APIServer) Close() {
	if a.ssh == nil {
		return
	}
	if err := a.ssh.Close(); err != nil {
		a.log.Debug("close the SSH connection", zap.String("node", a.node.Name), zap.Error(err))
	}
	a.ssh = nil
}
