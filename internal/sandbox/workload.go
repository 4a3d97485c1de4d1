package sandbox

import (
	"context"
	"fmt"
	"maps"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Namespace is where workloads and budgets are.
const Namespace = meta.NamespaceDefault

const appLabel = "app"

// Budget is what a PodDisruptionBudget allows: one of the two, a number or a percentage.
type Budget struct {
	MaxUnavailable string
	MinAvailable   string
}

// Workload is a Deployment, or pods that nobody owns, in namespace "default".
// Its pods bear the label app=<Name>.
type Workload struct {
	Name        string
	Replicas    int32
	Budget      *Budget           // nil = none
	Spread      bool              // prefer different nodes
	Nodes       []string          // only these; empty = any worker
	CPU         string            // request of a pod, default 10m
	Labels      map[string]string // more labels of the pods
	Annotations map[string]string // of the pods; sandbox.ebb/delete-delay: 5s makes them slow to stop
	Unready     bool              // the pods run and never get ready
}

// Deploy makes a Deployment and its budget, and waits until every replica is
// ready (Unready: running) and the budget counts them.
func (s *Sandbox) Deploy(ctx context.Context, w Workload) error {
	d := &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: w.Name, Labels: map[string]string{appLabel: w.Name}},
		Spec: apps.DeploymentSpec{
			Replicas: &w.Replicas,
			Selector: &meta.LabelSelector{MatchLabels: map[string]string{appLabel: w.Name}},
			Template: core.PodTemplateSpec{ObjectMeta: w.meta(), Spec: w.podSpec()},
		},
	}
	api := s.Client().AppsV1().Deployments(Namespace)
	if _, err := api.Create(ctx, d, meta.CreateOptions{}); err != nil {
		return fmt.Errorf("deploy %s: %w", w.Name, err)
	}
	if w.Budget != nil {
		if err := s.SetBudget(ctx, w.Name, *w.Budget); err != nil {
			return err
		}
	}
	err := waitFor(ctx, s.plane.ended, api, w.Name, func(d *apps.Deployment) bool {
		if w.Unready {
			return d.Status.Replicas == w.Replicas
		}
		return d.Status.ReadyReplicas == w.Replicas
	})
	if err != nil {
		return fmt.Errorf("deploy %s: %w", w.Name, err)
	}
	if w.Unready {
		return s.waitRunning(ctx, w)
	}
	if w.Budget == nil {
		return nil
	}
	err = waitFor(ctx, s.plane.ended, s.Client().PolicyV1().PodDisruptionBudgets(Namespace), w.Name, func(b *policy.PodDisruptionBudget) bool {
		return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == w.Replicas
	})
	if err != nil {
		return fmt.Errorf("budget of %s: %w", w.Name, err)
	}
	return nil
}

// DeployBare makes pods named <Name>-1 and up that no controller re-creates, and
// waits until they are ready (Unready: running). Its Budget is made like Deploy's.
func (s *Sandbox) DeployBare(ctx context.Context, w Workload) error {
	for i := range w.Replicas {
		pod := &core.Pod{ObjectMeta: w.meta(), Spec: w.podSpec()}
		pod.Name = fmt.Sprintf("%s-%d", w.Name, i+1)
		if _, err := s.Client().CoreV1().Pods(Namespace).Create(ctx, pod, meta.CreateOptions{}); err != nil {
			return fmt.Errorf("make pod %s: %w", pod.Name, err)
		}
	}
	if w.Budget != nil {
		if err := s.SetBudget(ctx, w.Name, *w.Budget); err != nil {
			return err
		}
	}
	for i := range w.Replicas {
		if err := s.waitPod(ctx, fmt.Sprintf("%s-%d", w.Name, i+1), w.Unready); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sandbox) waitRunning(ctx context.Context, w Workload) error {
	pods, err := s.Client().CoreV1().Pods(Namespace).List(ctx, meta.ListOptions{LabelSelector: appLabel + "=" + w.Name})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", w.Name, err)
	}
	for i := range pods.Items {
		if err := s.waitPod(ctx, pods.Items[i].Name, true); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sandbox) waitPod(ctx context.Context, name string, unready bool) error {
	err := waitFor(ctx, s.plane.ended, s.Client().CoreV1().Pods(Namespace), name, func(p *core.Pod) bool {
		return p.Status.Phase == core.PodRunning && (unready || PodReady(p))
	})
	if err != nil {
		return fmt.Errorf("wait for pod %s: %w", name, err)
	}
	return nil
}

// PodReady reports whether a pod's condition Ready is true.
func PodReady(p *core.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}

func (w Workload) meta() meta.ObjectMeta {
	labels, annotations := maps.Clone(w.Labels), maps.Clone(w.Annotations)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appLabel] = w.Name
	if w.Unready {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations["sandbox.ebb/unready"] = "true"
	}
	return meta.ObjectMeta{Labels: labels, Annotations: annotations}
}

func (w Workload) podSpec() core.PodSpec {
	cpu := w.CPU
	if cpu == "" {
		cpu = "10m"
	}
	spec := core.PodSpec{Containers: []core.Container{{
		Name: "app", Image: "registry.k8s.io/pause:3.10",
		Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse(cpu)}},
	}}}
	if w.Spread {
		spec.TopologySpreadConstraints = []core.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: core.LabelHostname, WhenUnsatisfiable: core.ScheduleAnyway,
			LabelSelector: &meta.LabelSelector{MatchLabels: map[string]string{appLabel: w.Name}},
		}}
	}
	if len(w.Nodes) > 0 {
		spec.Affinity = &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{
			NodeSelectorTerms: []core.NodeSelectorTerm{{MatchExpressions: []core.NodeSelectorRequirement{
				{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: w.Nodes},
			}}},
		}}}
	}
	return spec
}

// SetBudget makes or replaces the budget of a workload, which bears its name,
// and waits until the controllers have counted it.
func (s *Sandbox) SetBudget(ctx context.Context, workload string, b Budget) error {
	spec := policy.PodDisruptionBudgetSpec{Selector: &meta.LabelSelector{MatchLabels: map[string]string{appLabel: workload}}}
	if b.MaxUnavailable != "" {
		value := intstr.Parse(b.MaxUnavailable)
		spec.MaxUnavailable = &value
	}
	if b.MinAvailable != "" {
		value := intstr.Parse(b.MinAvailable)
		spec.MinAvailable = &value
	}
	if err := s.writeBudget(ctx, workload, spec); err != nil {
		return fmt.Errorf("set the budget of %s: %w", workload, err)
	}
	err := waitFor(ctx, s.plane.ended, s.Client().PolicyV1().PodDisruptionBudgets(Namespace), workload, func(b *policy.PodDisruptionBudget) bool {
		return b.Status.ObservedGeneration == b.Generation
	})
	if err != nil {
		return fmt.Errorf("budget of %s: %w", workload, err)
	}
	return nil
}

// writeBudget creates the budget, or updates it until nobody else has changed it meanwhile.
func (s *Sandbox) writeBudget(ctx context.Context, name string, spec policy.PodDisruptionBudgetSpec) error {
	api := s.Client().PolicyV1().PodDisruptionBudgets(Namespace)
	for {
		_, err := api.Create(ctx, &policy.PodDisruptionBudget{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: spec}, meta.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		old, err := api.Get(ctx, name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		old.Spec = spec
		if _, err = api.Update(ctx, old, meta.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// DeleteBudget removes the budget of a workload; none is fine.
func (s *Sandbox) DeleteBudget(ctx context.Context, workload string) error {
	err := s.Client().PolicyV1().PodDisruptionBudgets(Namespace).Delete(ctx, workload, meta.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the budget of %s: %w", workload, err)
	}
	return nil
}
