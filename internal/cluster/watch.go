package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	byNode = "node" // index of pods and volume attachments
	// syncTimeout bounds the first list of all resources for callers that set no
	// limit; 3,000 pods take well under a second, the rest is for an API server
	// that is restarting.
	syncTimeout = 60 * time.Second
)

// Watch is a live copy of the part of a cluster that a drain decides on. What
// it returns is shared: read it, do not change it. It may lag behind the API
// server, and does not shrink while the API server cannot be reached.
type Watch struct {
	// Ledger counts the evictions that all drains of this process have under way.
	Ledger *Ledger

	factory   informers.SharedInformerFactory
	resources []resource
	ended     <-chan struct{}
	cancel    context.CancelFunc
	log       *zap.Logger

	mu          sync.Mutex
	subscribers map[*Subscription]struct{}
	retired     bool // ends with its last subscriber
}

// resource is one watched kind.
type resource struct {
	name     string
	informer cache.SharedIndexInformer
	node     func(obj any) string // whose subscribers an event wakes; nil or "" = all

	mu        *sync.Mutex
	lastError *error // of the list or watch, until it has synced
}

func startWatch(client kubernetes.Interface, log *zap.Logger, retired bool) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{
		factory:     informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim)),
		ended:       ctx.Done(),
		cancel:      cancel,
		retired:     retired,
		log:         log,
		subscribers: map[*Subscription]struct{}{},
	}
	f := w.factory
	w.resources = []resource{
		{name: "pods", informer: f.Core().V1().Pods().Informer(), node: nodeOf},
		{name: "poddisruptionbudgets", informer: f.Policy().V1().PodDisruptionBudgets().Informer()},
		{name: "nodes", informer: f.Core().V1().Nodes().Informer(), node: nodeOf},
		{name: "namespaces", informer: f.Core().V1().Namespaces().Informer()},
		{name: "daemonsets", informer: f.Apps().V1().DaemonSets().Informer()},
		{name: "persistentvolumeclaims", informer: f.Core().V1().PersistentVolumeClaims().Informer()},
		{name: "volumeattachments", informer: f.Storage().V1().VolumeAttachments().Informer(), node: nodeOf},
	}
	for i := range w.resources {
		w.prepare(&w.resources[i])
	}
	w.Ledger = newLedger(w.leaving, w.wakeAll)
	f.Start(ctx.Done())
	return w
}

// prepare adds a resource's index and handlers. The errors are those of an
// informer that has been started already, which none has.
func (w *Watch) prepare(r *resource) {
	r.mu, r.lastError = &sync.Mutex{}, new(error)
	if r.node != nil {
		index := func(obj any) ([]string, error) { return []string{r.node(obj)}, nil }
		_ = r.informer.AddIndexers(cache.Indexers{byNode: index})
	}
	_ = r.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		r.mu.Lock()
		*r.lastError = err
		r.mu.Unlock()
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
	_, _ = r.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.wake(r, obj) },
		UpdateFunc: func(_, obj any) { w.wake(r, obj) },
		DeleteFunc: func(obj any) { w.wake(r, obj) },
	})
}

func nodeOf(obj any) string {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	switch o := obj.(type) {
	case *core.Pod:
		return o.Spec.NodeName
	case *core.Node:
		return o.Name
	case *storage.VolumeAttachment:
		return o.Spec.NodeName
	}
	return ""
}

func (w *Watch) waitSynced(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, syncTimeout)
		defer cancel()
	}
	for _, r := range w.resources {
		select {
		case <-r.informer.HasSyncedChecker().Done():
		case <-ctx.Done():
			return w.unsynced(ctx)
		}
	}
	return nil
}

// unsynced says what is still missing when the time was over.
func (w *Watch) unsynced(ctx context.Context) error {
	var missing []string
	var cause error
	for _, r := range w.resources {
		if r.informer.HasSynced() {
			continue
		}
		missing = append(missing, r.name)
		r.mu.Lock()
		if cause == nil { // one is enough: they mostly have the same reason
			cause = *r.lastError
		}
		r.mu.Unlock()
	}
	if cause == nil {
		cause = ctx.Err()
	}
	return fmt.Errorf("no answer yet for %s (is the API server up, may this user list and watch them?): %w",
		strings.Join(missing, ", "), cause)
}

// Node is the node of that name; nil when there is none.
func (w *Watch) Node(name string) *core.Node {
	node, err := w.factory.Core().V1().Nodes().Lister().Get(name)
	if err != nil { // a lister's only error is not found
		return nil
	}
	return node
}

// Nodes are all nodes, in no order.
func (w *Watch) Nodes() []*core.Node {
	return listed[core.Node](w.factory.Core().V1().Nodes().Informer())
}

// Pod is the pod of that name; nil when there is none.
func (w *Watch) Pod(namespace, name string) *core.Pod {
	pod, err := w.factory.Core().V1().Pods().Lister().Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// PodsOn are the pods bound to a node, in no order.
func (w *Watch) PodsOn(node string) []*core.Pod {
	return indexed[core.Pod](w.factory.Core().V1().Pods().Informer(), node)
}

// PodsMatching are the pods of a namespace with those labels, in no order.
func (w *Watch) PodsMatching(namespace string, selector labels.Selector) []*core.Pod {
	pods, err := w.factory.Core().V1().Pods().Lister().Pods(namespace).List(selector)
	if err != nil {
		return nil
	}
	return pods
}

// Budgets are the PodDisruptionBudgets of a namespace, in no order.
func (w *Watch) Budgets(namespace string) []*policy.PodDisruptionBudget {
	budgets, err := w.factory.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return budgets
}

// NamespaceTerminating tells whether a namespace is being deleted.
func (w *Watch) NamespaceTerminating(name string) bool {
	ns, err := w.factory.Core().V1().Namespaces().Lister().Get(name)
	return err == nil && (ns.DeletionTimestamp != nil || ns.Status.Phase == core.NamespaceTerminating)
}

// DaemonSetExists tells whether there is such a DaemonSet.
func (w *Watch) DaemonSetExists(namespace, name string) bool {
	_, err := w.factory.Apps().V1().DaemonSets().Lister().DaemonSets(namespace).Get(name)
	return err == nil
}

// Attachments are the volumes attached to a node, or on their way, in no order.
func (w *Watch) Attachments(node string) []*storage.VolumeAttachment {
	return indexed[storage.VolumeAttachment](w.factory.Storage().V1().VolumeAttachments().Informer(), node)
}

// ClaimedVolume is the name of the PersistentVolume bound to a claim; "" when
// the claim is unknown or unbound.
func (w *Watch) ClaimedVolume(namespace, claim string) string {
	pvc, err := w.factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(claim)
	if err != nil {
		return ""
	}
	return pvc.Spec.VolumeName
}

// leaving tells whether a pod of that UID is terminating or gone.
func (w *Watch) leaving(p PodRef) bool {
	pod := w.Pod(p.Namespace, p.Name)
	return pod == nil || pod.UID != p.UID || pod.DeletionTimestamp != nil
}

func indexed[T any](informer cache.SharedIndexInformer, node string) []*T {
	objects, err := informer.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil
	}
	return typed[T](objects)
}

func listed[T any](informer cache.SharedIndexInformer) []*T {
	return typed[T](informer.GetIndexer().List())
}

func typed[T any](objects []any) []*T {
	out := make([]*T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}
