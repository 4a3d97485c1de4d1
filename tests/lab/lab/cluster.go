package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// token lets machines join; the lab's cluster is reached by nobody else.
	token = "abcdef.0123456789abcdef" // #nosec G101 -- see above
	// certificateKey encrypts the certificates that a second control plane fetches.
	certificateKey = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" // #nosec G101 -- see above
)

// KubeadmFlags are what kubeadm needs here: its system check does not know that
// the kubelet has been told to put up with cgroup v1.
var KubeadmFlags = []string{"--ignore-preflight-errors=SystemVerification"}

// CreateCluster makes a cluster of version From out of booted machines and waits until
// all of its nodes are Ready. The first is the first control plane.
func (l *Lab) CreateCluster(ctx context.Context, names ...string) error {
	machines := make([]*Machine, 0, len(names))
	controlPlanes := 0
	for _, name := range names {
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		machines = append(machines, m)
		if m.controlPlane() {
			controlPlanes++
		}
	}
	endpoint := machines[0].Address() + ":6443"
	if controlPlanes > 1 {
		endpoint = apiServersAddress
	}
	if err := l.installKubernetes(ctx, machines); err != nil {
		return err
	}
	if err := l.initialize(ctx, machines[0], endpoint); err != nil {
		return err
	}
	for _, m := range machines[1:] {
		if err := l.join(ctx, m, endpoint); err != nil {
			return err
		}
	}
	return l.waitReady(ctx, machines[0])
}

func (m *Machine) controlPlane() bool { return strings.HasPrefix(m.Name, "cp") }

// installKubernetes installs the packages of From from the lab's repository, held
// as the Kubernetes documentation has it.
func (l *Lab) installKubernetes(ctx context.Context, machines []*Machine) error {
	defer l.step("installing Kubernetes %s", From)()
	v := packageVersion(From)
	for _, m := range machines {
		script := "export DEBIAN_FRONTEND=noninteractive\napt-get update -qq\n" +
			"apt-get install -qq -y --no-install-recommends kubeadm=" + v + " kubelet=" + v + " kubectl=" + v + " >/dev/null\n" +
			"apt-mark hold kubeadm kubelet kubectl >/dev/null\nsystemctl enable --quiet kubelet\n"
		if _, err := m.Run(ctx, script); err != nil {
			return err
		}
	}
	return nil
}

// registration returns how kubeadm makes a node of a machine.
func (m *Machine) registration() string {
	return `nodeRegistration:
  name: ` + m.Name + `
  ignorePreflightErrors: [SystemVerification]
  kubeletExtraArgs: [{name: node-ip, value: ` + m.Address() + `}]
`
}

func (l *Lab) initialize(ctx context.Context, m *Machine, endpoint string) error {
	defer l.step("kubeadm init on %s", m.Name)()
	config := `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{token: ` + token + `}]
certificateKey: ` + certificateKey + `
localAPIEndpoint: {advertiseAddress: ` + m.Address() + `}
` + m.registration() + `---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v` + From + `
controlPlaneEndpoint: ` + endpoint + `
networking: {podSubnet: ` + podCIDR + `, serviceSubnet: ` + serviceSubnet + `}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 10Mi, imagefs.available: 10Mi}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
	if err := m.Write(ctx, "/root/init.yaml", config); err != nil {
		return err
	}
	_, err := m.Run(ctx, "kubeadm init --config /root/init.yaml --upload-certs 2>&1")
	return err
}

func (l *Lab) join(ctx context.Context, m *Machine, endpoint string) error {
	defer l.step("kubeadm join on %s", m.Name)()
	config := `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {apiServerEndpoint: ` + endpoint + `, token: ` + token + `, unsafeSkipCAVerification: true}}
` + m.registration()
	if m.controlPlane() {
		config += `controlPlane:
  certificateKey: ` + certificateKey + `
  localAPIEndpoint: {advertiseAddress: ` + m.Address() + `}
`
	}
	if err := m.Write(ctx, "/root/join.yaml", config); err != nil {
		return err
	}
	_, err := m.Run(ctx, "kubeadm join --config /root/join.yaml 2>&1")
	return err
}

// waitReady waits until every node is Ready and the cluster's DNS runs, and keeps the
// administrator's kubeconfig.
func (l *Lab) waitReady(ctx context.Context, first *Machine) error {
	defer l.step("waiting until every node is Ready")()
	admin, err := first.Run(ctx, "cat /etc/kubernetes/admin.conf")
	if err != nil {
		return err
	}
	if err := write(l.Kubeconfig(), admin, 0o600); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := l.Kubectl(waiting, "wait", "--for=condition=Ready", "node", "--all", "--timeout=240s"); err != nil {
		return err
	}
	return l.Kubectl(waiting, "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=240s")
}

// Kubeconfig returns the administrator's. Its server is reached from inside the switch.
func (l *Lab) Kubeconfig() string { return l.Path("admin.kubeconfig") }

// Kubectl runs kubectl as the administrator, inside the switch.
func (l *Lab) Kubectl(ctx context.Context, args ...string) error {
	return l.KubectlInput(ctx, "", args...)
}

// KubectlInput runs kubectl as Kubectl does, with a text on its stdin.
func (l *Lab) KubectlInput(ctx context.Context, text string, args ...string) error {
	if _, err := os.Stat(l.Kubeconfig()); err != nil {
		return fmt.Errorf("there is no cluster: %w", err)
	}
	_, err := commandWithInput(ctx, text, "nsenter", append([]string{"--net=" + SwitchNamespace, l.Program(From, "kubectl"), "--kubeconfig", l.Kubeconfig()}, args...)...)
	return err
}
