package cluster

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	byNode      = "node"      // index of what belongs to a node
	byNamespace = "namespace" // index of what is in a namespace
)

// rewatch is the time between two tries to list or watch. A shared informer,
// which this would otherwise be, waits up to a minute after an API server has
// been away twice, and a drain is blind for so long.
var rewatch = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}

// mirror is a local copy of all objects of one kind. What it holds is trimmed.
type mirror struct {
	name      string
	node      func(obj any) string // whose subscribers a change wakes; nil = all
	objects   cache.Indexer
	reflector *cache.Reflector
	changed   func(m *mirror, obj any) // nil obj = many objects

	synced chan struct{} // closed once it is complete
	once   sync.Once

	mu        sync.Mutex
	lastError error // of the list or watch, until it has synced
}

var _ cache.ReflectorStore = (*mirror)(nil)

// mirrorOf is the mirror of the objects that list and watch return.
func mirrorOf[L runtime.Object](client kubernetes.Interface, name string, example runtime.Object, node func(obj any) string,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *mirror {
	m := &mirror{name: name, node: node, synced: make(chan struct{})}
	indexers := cache.Indexers{byNamespace: cache.MetaNamespaceIndexFunc}
	if node != nil {
		indexers[byNode] = func(obj any) ([]string, error) { return []string{node(obj)}, nil }
	}
	m.objects = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			found, err := list(ctx, options)
			return found, m.note(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := follow(ctx, options)
			return events, m.note(err)
		},
	}, client)
	again := rewatch
	m.reflector = cache.NewReflectorWithOptions(source, example, m, cache.ReflectorOptions{Name: "ebb/" + name, Backoff: &again})
	return m
}

func (m *mirror) note(err error) error {
	if err != nil {
		m.mu.Lock()
		m.lastError = err
		m.mu.Unlock()
	}
	return err
}

func (m *mirror) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastError
}

func (m *mirror) hasSynced() bool {
	select {
	case <-m.synced:
		return true
	default:
		return false
	}
}

// Add keeps a new object.
func (m *mirror) Add(obj any) error { return m.keep(obj, m.objects.Add) }

// Update keeps a newer version of an object.
func (m *mirror) Update(obj any) error { return m.keep(obj, m.objects.Update) }

func (m *mirror) keep(obj any, in func(any) error) error {
	if err := in(trim(obj)); err != nil {
		return err
	}
	m.changed(m, obj)
	return nil
}

// Delete drops an object.
func (m *mirror) Delete(obj any) error {
	if err := m.objects.Delete(obj); err != nil {
		return err
	}
	m.changed(m, obj)
	return nil
}

// Replace keeps these objects and no others.
func (m *mirror) Replace(list []any, version string) error {
	for i := range list {
		list[i] = trim(list[i])
	}
	if err := m.objects.Replace(list, version); err != nil {
		return err
	}
	m.once.Do(func() { close(m.synced) })
	m.changed(m, nil)
	return nil
}

// Resync has nothing to do: nobody keeps a copy of the copy.
func (m *mirror) Resync() error { return nil }

// named is the object of that key; nil when there is none.
func named[T any](m *mirror, key string) *T {
	obj, known, err := m.objects.GetByKey(key)
	if err != nil || !known {
		return nil
	}
	object, _ := obj.(*T)
	return object
}

// indexed are the objects with that value of the index, in no order.
func indexed[T any](m *mirror, index, value string) []*T {
	objects, err := m.objects.ByIndex(index, value)
	if err != nil { // there is no such index
		return nil
	}
	return typed[T](objects)
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
