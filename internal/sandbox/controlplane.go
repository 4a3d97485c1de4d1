package sandbox

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb/internal/freeport"
	"ebb/internal/sandbox/nodedir"
	"ebb/internal/wait"
)

const (
	loopback      = "127.0.0.1"
	probeInterval = 50 * time.Millisecond // between two questions whether a server that starts is ready
	stopGrace     = time.Second           // of a kube-apiserver that is restarted
	clientQPS     = 200                   // nobody has to be protected from these clients
	clientBurst   = 400
)

//go:embed kwok/stages.yaml
var kwokStages string

// controlPlane is etcd, the kube-apiserver, the controllers, the scheduler and kwok.
type controlPlane struct {
	opts        Options
	launcher    *launcher
	pki         *pki
	url         string // of the kube-apiserver
	apiArgs     []string
	controllers [][]string // programs and arguments of the controllers, the scheduler and kwok
	client      *kubernetes.Clientset

	restart sync.Mutex // one restart or stop at a time
	mu      sync.Mutex
	api     *process   // the kube-apiserver that runs, or ran last
	others  []*process // etcd, then the controllers, the scheduler and kwok
	stopped bool
}

func (c *controlPlane) path(elem ...string) string {
	return filepath.Join(append([]string{c.opts.Dir}, elem...)...)
}

// adminKubeconfig returns the path of the administrator's kubeconfig.
func (c *controlPlane) adminKubeconfig() string { return c.path("kubeconfig") }

// start runs the control plane until the kube-apiserver is ready.
func (c *controlPlane) start(ctx context.Context) error {
	ports, err := freeport.Find(ctx, loopback, 3)
	if err != nil {
		return err
	}
	c.url = "https://" + net.JoinHostPort(loopback, strconv.Itoa(ports[0]))
	if err := c.startAPIAndEtcd(ports); err != nil {
		return err
	}
	if err := c.makeClient(); err != nil {
		return err
	}
	c.opts.Log.Info("sandbox: etcd and kube-apiserver are starting", zap.String("url", c.url))
	if err := c.waitAPI(ctx); err != nil {
		return err
	}
	return c.startControllers()
}

// startAPIAndEtcd runs etcd, and the kube-apiserver, which waits for etcd by itself.
func (c *controlPlane) startAPIAndEtcd(ports []int) error {
	etcd, err := c.pki.issue("etcd", "etcd")
	if err != nil {
		return err
	}
	server, err := c.pki.issue("apiserver", "kube-apiserver")
	if err != nil {
		return err
	}
	signing, err := c.pki.serviceAccountKey()
	if err != nil {
		return err
	}
	client, peer := fmt.Sprintf("https://%s:%d", loopback, ports[1]), fmt.Sprintf("https://%s:%d", loopback, ports[2])
	store, err := c.launcher.start(c.opts.programs["etcd"], "--name=sandbox", "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=sandbox="+peer,
		"--cert-file="+etcd.Cert, "--key-file="+etcd.Key, "--client-cert-auth", "--trusted-ca-file="+c.pki.ca(),
		"--peer-cert-file="+etcd.Cert, "--peer-key-file="+etcd.Key, "--peer-client-cert-auth", "--peer-trusted-ca-file="+c.pki.ca())
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.others = append(c.others, store)
	c.mu.Unlock()
	c.apiArgs = []string{
		"--bind-address=" + loopback, "--advertise-address=" + loopback, "--secure-port=" + strconv.Itoa(ports[0]),
		"--endpoint-reconciler-type=none", // a loopback address may not be an endpoint
		"--etcd-servers=" + client, "--etcd-cafile=" + c.pki.ca(), "--etcd-certfile=" + server.Cert, "--etcd-keyfile=" + server.Key,
		"--tls-cert-file=" + server.Cert, "--tls-private-key-file=" + server.Key, "--client-ca-file=" + c.pki.ca(),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + signing, "--service-account-signing-key-file=" + signing,
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged", "--profiling=false",
	}
	c.apiArgs = append(c.apiArgs, c.opts.APIServerArgs...)
	return c.startAPI()
}

func (c *controlPlane) startAPI() error {
	p, err := c.launcher.start(c.opts.programs["kube-apiserver"], c.apiArgs...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.api = p
	return nil
}

// processes returns all programs of the control plane, the kube-apiserver first.
func (c *controlPlane) processes() []*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil {
		return slices.Clone(c.others)
	}
	return append([]*process{c.api}, c.others...)
}

func (c *controlPlane) makeClient() error {
	admin, err := c.pki.issue("admin", "kubernetes-admin", "system:masters")
	if err != nil {
		return err
	}
	if err := c.pki.kubeconfig(c.adminKubeconfig(), c.url, admin); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.adminKubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = clientQPS, clientBurst
	c.client, err = kubernetes.NewForConfig(cfg)
	return err
}

// startControllers runs the controllers, the scheduler and the simulated kubelets.
func (c *controlPlane) startControllers() error {
	manager, err := c.controllerKubeconfig("kube-controller-manager", "system:kube-controller-manager", "system:masters")
	if err != nil {
		return err
	}
	scheduler, err := c.controllerKubeconfig("kube-scheduler", "system:kube-scheduler", "system:masters")
	if err != nil {
		return err
	}
	kubelets, err := c.controllerKubeconfig("kwok", "kwok", "system:masters")
	if err != nil {
		return err
	}
	stagesFile := c.path("stages.yaml")
	text := strings.NewReplacer("POD_READY_MILLISECONDS", strconv.FormatInt(c.opts.PodReadyDelay.Milliseconds(), 10),
		"POD_DELETE_MILLISECONDS", strconv.FormatInt(c.opts.PodDeleteDelay.Milliseconds(), 10)).Replace(kwokStages)
	if err := os.WriteFile(stagesFile, []byte(text), 0o600); err != nil {
		return err
	}
	common := []string{"--leader-elect=false", "--secure-port=0", "--kube-api-qps=" + strconv.Itoa(clientQPS), "--kube-api-burst=" + strconv.Itoa(clientBurst)}
	c.controllers = [][]string{
		append([]string{"kube-controller-manager", "--kubeconfig=" + manager, "--root-ca-file=" + c.pki.ca(), "--node-monitor-period=1s",
			"--service-account-private-key-file=" + filepath.Join(c.pki.dir, "sa.key")}, common...),
		append([]string{"kube-scheduler", "--kubeconfig=" + scheduler}, common...),
		{"kwok", "--kubeconfig=" + kubelets, "--config=" + stagesFile, "--manage-nodes-with-label-selector=" + kubeletLabel + "=running",
			"--node-ip=" + loopback, "--cidr=10.244.0.0/16", "--node-lease-duration-seconds=40"},
	}
	return c.runControllers()
}

func (c *controlPlane) runControllers() error {
	for _, program := range c.controllers {
		p, err := c.launcher.start(c.opts.programs[program[0]], program[1:]...)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.others = append(c.others, p)
		c.mu.Unlock()
	}
	return nil
}

// restartControllers ends the controllers, the scheduler and kwok and starts them again.
func (c *controlPlane) restartControllers() error {
	c.restart.Lock()
	defer c.restart.Unlock()
	if c.stopped {
		return errors.New("the sandbox is stopped")
	}
	c.mu.Lock()
	etcd, old := c.others[:1], c.others[1:]
	c.mu.Unlock()
	for _, p := range old {
		p.stop(0)
	}
	c.mu.Lock()
	c.others = etcd[:1:1]
	c.mu.Unlock()
	return c.runControllers()
}

// controllerKubeconfig writes the kubeconfig of one program and returns its path.
func (c *controlPlane) controllerKubeconfig(name, user, group string) (string, error) {
	pair, err := c.pki.issue(name, user, group)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.pki.dir, name+".kubeconfig")
	return path, c.pki.kubeconfig(path, c.url, pair)
}

// waitAPI waits until the kube-apiserver is ready, or fails with the log of what ended.
func (c *controlPlane) waitAPI(ctx context.Context) error {
	var last error
	err := wait.Poll(ctx, probeInterval, func() (bool, error) {
		var body []byte
		body, last = c.client.RESTClient().Get().AbsPath("/readyz").Timeout(2 * time.Second).DoRaw(ctx)
		if last == nil && string(body) == "ok" {
			return true, nil
		}
		return false, c.ended()
	})
	if err != nil && ctx.Err() != nil {
		return errors.Join(fmt.Errorf("the kube-apiserver did not get ready: %w", err), last)
	}
	return err
}

// ended returns an error when a program that should run does not.
func (c *controlPlane) ended() error {
	for _, p := range c.processes() {
		select {
		case <-p.ended:
			if !p.stopping.Load() {
				return p.failure()
			}
		default:
		}
	}
	return nil
}

// restartAPI ends the kube-apiserver, by SIGKILL when the grace is 0, says so, and
// starts it again after the downtime, on the same port.
func (c *controlPlane) restartAPI(ctx context.Context, grace, downtime time.Duration, ended func()) error {
	c.restart.Lock()
	defer c.restart.Unlock()
	if c.stopped {
		return errors.New("the sandbox is stopped")
	}
	c.processes()[0].stop(grace)
	ended()
	_ = wait.Sleep(ctx, downtime) // a cancelled restart, too, leaves an API server behind
	if err := c.startAPI(); err != nil {
		return err
	}
	return c.waitAPI(ctx)
}

// stop kills everything: nothing of a sandbox is kept.
func (c *controlPlane) stop() {
	c.restart.Lock()
	defer c.restart.Unlock()
	c.stopped = true
	for _, p := range c.processes() {
		p.stop(0)
	}
}

// nodeCertificates returns what a node may act with: its kubelet's, and the
// administrator's on a control plane.
func (c *controlPlane) nodeCertificates(node string, controlPlane bool) (kubelet, admin nodedir.KeyPair, err error) {
	if kubelet, err = c.pki.issue("node-"+node, "system:node:"+node, "system:nodes"); err != nil || !controlPlane {
		return kubelet, admin, err
	}
	admin, err = c.pki.issue("admin-"+node, "kubernetes-admin", "system:masters")
	return kubelet, admin, err
}
