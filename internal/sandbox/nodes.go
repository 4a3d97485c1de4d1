package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/crypto/ssh"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/sandbox/nodefs"
)

const (
	// kubeletLabel selects the nodes whose kubelet is simulated; without it the kubelet is dead.
	kubeletLabel      = "sandbox.ebb/kubelet"
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
		s.order = append(s.order, fmt.Sprintf("cp%d", i+1))
	}
	for i := range s.opts.Workers {
		s.order = append(s.order, fmt.Sprintf("w%d", i+1))
	}
	ports, err := freePorts(ctx, len(s.order))
	if err != nil {
		return err
	}
	var known strings.Builder
	for i, name := range s.order {
		m, err := s.addMachine(ctx, name, ports[i], i < s.opts.ControlPlanes, user)
		if err != nil {
			return fmt.Errorf("make node %s: %w", name, err)
		}
		known.WriteString(m.ssh.knownHost())
	}
	if err := os.WriteFile(s.knownHosts(), []byte(known.String()), 0o600); err != nil {
		return err
	}
	s.opts.Log.Info("sandbox: nodes and their SSH servers are made", zap.Strings("nodes", s.order))
	return nil
}

func (s *Sandbox) knownHosts() string { return filepath.Join(s.opts.Dir, "ssh", "known_hosts") }

func (s *Sandbox) addMachine(ctx context.Context, name string, port int, controlPlane bool, user ssh.PublicKey) (*Machine, error) {
	info, err := s.makeHome(name, controlPlane)
	if err != nil {
		return nil, err
	}
	m := &Machine{name: name, machineID: info.MachineID, info: info, dir: nodefs.Of(s.opts.Dir, name), plane: s.plane}
	m.ssh = &sshServer{port: port, user: user, dir: m.dir, log: s.opts.Log.With(zap.String("node", name))}
	m.ssh.tap = func() { s.taps.commandEnded(name) }
	if err := m.ssh.newHostKey(); err != nil {
		return nil, err
	}
	s.machines[name] = m
	if err := m.ssh.open(ctx); err != nil {
		return nil, err
	}
	_, err = s.Client().CoreV1().Nodes().Create(ctx, nodeObject(info, s.opts.Version), meta.CreateOptions{})
	return m, err
}

// makeHome makes the directory of a node with everything the stand-ins need.
func (s *Sandbox) makeHome(name string, controlPlane bool) (nodefs.Info, error) {
	dir := nodefs.Of(s.opts.Dir, name)
	if err := os.MkdirAll(dir.Bin(), 0o700); err != nil {
		return nodefs.Info{}, err
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nodefs.Info{}, err
	}
	info := nodefs.Info{
		Name: name, Sandbox: s.opts.Dir, ControlPlane: controlPlane, MachineID: hex.EncodeToString(id[:]),
		API: s.plane.url, CA: s.plane.pki.ca(), ScriptDelay: s.opts.ScriptDelay,
	}
	var err error
	if info.Kubelet, info.Admin, err = s.plane.nodeCertificates(name, controlPlane); err != nil {
		return info, err
	}
	for _, tool := range nodefs.Tools {
		if err := os.Symlink(filepath.Join(s.opts.BinDir, "sandbox-node"), filepath.Join(dir.Bin(), tool)); err != nil {
			return info, err
		}
	}
	for _, err := range []error{
		dir.WriteInfo(info), dir.WriteFaults(nodefs.Faults{}), dir.WriteMachineID(info.MachineID), dir.InitPackages(s.opts.Version),
	} {
		if err != nil {
			return info, err
		}
	}
	return info, nil
}

// nodeObject is what a kubelet that joined with kubeadm registers.
func nodeObject(info nodefs.Info, version string) *core.Node {
	room := core.ResourceList{
		core.ResourceCPU: resource.MustParse("8"), core.ResourceMemory: resource.MustParse("32Gi"), core.ResourcePods: resource.MustParse("110"),
		core.ResourceEphemeralStorage: resource.MustParse("40Gi"),
	}
	n := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: info.Name, Labels: map[string]string{
			core.LabelHostname: info.Name, core.LabelOSStable: "linux", core.LabelArchStable: "amd64", kubeletLabel: "running",
		}},
		Spec: core.NodeSpec{ProviderID: "sandbox://" + info.Name},
		Status: core.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses:  []core.NodeAddress{{Type: core.NodeInternalIP, Address: loopback}, {Type: core.NodeHostName, Address: info.Name}},
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
