package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/crypto/ssh"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/freeport"
	"ebb/internal/sandbox/nodedir"
	"ebb/internal/sandbox/nodetools"
)

const (
	// kubeletLabel selects the nodes whose kubelet is simulated; without it the kubelet is dead.
	kubeletLabel      = nodedir.KubeletLabel
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	notReadyTaint     = "node.kubernetes.io/not-ready"
)

// addMachines makes the directories, SSH servers and Node objects of all nodes.
func (s *Sandbox) addMachines(ctx context.Context) error {
	user, err := s.makeSSHKey()
	if err != nil {
		return err
	}
	for i := range s.opts.ControlPlanes {
		s.nodeNames = append(s.nodeNames, fmt.Sprintf("cp%d", i+1))
	}
	for i := range s.opts.Workers {
		s.nodeNames = append(s.nodeNames, fmt.Sprintf("w%d", i+1))
	}
	places, fronts, err := s.places(ctx)
	if err != nil {
		return err
	}
	for i, name := range s.nodeNames {
		if err := s.addMachine(ctx, name, places[i], i < s.opts.ControlPlanes, user); err != nil {
			return fmt.Errorf("make node %s: %w", name, err)
		}
		if i < s.opts.ControlPlanes {
			if s.machines[name].api, err = openFront(ctx, fronts[i], s.plane.url); err != nil {
				return fmt.Errorf("the API server of %s: %w", name, err)
			}
		}
	}
	if err := s.TrustHostKeys(); err != nil {
		return err
	}
	s.opts.Log.Info("sandbox: nodes and their SSH servers are made", zap.Strings("nodes", s.nodeNames))
	return nil
}

// place is where the SSH server of a machine listens.
type place struct {
	address string
	port    int
	listen  func(ctx context.Context, address string) (net.Listener, error)
}

// places returns one for each machine, and a port for the own API server of each control plane.
func (s *Sandbox) places(ctx context.Context) (all []place, fronts []int, err error) {
	ports, err := freeport.Find(ctx, loopback, len(s.nodeNames)+s.opts.ControlPlanes)
	if err != nil {
		return nil, nil, err
	}
	for i := range s.nodeNames {
		at := place{loopback, ports[i], func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		}}
		if n := s.opts.Network; n != nil {
			at = place{n.Address(i), n.Port, n.Listen}
		}
		all = append(all, at)
	}
	return all, ports[len(s.nodeNames):], nil
}

// TrustHostKeys writes the host keys that the machines have now into the
// known_hosts file: what an operator does after RotateHostKey.
func (s *Sandbox) TrustHostKeys() error {
	var known strings.Builder
	for _, name := range s.nodeNames {
		known.WriteString(s.machines[name].ssh.knownHost())
	}
	if err := os.WriteFile(s.knownHosts(), []byte(known.String()), 0o600); err != nil {
		return fmt.Errorf("trust the host keys of the sandbox: %w", err)
	}
	return nil
}

func (s *Sandbox) knownHosts() string { return filepath.Join(s.opts.Dir, "ssh", "known_hosts") }

func (s *Sandbox) addMachine(ctx context.Context, name string, at place, controlPlane bool, user ssh.PublicKey) error {
	info, err := s.makeNodeDir(name, controlPlane)
	if err != nil {
		return err
	}
	m := &Machine{name: name, machineID: info.MachineID, info: info, dir: nodedir.Of(s.opts.Dir, name), plane: s.plane}
	m.ssh = &sshServer{place: at, user: user, dir: m.dir, log: s.opts.Log.With(zap.String("node", name))}
	m.ssh.commandEnded = func() { s.hooks.commandEnded(name) }
	if err := m.ssh.newHostKey(); err != nil {
		return err
	}
	s.machines[name] = m
	if err := m.ssh.open(ctx); err != nil {
		return err
	}
	_, err = s.Client().CoreV1().Nodes().Create(ctx, nodeObject(info, s.opts.Version, at.address), meta.CreateOptions{})
	return err
}

// makeNodeDir makes the directory of a node with everything that its programs need.
func (s *Sandbox) makeNodeDir(name string, controlPlane bool) (nodedir.Info, error) {
	dir := nodedir.Of(s.opts.Dir, name)
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nodedir.Info{}, err
	}
	info := nodedir.Info{
		Name: name, Sandbox: s.opts.Dir, ControlPlane: controlPlane, MachineID: hex.EncodeToString(id[:]),
		API: s.plane.url, CA: s.plane.pki.ca(), ScriptDelay: s.opts.ScriptDelay,
		CKS: s.opts.CKS, Kubectl: s.opts.programs["kubectl"],
	}
	if controlPlane {
		info.Kubeconfig = s.plane.adminKubeconfig()
	}
	var err error
	if info.Kubelet, info.Admin, err = s.plane.nodeCertificates(name, controlPlane); err != nil {
		return info, err
	}
	if err := dir.Create(info, s.opts.Version, s.opts.programs["sandbox-node"], nodetools.Names()); err != nil {
		return info, err
	}
	return info, s.layOut(dir)
}

// nodeObject returns what a kubelet that joined with kubeadm registers.
func nodeObject(info nodedir.Info, version, address string) *core.Node {
	capacity := core.ResourceList{
		core.ResourceCPU: resource.MustParse("8"), core.ResourceMemory: resource.MustParse("32Gi"), core.ResourcePods: resource.MustParse("110"),
		core.ResourceEphemeralStorage: resource.MustParse("40Gi"),
	}
	n := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: info.Name, Labels: map[string]string{
			core.LabelHostname: info.Name, core.LabelOSStable: "linux", core.LabelArchStable: "amd64", kubeletLabel: "running",
		}},
		Spec: core.NodeSpec{ProviderID: "sandbox://" + info.Name},
		Status: core.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses:  []core.NodeAddress{{Type: core.NodeInternalIP, Address: address}, {Type: core.NodeHostName, Address: info.Name}},
			Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastHeartbeatTime: meta.Now(), LastTransitionTime: meta.Now()}},
			NodeInfo: core.NodeSystemInfo{
				MachineID: info.MachineID, SystemUUID: info.MachineID, KubeletVersion: "v" + version,
				OperatingSystem: "linux", Architecture: "amd64", OSImage: "Ebb sandbox", ContainerRuntimeVersion: "containerd://2.2.0",
			},
		},
	}
	if info.ControlPlane {
		n.Labels[controlPlaneLabel] = ""
		n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] = ""
		n.Spec.Taints = []core.Taint{{Key: controlPlaneLabel, Effect: core.TaintEffectNoSchedule}}
	}
	return n
}
