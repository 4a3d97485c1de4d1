package drain

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/operation"
)

// sim is a small cluster in memory: the Eviction API with its budgets, a
// kubelet that ends terminating pods after a second, and a ReplicaSet
// controller whose new pods are ready two seconds after their birth. It runs
// in a synctest bubble, so its seconds take no time.
type sim struct {
	t      *testing.T
	client *fake.Clientset

	running  sync.WaitGroup
	mu       sync.Mutex
	version  int               // newest resourceVersion
	scale    map[string]int32  // pods that each budget expects
	evicted  map[types.UID]int // accepted evictions of each pod
	order    []string          // names, in the order in which they were accepted
	asked    map[string]int    // eviction requests of each pod, by namespace/name
	refused  int               // evictions refused by a budget
	failWith func(pod *core.Pod) (before, after error)
	rebirth  func(old *core.Pod) *core.Pod // the pod that replaces it; nil = none
}

const (
	deleteDelay = time.Second
	readyDelay  = 2 * time.Second
	node        = "w1"
)

var (
	podsResource    = core.SchemeGroupVersion.WithResource("pods")
	nodesResource   = core.SchemeGroupVersion.WithResource("nodes")
	budgetsResource = policy.SchemeGroupVersion.WithResource("poddisruptionbudgets")
)

func newSim(t *testing.T, objects ...runtime.Object) *sim {
	t.Helper()
	s := &sim{t: t, client: fake.NewClientset(), evicted: map[types.UID]int{}, asked: map[string]int{}, scale: map[string]int32{}}
	s.rebirth = elsewhere
	t.Cleanup(s.running.Wait)
	s.client.PrependReactor("create", "pods", s.react)
	for _, o := range append([]runtime.Object{cordonedNode(), namespace("app")}, objects...) {
		require.NoError(t, s.client.Tracker().Add(o))
	}
	s.recount()
	return s
}

// drain runs one attempt of a minute and returns its reports as well.
func (s *sim) drain(ctx context.Context, change ...func(*Request)) (Result, []operation.DrainProgress, error) {
	s.t.Helper()
	c := cluster.New("sim", s.client, func() (config.Cluster, error) { return config.Cluster{}, nil }, zap.NewNop())
	defer c.Close()
	return s.drainOf(ctx, c, change...)
}

func (s *sim) drainOf(ctx context.Context, c *cluster.Cluster, change ...func(*Request)) (Result, []operation.DrainProgress, error) {
	var reports []operation.DrainProgress
	req := Request{
		Cluster: c, Node: node, Operation: "op-1", Settings: NewSettings(config.Drain{}),
		Deadline: time.Now().Add(time.Minute), Report: func(p operation.DrainProgress) { reports = append(reports, p) },
	}
	for _, f := range change {
		f(&req)
	}
	result, err := Run(ctx, req)
	return result, reports, err
}

// react is the Eviction API as pkg/registry/core/pod/storage/eviction.go has it.
func (s *sim) react(action kubetesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(kubetesting.CreateAction)
	if !ok || action.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	eviction, ok := create.GetObject().(*policy.Eviction)
	if !ok {
		return false, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[eviction.Namespace+"/"+eviction.Name]++
	pod := s.pod(eviction.Namespace, eviction.Name)
	if pod == nil {
		return true, nil, apierrors.NewNotFound(core.Resource("pods"), eviction.Name)
	}
	var after error
	if s.failWith != nil {
		var before error
		if before, after = s.failWith(pod); before != nil {
			return true, nil, before
		}
	}
	if err := s.spend(pod); err != nil {
		return true, nil, err
	}
	if uid := eviction.DeleteOptions.Preconditions.UID; uid == nil || *uid != pod.UID {
		return true, nil, apierrors.NewConflict(core.Resource("pods"), pod.Name, fmt.Errorf("the UID does not match"))
	}
	s.evicted[pod.UID]++
	s.order = append(s.order, pod.Name)
	s.terminate(pod)
	return true, &meta.Status{Status: meta.StatusSuccess}, after
}

// spend takes the eviction off the pod's budget.
func (s *sim) spend(pod *core.Pod) error {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != core.PodRunning {
		return nil
	}
	var matching []*policy.PodDisruptionBudget
	for _, b := range s.budgets() {
		if b.Namespace == pod.Namespace && selects(b, pod) {
			matching = append(matching, b)
		}
	}
	if len(matching) > 1 {
		return &apierrors.StatusError{ErrStatus: meta.Status{Status: meta.StatusFailure, Code: http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	}
	if len(matching) == 0 || !isReady(pod) && allowsUnhealthyEviction(matching[0]) {
		return nil
	}
	b := matching[0]
	if b.Status.DisruptionsAllowed == 0 {
		s.refused++
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = []meta.StatusCause{{Type: policy.DisruptionBudgetCause, Message: "The disruption budget " + b.Name + " " + budgetStatus(b)}}
		return err
	}
	b.Status.DisruptionsAllowed--
	b.Status.DisruptedPods = map[string]meta.Time{pod.Name: meta.Now()}
	s.put(budgetsResource, b)
	return nil
}

// terminate is the deletion, the kubelet and the pod's controller.
func (s *sim) terminate(pod *core.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	now := meta.NewTime(time.Now().Add(30 * time.Second))
	pod.DeletionTimestamp = &now
	s.put(podsResource, pod)
	s.running.Go(func() {
		s.locked(s.recount)
		if s.rebirth != nil {
			if next := s.rebirth(pod); next != nil {
				s.birth(next)
			}
		}
	})
	if len(pod.Finalizers) > 0 {
		return
	}
	s.running.Go(func() {
		time.Sleep(deleteDelay)
		s.locked(func() { require.NoError(s.t, s.client.Tracker().Delete(podsResource, pod.Namespace, pod.Name)) })
	})
}

func (s *sim) birth(pod *core.Pod) {
	s.locked(func() { require.NoError(s.t, s.client.Tracker().Add(pod)) })
	time.Sleep(readyDelay)
	s.locked(func() {
		if born := s.pod(pod.Namespace, pod.Name); born != nil && born.DeletionTimestamp == nil {
			born.Status.Conditions = ready()
			s.put(podsResource, born)
		}
		s.recount()
	})
}

// recount is the disruption controller.
func (s *sim) recount() {
	for _, b := range s.budgets() {
		var healthy, expected int32
		for _, p := range s.pods() {
			if p.Namespace == b.Namespace && selects(b, p) {
				expected++
				if p.DeletionTimestamp == nil && isReady(p) {
					healthy++
				}
			}
		}
		if scale, known := s.scale[b.Name]; known {
			expected = scale
		}
		s.scale[b.Name] = expected // the ReplicaSet's, which does not change
		desired := int32(0)
		if b.Spec.MaxUnavailable != nil {
			n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(expected), true)
			require.NoError(s.t, err)
			desired = expected - int32(n)
		} else {
			n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(expected), true)
			require.NoError(s.t, err)
			desired = int32(n)
		}
		b.Status = policy.PodDisruptionBudgetStatus{
			ExpectedPods: expected, CurrentHealthy: healthy, DesiredHealthy: desired,
			DisruptionsAllowed: max(0, healthy-desired), ObservedGeneration: b.Generation,
		}
		s.put(budgetsResource, b)
	}
}

func (s *sim) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *sim) put(resource schema.GroupVersionResource, o runtime.Object) {
	accessor, err := apimeta.Accessor(o)
	require.NoError(s.t, err)
	s.version++
	accessor.SetResourceVersion(strconv.Itoa(s.version))
	require.NoError(s.t, s.client.Tracker().Update(resource, o, accessor.GetNamespace()))
}

func (s *sim) pod(namespace, name string) *core.Pod {
	o, err := s.client.Tracker().Get(podsResource, namespace, name)
	if err != nil {
		return nil
	}
	return o.(*core.Pod).DeepCopy() //nolint:forcetypeassert // a test
}

func (s *sim) pods() []*core.Pod {
	o, err := s.client.Tracker().List(podsResource, core.SchemeGroupVersion.WithKind("Pod"), "")
	require.NoError(s.t, err)
	var pods []*core.Pod
	for i := range o.(*core.PodList).Items { //nolint:forcetypeassert // a test
		pods = append(pods, &o.(*core.PodList).Items[i]) //nolint:forcetypeassert // a test
	}
	return pods
}

func (s *sim) budgets() []*policy.PodDisruptionBudget {
	o, err := s.client.Tracker().List(budgetsResource, policy.SchemeGroupVersion.WithKind("PodDisruptionBudget"), "")
	require.NoError(s.t, err)
	var budgets []*policy.PodDisruptionBudget
	for _, b := range o.(*policy.PodDisruptionBudgetList).Items { //nolint:forcetypeassert // a test
		budgets = append(budgets, b.DeepCopy())
	}
	return budgets
}

// changeNode edits the node as somebody else would.
func (s *sim) changeNode(change func(*core.Node)) {
	s.locked(func() {
		o, err := s.client.Tracker().Get(nodesResource, "", node)
		require.NoError(s.t, err)
		n := o.(*core.Node).DeepCopy() //nolint:forcetypeassert // a test
		change(n)
		s.put(nodesResource, n)
	})
}

// lists counts the list requests for pods, without those of the watches.
func (s *sim) lists() (n int) {
	for _, a := range s.client.Actions() {
		if l, ok := a.(kubetesting.ListAction); ok && a.Matches("list", "pods") && !l.GetListRestrictions().Fields.Empty() {
			n++
		}
	}
	return n
}

func (s *sim) requireEvictedOnce(names ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.evicted {
		require.Equal(s.t, 1, n, "evictions of %s", uid)
	}
	got := slices.Clone(s.order)
	slices.Sort(got)
	slices.Sort(names)
	require.Equal(s.t, names, got)
}

func selects(b *policy.PodDisruptionBudget, pod *core.Pod) bool {
	selector, err := meta.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

var births int

// elsewhere is the replacement on another node.
func elsewhere(old *core.Pod) *core.Pod {
	births++
	next := newPod(fmt.Sprintf("new%d", births), func(p *core.Pod) {
		p.Spec.NodeName, p.Labels, p.OwnerReferences, p.Status.Conditions = "w2", old.Labels, old.OwnerReferences, nil
	})
	return next
}

// here is the replacement that comes back to the node.
func here(old *core.Pod) *core.Pod {
	next := elsewhere(old)
	next.Spec.NodeName = node
	return next
}

func newPod(name string, change ...func(*core.Pod)) *core.Pod {
	p := &core.Pod{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta.ObjectMeta{
			Namespace: "app", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"},
			OwnerReferences: []meta.OwnerReference{controller("ReplicaSet", "web")},
		},
		Spec:   core.PodSpec{NodeName: node},
		Status: core.PodStatus{Phase: core.PodRunning, Conditions: ready()},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func controller(kind, name string) meta.OwnerReference {
	yes := true
	return meta.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID("uid-" + kind + name), Controller: &yes}
}

func ready() []core.PodCondition {
	return []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}
}

func cordonedNode() *core.Node {
	return &core.Node{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: meta.ObjectMeta{Name: node, UID: "uid-node"}, Spec: core.NodeSpec{Unschedulable: true},
		Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}},
	}
}

func namespace(name string) *core.Namespace {
	return &core.Namespace{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta.ObjectMeta{Name: name}}
}

// agentDaemonSet is the DaemonSet whose pods run on every node.
func agentDaemonSet() *apps.DaemonSet {
	return &apps.DaemonSet{TypeMeta: meta.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: "agent"}}
}

func budget(name string, change func(*policy.PodDisruptionBudgetSpec)) *policy.PodDisruptionBudget {
	b := &policy.PodDisruptionBudget{
		TypeMeta:   meta.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	change(&b.Spec)
	return b
}

func maxUnavailable(n int) func(*policy.PodDisruptionBudgetSpec) {
	return func(s *policy.PodDisruptionBudgetSpec) { v := intstr.FromInt32(int32(n)); s.MaxUnavailable = &v }
}

func minAvailable(n int) func(*policy.PodDisruptionBudgetSpec) {
	return func(s *policy.PodDisruptionBudgetSpec) { v := intstr.FromInt32(int32(n)); s.MinAvailable = &v }
}

func attachment(name, volume string) *storage.VolumeAttachment {
	return &storage.VolumeAttachment{
		TypeMeta:   meta.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "VolumeAttachment"},
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec:       storage.VolumeAttachmentSpec{NodeName: node, Source: storage.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}
}
