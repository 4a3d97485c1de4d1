// Package mirror keeps local copies of Kubernetes objects, as informers do, by a
// reflector of client-go. Unlike a shared informer, which waits up to a minute before
// it lists again when an API server has been unavailable twice, it waits two seconds at
// most.
package mirror

import (
	"cmp"
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

// relistBackoff is the time between two attempts to list or watch.
var relistBackoff = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}

// Options of a mirror of objects of type T.
type Options[T any] struct {
	Resource  string                              // of the API: "pods"
	Indexers  map[string]func(object *T) []string // by name: the values by which ByIndex finds an object
	Transform func(object *T)                     // changes an object before it is stored, to drop fields; may be nil
	// OnChange is called after each change, in order, with the object, or with nil when
	// any objects may have changed. It must not block. It may be nil.
	OnChange func(object *T)
}

// Mirror is a local copy of all objects of one resource. It may lag behind the API
// server, and stays as it is while the API server cannot be reached. The objects that it
// returns are shared and must not be changed.
type Mirror[T any] struct {
	opts      Options[T]
	objects   cache.Indexer
	reflector *cache.Reflector
	synced    chan struct{} // closed after the first list
	syncOnce  sync.Once

	mu        sync.Mutex
	listErr   error // of the last list, nil = it was answered
	watchErr  error // of the last attempt to watch, nil = it was answered
	lastEvent time.Time
}

// Status is how a mirror stands with its API server.
type Status struct {
	Resource string
	Synced   bool  // everything has been listed once
	Err      error // why it is behind or may be: the last list or watch was refused or not answered; nil = it is in step
	// LastEvent is when something was heard last: a change or, about once a minute, that
	// there is none; zero = never.
	LastEvent time.Time
}

// New returns a mirror of the objects that listFunc and watchFunc return. It is empty
// until Run.
func New[T any, P interface {
	*T
	runtime.Object
}, L runtime.Object](client kubernetes.Interface, o Options[T],
	listFunc func(context.Context, metav1.ListOptions) (L, error),
	watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *Mirror[T] {
	m := &Mirror[T]{opts: o, synced: make(chan struct{})}
	indexers := cache.Indexers{}
	for name, values := range o.Indexers {
		indexers[name] = func(obj any) ([]string, error) { return values(obj.(*T)), nil }
	}
	m.objects = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	listerWatcher := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			found, err := listFunc(ctx, options)
			m.recordList(err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := watchFunc(ctx, options)
			m.recordWatch(err)
			return events, err
		},
	}, client)
	backoff := relistBackoff
	m.reflector = cache.NewReflectorWithOptions(listerWatcher, P(new(T)), reflectorStore[T]{m}, cache.ReflectorOptions{Name: "ebb/" + o.Resource, Backoff: &backoff})
	return m
}

// Run lists and watches until ctx ends.
func (m *Mirror[T]) Run(ctx context.Context) { m.reflector.RunWithContext(ctx) }

// Resource returns the resource, as in Options.
func (m *Mirror[T]) Resource() string { return m.opts.Resource }

// Synced returns a channel that is closed after the first complete list.
func (m *Mirror[T]) Synced() <-chan struct{} { return m.synced }

// Status returns how the mirror stands with its API server now.
func (m *Mirror[T]) Status() Status {
	s := Status{Resource: m.opts.Resource}
	select {
	case <-m.synced:
		s.Synced = true
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Err, s.LastEvent = cmp.Or(m.listErr, m.watchErr), m.lastEvent
	return s
}

// recordList records how a list was answered.
func (m *Mirror[T]) recordList(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listErr = err
}

// recordWatch records how an attempt to watch was answered. One that is open makes good for
// a list that was not answered before: it may bring the objects itself.
func (m *Mirror[T]) recordWatch(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchErr = err
	if err == nil {
		m.listErr = nil
	}
}

// recordEvent records that something was heard.
func (m *Mirror[T]) recordEvent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastEvent = time.Now()
}

// Get returns the object with a key, "namespace/name" or "name"; nil when there is none.
func (m *Mirror[T]) Get(key string) *T {
	obj, known, err := m.objects.GetByKey(key)
	if err != nil || !known {
		return nil
	}
	object, _ := obj.(*T)
	return object
}

// List returns all objects, in no order.
func (m *Mirror[T]) List() []*T { return typed[T](m.objects.List()) }

// ByIndex returns the objects with a value of an index, in no order.
func (m *Mirror[T]) ByIndex(index, value string) []*T {
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

func (m *Mirror[T]) notify(object *T) {
	if m.opts.OnChange != nil {
		m.opts.OnChange(object)
	}
}

// reflectorStore implements cache.ReflectorStore: the reflector writes to the mirror by it.
type reflectorStore[T any] struct{ mirror *Mirror[T] }

// Add stores a new object.
func (s reflectorStore[T]) Add(obj any) error { return s.set(obj, s.mirror.objects.Add) }

// Update stores a newer version of an object.
func (s reflectorStore[T]) Update(obj any) error { return s.set(obj, s.mirror.objects.Update) }

func (s reflectorStore[T]) set(obj any, write func(any) error) error {
	object := s.transform(obj)
	if err := write(obj); err != nil {
		return err
	}
	s.mirror.notify(object)
	return nil
}

// Delete removes an object.
func (s reflectorStore[T]) Delete(obj any) error {
	if err := s.mirror.objects.Delete(obj); err != nil {
		return err
	}
	object, _ := obj.(*T)
	s.mirror.notify(object)
	return nil
}

// Replace stores the result of a list in place of all objects.
func (s reflectorStore[T]) Replace(list []any, version string) error {
	for _, obj := range list {
		s.transform(obj)
	}
	if err := s.mirror.objects.Replace(list, version); err != nil {
		return err
	}
	s.mirror.syncOnce.Do(func() { close(s.mirror.synced) })
	s.mirror.recordEvent()
	s.mirror.notify(nil)
	return nil
}

// UpdateResourceVersion is called after each event, also after one that only says that
// nothing has changed.
func (s reflectorStore[T]) UpdateResourceVersion(string) { s.mirror.recordEvent() }

var _ cache.ResourceVersionUpdater = reflectorStore[int]{}

// Resync does nothing: there are no event handlers to resync.
func (s reflectorStore[T]) Resync() error { return nil }

func (s reflectorStore[T]) transform(obj any) *T {
	object, ok := obj.(*T)
	if ok && s.mirror.opts.Transform != nil {
		s.mirror.opts.Transform(object)
	}
	return object
}
