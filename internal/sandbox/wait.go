package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"ebb/internal/wait"
)

// waitTimeout bounds each wait: what has not come after minutes does not come.
const waitTimeout = 3 * time.Minute

// watchPause is the time between two watches when the API server does not answer.
const watchPause = 200 * time.Millisecond

// getWatcher is the part of a client that a wait for one object needs.
type getWatcher[T any] interface {
	Get(ctx context.Context, name string, opts meta.GetOptions) (T, error)
	Watch(ctx context.Context, opts meta.ListOptions) (watch.Interface, error)
}

// waitFor watches one object until the condition holds. A broken watch is made
// again; an error of ended, which says that a program of the sandbox is gone, ends it.
func waitFor[T runtime.Object](ctx context.Context, ended func() error, api getWatcher[T], name string, condition func(T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	var last error
	for {
		done, err := watchOnce(ctx, api, name, condition)
		if done {
			return nil
		}
		if err != nil {
			last = err
		}
		if err := ended(); err != nil {
			return err
		}
		if err := wait.Sleep(ctx, watchPause); err != nil {
			return errors.Join(fmt.Errorf("%s is not as it should be: %w", name, err), last)
		}
	}
}

// watchOnce reports whether the condition holds now, or within one watch of 5 s.
func watchOnce[T runtime.Object](ctx context.Context, api getWatcher[T], name string, condition func(T) bool) (done bool, err error) {
	obj, err := api.Get(ctx, name, meta.GetOptions{})
	var version string
	switch {
	case err == nil:
		if condition(obj) {
			return true, nil
		}
		accessor, err := apimeta.Accessor(obj)
		if err != nil {
			return false, err
		}
		version = accessor.GetResourceVersion()
	case !apierrors.IsNotFound(err):
		return false, err
	}
	seconds := int64(5) // so that what has ended meanwhile is noticed
	w, err := api.Watch(ctx, meta.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: version, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if obj, ok := event.Object.(T); ok && event.Type != watch.Deleted && condition(obj) {
			return true, nil
		}
	}
	return false, nil
}
