// Package mirror keeps local copies of Kubernetes objects. Where a shared informer
// waits up to a minute after an API server has been away twice, and whoever decides
// on it is blind for so long, a mirror tries again within two seconds.
package mirror

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

// rewatch is the time between two tries to list or watch.
var rewatch = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}

// Options of a mirror of objects of type T.
type Options[T any] struct {
	Name     string                              // of the kind, as the API has it: "pods"
	Indexers map[string]func(object *T) []string // by name: the values under which an object is found
	Trim     func(object *T)                     // drops what nobody needs before an object is kept; nil = keep all
	// Changed is called after each change, in order; nil = many objects may have
	// changed. It must not block. Nil = nobody wants to know.
	Changed func(object *T)
}

// Mirror is a local copy of all objects of one kind. It may lag behind the API server,
// and does not shrink while the API server cannot be reached. What it returns is
// shared: read it, do not change it.
type Mirror[T any] struct {
	o         Options[T]
	objects   cache.Indexer
	reflector *cache.Reflector
	synced    chan struct{} // closed once it is complete
	once      sync.Once

	mu        sync.Mutex
	lastError error // of the list or watch, until it has synced
}

// New is the mirror of what list and follow return. It is empty until it runs.
func New[T any, P interface {
	*T
	runtime.Object
}, L runtime.Object](client kubernetes.Interface, o Options[T],
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *Mirror[T] {
	m := &Mirror[T]{o: o, synced: make(chan struct{})}
	indexers := cache.Indexers{}
	for name, values := range o.Indexers {
		indexers[name] = func(obj any) ([]string, error) { return values(obj.(*T)), nil }
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
	m.reflector = cache.NewReflectorWithOptions(source, P(new(T)), store[T]{m}, cache.ReflectorOptions{Name: "ebb/" + o.Name, Backoff: &again})
	return m
}

// Run keeps the copy until ctx ends.
func (m *Mirror[T]) Run(ctx context.Context) { m.reflector.RunWithContext(ctx) }

// Name is the kind, as the API has it.
func (m *Mirror[T]) Name() string { return m.o.Name }

// Synced is closed once the copy is complete.
func (m *Mirror[T]) Synced() <-chan struct{} { return m.synced }

// Failure is the last error of a list or watch, nil when there was none.
func (m *Mirror[T]) Failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastError
}

func (m *Mirror[T]) note(err error) error {
	if err != nil {
		m.mu.Lock()
		m.lastError = err
		m.mu.Unlock()
	}
	return err
}

// Get is the object of that key, "namespace/name" or "name"; nil when there is none.
func (m *Mirror[T]) Get(key string) *T {
	obj, known, err := m.objects.GetByKey(key)
	if err != nil || !known {
		return nil
	}
	object, _ := obj.(*T)
	return object
}

// All are all objects, in no order.
func (m *Mirror[T]) All() []*T { return typed[T](m.objects.List()) }

// By are the objects with that value of an index, in no order.
func (m *Mirror[T]) By(index, value string) []*T {
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

func (m *Mirror[T]) changed(object *T) {
	if m.o.Changed != nil {
		m.o.Changed(object)
	}
}

// store is the side of a mirror that the reflector writes to.
type store[T any] struct{ m *Mirror[T] }

// Add keeps a new object.
func (s store[T]) Add(obj any) error { return s.keep(obj, s.m.objects.Add) }

// Update keeps a newer version of an object.
func (s store[T]) Update(obj any) error { return s.keep(obj, s.m.objects.Update) }

func (s store[T]) keep(obj any, in func(any) error) error {
	object := s.trim(obj)
	if err := in(obj); err != nil {
		return err
	}
	s.m.changed(object)
	return nil
}

// Delete drops an object.
func (s store[T]) Delete(obj any) error {
	if err := s.m.objects.Delete(obj); err != nil {
		return err
	}
	object, _ := obj.(*T)
	s.m.changed(object)
	return nil
}

// Replace keeps these objects and no others.
func (s store[T]) Replace(list []any, version string) error {
	for _, obj := range list {
		s.trim(obj)
	}
	if err := s.m.objects.Replace(list, version); err != nil {
		return err
	}
	s.m.once.Do(func() { close(s.m.synced) })
	s.m.changed(nil)
	return nil
}

// Resync has nothing to do: nobody keeps a copy of the copy.
func (s store[T]) Resync() error { return nil }

func (s store[T]) trim(obj any) *T {
	object, ok := obj.(*T)
	if ok && s.m.o.Trim != nil {
		s.m.o.Trim(object)
	}
	return object
}
