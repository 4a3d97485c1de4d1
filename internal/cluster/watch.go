package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/mirror"
)

const (
	byNode      = "node"      // index of what belongs to a node
	byNamespace = "namespace" // index of what is in a namespace
)

// syncTimeout bounds the first list of all kinds for callers whose context has no
// deadline. 3,000 pods take well under a second; the rest is for an API server that
// is restarting.
const syncTimeout = 60 * time.Second

// Watch is a live copy of the part of a cluster that a drain decides on. The
// objects it returns are shared: read them, do not change them. It may lag behind
// the API server; while that cannot be reached, it keeps what it has.
type Watch struct {
	// Ledger counts the evictions in flight of all drains in this process.
	Ledger *Ledger
	Clock  *Clock // by which its objects have their times

	pods        *mirror.Mirror[core.Pod]
	budgets     *mirror.Mirror[policy.PodDisruptionBudget]
	nodes       *mirror.Mirror[core.Node]
	namespaces  *mirror.Mirror[core.Namespace]
	daemonSets  *mirror.Mirror[apps.DaemonSet]
	claims      *mirror.Mirror[core.PersistentVolumeClaim]
	attachments *mirror.Mirror[storage.VolumeAttachment]
	volumes     *mirror.Mirror[core.PersistentVolume]
	refusals    *mirror.Mirror[core.Event] // only those of failedCreate

	ended  <-chan struct{}
	cancel context.CancelFunc
	log    *zap.Logger

	mu          sync.Mutex
	subscribers map[*Subscription]struct{}
	retired     bool // ends with its last subscriber
}

func startWatch(client kubernetes.Interface, log *zap.Logger, retired bool) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	pods, budgets, nodes := client.CoreV1().Pods(""), client.PolicyV1().PodDisruptionBudgets(""), client.CoreV1().Nodes()
	namespaces, daemonSets := client.CoreV1().Namespaces(), client.AppsV1().DaemonSets("")
	claims, attachments := client.CoreV1().PersistentVolumeClaims(""), client.StorageV1().VolumeAttachments()
	volumes, events := client.CoreV1().PersistentVolumes(), client.CoreV1().Events("")
	w := &Watch{ended: ctx.Done(), cancel: cancel, retired: retired, log: log, subscribers: map[*Subscription]struct{}{}}
	w.pods = mirror.New(client, mirrorOptions(w, "pods", func(p *core.Pod) string { return p.Spec.NodeName }), pods.List, pods.Watch)
	w.budgets = mirror.New(client, mirrorOptions[policy.PodDisruptionBudget](w, "poddisruptionbudgets", nil), budgets.List, budgets.Watch)
	w.nodes = mirror.New(client, mirrorOptions(w, "nodes", func(n *core.Node) string { return n.Name }), nodes.List, nodes.Watch)
	w.namespaces = mirror.New(client, mirrorOptions[core.Namespace](w, "namespaces", nil), namespaces.List, namespaces.Watch)
	w.daemonSets = mirror.New(client, mirrorOptions[apps.DaemonSet](w, "daemonsets", nil), daemonSets.List, daemonSets.Watch)
	w.claims = mirror.New(client, mirrorOptions[core.PersistentVolumeClaim](w, "persistentvolumeclaims", nil), claims.List, claims.Watch)
	w.attachments = mirror.New(client, mirrorOptions(w, "volumeattachments", func(a *storage.VolumeAttachment) string { return a.Spec.NodeName }),
		attachments.List, attachments.Watch)
	w.volumes = mirror.New(client, silentOptions[core.PersistentVolume](w, "persistentvolumes"), volumes.List, volumes.Watch)
	w.refusals = mirror.New(client, silentOptions[core.Event](w, "events"), onlyFailedCreates(events.List), onlyFailedCreates(events.Watch))
	w.Ledger = newLedger(w.budget, w.terminating, w.notifyAll)
	for _, k := range append(w.kinds(), w.refusals) {
		go k.Run(ctx)
	}
	return w
}

// failedCreate is the reason of the events by which controllers say that they could not
// create a pod: because of a quota, or of an admission webhook.
const failedCreate = "FailedCreate"

// onlyFailedCreates has a list or watch of events select those.
func onlyFailedCreates[T any](ask func(context.Context, metav1.ListOptions) (T, error)) func(context.Context, metav1.ListOptions) (T, error) {
	return func(ctx context.Context, options metav1.ListOptions) (T, error) {
		options.FieldSelector = fields.OneTermEqualSelector("reason", failedCreate).String()
		return ask(ctx, options)
	}
}

// silentOptions are mirrorOptions for objects whose changes notify nobody.
func silentOptions[T any](w *Watch, name string) mirror.Options[T] {
	o := mirrorOptions[T](w, name, nil)
	o.OnChange = nil
	return o
}

// mirrorOptions returns the options of a mirror whose changes notify the subscribers
// of the node that an object belongs to; when node is nil, all subscribers.
func mirrorOptions[T any](w *Watch, name string, node func(*T) string) mirror.Options[T] {
	o := mirror.Options[T]{
		Resource: name, Transform: func(object *T) { trim(object) },
		Indexers: map[string]func(*T) []string{byNamespace: func(object *T) []string { return []string{namespaceOf(object)} }},
		OnChange: func(*T) { w.notifyAll() },
	}
	if node != nil {
		o.Indexers[byNode] = func(object *T) []string { return []string{node(object)} }
		o.OnChange = func(object *T) {
			if object == nil {
				w.notifyAll()
			} else if name := node(object); name != "" { // a pod that is not bound yet concerns no node
				w.notify(name)
			}
		}
	}
	return o
}

func namespaceOf(object any) string {
	o, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return o.GetNamespace()
}

// kind is the part of a mirror that does not depend on its type of object.
type kind interface {
	Resource() string
	Run(ctx context.Context)
	Synced() <-chan struct{}
	Status() mirror.Status
}

// kinds returns the mirrors without which nothing is decided. That of events is none of
// them: they are only told, and an API server with many takes long to list them.
func (w *Watch) kinds() []kind {
	return []kind{w.pods, w.budgets, w.nodes, w.namespaces, w.daemonSets, w.claims, w.attachments, w.volumes}
}

func (w *Watch) waitSynced(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, syncTimeout)
		defer cancel()
	}
	for _, m := range w.kinds() {
		select {
		case <-m.Synced():
		case <-ctx.Done():
			return w.notSynced(ctx)
		}
	}
	return nil
}

// notSynced returns the error of a wait that has ended too early: the kinds that are
// not listed yet, and why.
func (w *Watch) notSynced(ctx context.Context) error {
	var missing []string
	var cause error
	for _, m := range w.kinds() {
		select {
		case <-m.Synced():
			continue
		default:
		}
		missing = append(missing, m.Resource())
		if cause == nil { // one is enough: they mostly have the same reason
			cause = m.Status().Err
		}
	}
	if cause == nil {
		cause = ctx.Err()
	}
	return fmt.Errorf("no answer yet for %s (is the API server up, may this user list and watch them?): %w",
		strings.Join(missing, ", "), cause)
}

// Node returns the node of that name; nil when there is none.
func (w *Watch) Node(name string) *core.Node { return w.nodes.Get(name) }

// Nodes returns all nodes, in no order.
func (w *Watch) Nodes() []*core.Node { return w.nodes.List() }

// Pod returns the pod of that name; nil when there is none.
func (w *Watch) Pod(namespace, name string) *core.Pod {
	return w.pods.Get(namespace + "/" + name)
}

// Pods returns the pods of all namespaces, in no order.
func (w *Watch) Pods() []*core.Pod { return w.pods.List() }

// PodsOn returns the pods bound to a node, in no order.
func (w *Watch) PodsOn(node string) []*core.Pod { return w.pods.ByIndex(byNode, node) }

// PodsMatching returns the pods of a namespace that a selector matches, in no order.
func (w *Watch) PodsMatching(namespace string, selector labels.Selector) []*core.Pod {
	return slices.DeleteFunc(w.pods.ByIndex(byNamespace, namespace), func(p *core.Pod) bool {
		return !selector.Matches(labels.Set(p.Labels))
	})
}

// Budgets returns the PodDisruptionBudgets of a namespace, in no order.
func (w *Watch) Budgets(namespace string) []*policy.PodDisruptionBudget {
	return w.budgets.ByIndex(byNamespace, namespace)
}

// budget returns the PodDisruptionBudget of that name; nil when there is none.
func (w *Watch) budget(name types.NamespacedName) *policy.PodDisruptionBudget {
	return w.budgets.Get(name.Namespace + "/" + name.Name)
}

// FailedCreates returns the events of the last hour or so by which the controllers of a
// namespace say that they could not create a pod, in no order.
func (w *Watch) FailedCreates(namespace string) []*core.Event {
	return w.refusals.ByIndex(byNamespace, namespace)
}

// NamespaceTerminating reports whether a namespace is being deleted.
func (w *Watch) NamespaceTerminating(name string) bool {
	ns := w.namespaces.Get(name)
	return ns != nil && (ns.DeletionTimestamp != nil || ns.Status.Phase == core.NamespaceTerminating)
}

// DaemonSetExists reports whether there is such a DaemonSet.
func (w *Watch) DaemonSetExists(namespace, name string) bool {
	return w.daemonSets.Get(namespace+"/"+name) != nil
}

// Attachments returns the VolumeAttachments of a node, also those that are not
// attached yet, in no order.
func (w *Watch) Attachments(node string) []*storage.VolumeAttachment {
	return w.attachments.ByIndex(byNode, node)
}

// Volumes returns all PersistentVolumes, in no order.
func (w *Watch) Volumes() []*core.PersistentVolume { return w.volumes.List() }

// ClaimedVolume returns the name of the PersistentVolume bound to a claim; "" when
// the claim is unknown or unbound.
func (w *Watch) ClaimedVolume(namespace, claim string) string {
	pvc := w.claims.Get(namespace + "/" + claim)
	if pvc == nil {
		return ""
	}
	return pvc.Spec.VolumeName
}

// terminating reports whether the pod of that UID is terminating or gone.
func (w *Watch) terminating(p PodRef) bool {
	pod := w.Pod(p.Namespace, p.Name)
	return pod == nil || pod.UID != p.UID || pod.DeletionTimestamp != nil
}
