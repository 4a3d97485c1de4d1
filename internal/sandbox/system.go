package sandbox

import (
	"context"
	"fmt"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const kubeadmConfigName = "kubeadm-config"

// addSystem makes what kubeadm leaves in kube-system: its configuration, which
// nodes may read, the static pods of the control planes, and the kube-proxy DaemonSet.
func (s *Sandbox) addSystem(ctx context.Context) error {
	const namespace = meta.NamespaceSystem
	client := s.Client()
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Name: kubeadmConfigName},
		Data:       kubeadmConfig(s.opts.Version),
	}, meta.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make %s: %w", kubeadmConfigName, err)
	}
	if err := s.grantNodesRead(ctx); err != nil {
		return fmt.Errorf("let the nodes read %s: %w", kubeadmConfigName, err)
	}
	for _, name := range s.nodeNames[:s.opts.ControlPlanes] {
		if err := s.addStaticPods(ctx, name); err != nil {
			return fmt.Errorf("make the static pods of %s: %w", name, err)
		}
	}
	if _, err := client.AppsV1().DaemonSets(namespace).Create(ctx, kubeProxy(s.opts.Version), meta.CreateOptions{}); err != nil {
		return fmt.Errorf("make the DaemonSet kube-proxy: %w", err)
	}
	return nil
}

func kubeadmConfig(version string) map[string]string {
	return map[string]string{"ClusterConfiguration": fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
clusterName: sandbox
imageRepository: registry.k8s.io
kind: ClusterConfiguration
kubernetesVersion: v%s
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16
  serviceSubnet: 10.96.0.0/16
`, version)}
}

// grantNodesRead makes the role that kubeadm gives to joining nodes.
func (s *Sandbox) grantNodesRead(ctx context.Context) error {
	const name, namespace = "kubeadm:nodes-kubeadm-config", meta.NamespaceSystem
	api := s.Client().RbacV1()
	_, err := api.Roles(namespace).Create(ctx, &rbac.Role{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{kubeadmConfigName}, Verbs: []string{"get"}}},
	}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = api.RoleBindings(namespace).Create(ctx, &rbac.RoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: name},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.GroupKind, Name: "system:nodes"}},
	}, meta.CreateOptions{})
	return err
}

// addStaticPods mirrors the pods that a control plane's kubelet runs from its manifests.
func (s *Sandbox) addStaticPods(ctx context.Context, node string) error {
	n, err := s.Client().CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
	if err != nil {
		return err
	}
	controller := true
	for _, component := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		pod := &core.Pod{
			ObjectMeta: meta.ObjectMeta{
				Name: component + "-" + node, Labels: map[string]string{"component": component, "tier": "control-plane"},
				Annotations:     map[string]string{core.MirrorPodAnnotationKey: "sandbox", "kubernetes.io/config.source": "file"},
				OwnerReferences: []meta.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID, Controller: &controller}},
			},
			Spec: core.PodSpec{
				NodeName: node, HostNetwork: true, PriorityClassName: "system-node-critical",
				Containers:  []core.Container{{Name: component, Image: "registry.k8s.io/" + component}},
				Tolerations: []core.Toleration{{Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute}},
			},
		}
		if component == "kube-apiserver" {
			pod.Annotations["kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint"] = s.machines[node].api.address()
		}
		if _, err := s.Client().CoreV1().Pods(meta.NamespaceSystem).Create(ctx, pod, meta.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func kubeProxy(version string) *apps.DaemonSet {
	labels := map[string]string{"k8s-app": "kube-proxy"}
	return &apps.DaemonSet{
		ObjectMeta: meta.ObjectMeta{Name: "kube-proxy", Labels: labels},
		Spec: apps.DaemonSetSpec{
			Selector: &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{
				ObjectMeta: meta.ObjectMeta{Labels: labels},
				Spec: core.PodSpec{
					HostNetwork: true, PriorityClassName: "system-node-critical",
					Containers:  []core.Container{{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v" + version}},
					Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}},
				},
			},
		},
	}
}
