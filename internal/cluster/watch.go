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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// syncTimeout bounds the first list of all kinds for callers that set no limit;
// 3,000 pods take well under a second, the rest is for an API server that is
// restarting.
const syncTimeout = 60 * time.Second

// Watch is a live copy of the part of a cluster that a drain decides on. What
// it returns is shared: read it, do not change it. It may lag behind the API
// server, and does not shrink while the API server cannot be reached.
type Watch struct {
	// Ledger counts the evictions that all drains of this process have under way.
	Ledger *Ledger

	pods, budgets, nodes, namespaces, daemonSets, claims, attachments *mirror

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
	w := &Watch{
		pods:        mirrorOf(client, "pods", &core.Pod{}, nodeOf, pods.List, pods.Watch),
		budgets:     mirrorOf(client, "poddisruptionbudgets", &policy.PodDisruptionBudget{}, nil, budgets.List, budgets.Watch),
		nodes:       mirrorOf(client, "nodes", &core.Node{}, nodeOf, nodes.List, nodes.Watch),
		namespaces:  mirrorOf(client, "namespaces", &core.Namespace{}, nil, namespaces.List, namespaces.Watch),
		daemonSets:  mirrorOf(client, "daemonsets", &apps.DaemonSet{}, nil, daemonSets.List, daemonSets.Watch),
		claims:      mirrorOf(client, "persistentvolumeclaims", &core.PersistentVolumeClaim{}, nil, claims.List, claims.Watch),
		attachments: mirrorOf(client, "volumeattachments", &storage.VolumeAttachment{}, nodeOf, attachments.List, attachments.Watch),
		ended:       ctx.Done(),
		cancel:      cancel,
		retired:     retired,
		log:         log,
		subscribers: map[*Subscription]struct{}{},
	}
	w.Ledger = newLedger(w.leaving, w.wakeAll)
	for _, m := range w.mirrors() {
		m.changed = w.wake
		go m.reflector.RunWithContext(ctx)
	}
	return w
}

func (w *Watch) mirrors() []*mirror {
	return []*mirror{w.pods, w.budgets, w.nodes, w.namespaces, w.daemonSets, w.claims, w.attachments}
}

func nodeOf(obj any) string {
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
	for _, m := range w.mirrors() {
		select {
		case <-m.synced:
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
	for _, m := range w.mirrors() {
		if m.hasSynced() {
			continue
		}
		missing = append(missing, m.name)
		if cause == nil { // one is enough: they mostly have the same reason
			cause = m.failure()
		}
	}
	if cause == nil {
		cause = ctx.Err()
	}
	return fmt.Errorf("no answer yet for %s (is the API server up, may this user list and watch them?): %w",
		strings.Join(missing, ", "), cause)
}

// Node is the node of that name; nil when there is none.
func (w *Watch) Node(name string) *core.Node { return named[core.Node](w.nodes, name) }

// Nodes are all nodes, in no order.
func (w *Watch) Nodes() []*core.Node { return typed[core.Node](w.nodes.objects.List()) }

// Pod is the pod of that name; nil when there is none.
func (w *Watch) Pod(namespace, name string) *core.Pod {
	return named[core.Pod](w.pods, namespace+"/"+name)
}

// PodsOn are the pods bound to a node, in no order.
func (w *Watch) PodsOn(node string) []*core.Pod { return indexed[core.Pod](w.pods, byNode, node) }

// PodsMatching are the pods of a namespace with those labels, in no order.
func (w *Watch) PodsMatching(namespace string, selector labels.Selector) []*core.Pod {
	return slices.DeleteFunc(indexed[core.Pod](w.pods, byNamespace, namespace), func(p *core.Pod) bool {
		return !selector.Matches(labels.Set(p.Labels))
	})
}

// Budgets are the PodDisruptionBudgets of a namespace, in no order.
func (w *Watch) Budgets(namespace string) []*policy.PodDisruptionBudget {
	return indexed[policy.PodDisruptionBudget](w.budgets, byNamespace, namespace)
}

// NamespaceTerminating tells whether a namespace is being deleted.
func (w *Watch) NamespaceTerminating(name string) bool {
	ns := named[core.Namespace](w.namespaces, name)
	return ns != nil && (ns.DeletionTimestamp != nil || ns.Status.Phase == core.NamespaceTerminating)
}

// DaemonSetExists tells whether there is such a DaemonSet.
func (w *Watch) DaemonSetExists(namespace, name string) bool {
	return named[apps.DaemonSet](w.daemonSets, namespace+"/"+name) != nil
}

// Attachments are the volumes attached to a node, or on their way, in no order.
func (w *Watch) Attachments(node string) []*storage.VolumeAttachment {
	return indexed[storage.VolumeAttachment](w.attachments, byNode, node)
}

// ClaimedVolume is the name of the PersistentVolume bound to a claim; "" when
// the claim is unknown or unbound.
func (w *Watch) ClaimedVolume(namespace, claim string) string {
	pvc := named[core.PersistentVolumeClaim](w.claims, namespace+"/"+claim)
	if pvc == nil {
		return ""
	}
	return pvc.Spec.VolumeName
}

// leaving tells whether a pod of that UID is terminating or gone.
func (w *Watch) leaving(p PodRef) bool {
	pod := w.Pod(p.Namespace, p.Name)
	return pod == nil || pod.UID != p.UID || pod.DeletionTimestamp != nil
}
