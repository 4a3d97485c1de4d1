// Package tunnel tries the tunnel with real processes: gateways, agents, a worker and a
// kube-apiserver. The machines of the cluster are in a network of their own, in which the
// agents run; nobody else reaches it.
package tunnel

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"ebb/deployments"
	"ebb/internal/config"
	"ebb/internal/freeport"
	"ebb/internal/sandbox"
	"ebb/internal/testbed"
	"ebb/internal/tunnel/tunneltest"
)

const (
	workers  = 3
	certName = "localhost" // in all certificates
	cluster  = testbed.ClusterName
)

// bed is what all tests share.
type bed struct {
	*testbed.Bed
	dir        string
	network    *network
	authority  *tunneltest.Authority
	toGateways *relay // from inside the network, and for those who dial
	inner      string // its address inside
	outer      string // its address outside
	sshPort    int
}

var shared *bed

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ebb-tunnel-")
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		shared, err = start(ctx, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	shared.toGateways.close()
	shared.network.close()
	if code != 0 {
		fmt.Fprintln(os.Stderr, "kept for a look:", dir)
		return code
	}
	_ = os.RemoveAll(dir) // of the temporary directory's owner, the next clean-up
	return 0
}

func start(ctx context.Context, dir string) (b *bed, err error) {
	b = &bed{dir: dir, network: newNetwork(), toGateways: newRelay()}
	if b.authority, err = tunneltest.NewAuthority(dir); err != nil {
		return nil, err
	}
	for _, name := range []string{"gateway", "agent", "worker", "apiserver", "stranger"} {
		if _, _, err := b.authority.Issue(name); err != nil {
			return nil, err
		}
	}
	ports, err := freeport.Find(ctx, "127.0.0.1", 2)
	if err != nil {
		return nil, err
	}
	b.sshPort, b.outer = ports[0], net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))
	b.inner = b.outer
	if err := b.openRelay(ctx); err != nil {
		return nil, err
	}
	if err := b.writeEgress("proxyProtocol: Direct"); err != nil {
		return nil, err
	}
	b.Bed, err = testbed.Start(ctx, testbed.Options{
		Dir: dir, UIPort: -1, Edit: b.configure,
		Sandbox: sandbox.Options{
			ControlPlanes: 1, Workers: workers, PodReadyDelay: 300 * time.Millisecond, PodDeleteDelay: 300 * time.Millisecond, ScriptDelay: 500 * time.Millisecond,
			Network:       &sandbox.Network{Address: func(i int) string { return b.network.address(0, byte(i+2)) }, Port: b.sshPort, Listen: b.network.listen},
			APIServerArgs: []string{"--egress-selector-config-file=" + b.egressFile(), "--enable-aggregator-routing", "--kubelet-preferred-address-types=InternalIP"},
		},
	})
	if err != nil {
		return nil, err
	}
	if err := testbed.WriteKubeconfig(ctx, b.Sandbox, "ebb-gateway", deployments.GatewayRBAC, b.path("gateway.kubeconfig")); err != nil {
		return nil, err
	}
	return b, b.hideAPIServer(ctx)
}

func nodeAddress(i int) string { return shared.network.address(0, byte(i+2)) }

// inside are all addresses of the private network.
func inside() string { return shared.network.address(0, 0) + "/16" }

// apiAlias is where the API server is reached in there.
func (b *bed) apiAlias() string { return b.network.address(1, 1) }

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bed) openRelay(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", b.outer)
	if err != nil {
		return err
	}
	b.toGateways.serve(l)
	if !b.network.isolated() {
		return nil
	}
	if l, err = b.network.listen(ctx, b.inner); err != nil {
		return err
	}
	b.toGateways.serve(l)
	return nil
}

// configure is what the worker's ebb.yaml says: nodes and API server through the tunnel.
func (b *bed) configure(c *config.Cluster) {
	c.Addressing = config.Addressing{Mode: config.AddressTunnel}
	c.Tunnel = config.ClusterTunnel{
		Address: b.outer, CAFile: b.authority.CAFile(), CertificateFile: b.path("worker.crt"), KeyFile: b.path("worker.key"), APIServer: true,
	}
	c.Drain.Timeout = config.Duration(20 * time.Second)
}

// hideAPIServer gives the API server an address inside the network, and lets the worker know
// no other.
func (b *bed) hideAPIServer(ctx context.Context) error {
	own, err := clientcmd.LoadFromFile(b.Kubeconfig)
	if err != nil {
		return err
	}
	for _, c := range own.Clusters {
		_, port, err := net.SplitHostPort(c.Server[len("https://"):])
		if err != nil {
			return err
		}
		l, err := b.network.listen(ctx, net.JoinHostPort(b.apiAlias(), port))
		if err != nil {
			return err
		}
		to := newRelay(net.JoinHostPort("127.0.0.1", port))
		to.serve(l)
		c.Server, c.TLSServerName = "https://"+net.JoinHostPort(b.apiAlias(), port), certName
	}
	return clientcmd.WriteToFile(*own, b.Kubeconfig)
}

func (b *bed) egressFile() string { return b.path("egress.yaml") }

// writeEgress says how the API server reaches what is in the network; it takes a restart.
func (b *bed) writeEgress(connection string) error {
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  connection:\n    " + connection + "\n"
	return os.WriteFile(b.egressFile(), []byte(text), 0o600)
}
