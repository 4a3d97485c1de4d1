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
)

// watchPause is the time between two watches when the API server does not answer.
const watchPause = 200 * time.Millisecond

// objects are the two calls that a wait for one object needs.
type objects[T any] interface {
	Get(ctx context.Context, name string, opts meta.GetOptions) (T, error)
	Watch(ctx context.Context, opts meta.ListOptions) (watch.Interface, error)
}

// waitFor watches one object until it is as wanted. A broken watch is made
// again; what ended reports as lost is the end of it.
func waitFor[T runtime.Object](ctx context.Context, ended func() error, api objects[T], name string, good func(T) bool) error {
	var last error
	for {
		done, err := watchOnce(ctx, api, name, good)
		if done {
			return nil
		}
		if err != nil {
			last = err
		}
		if err := ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not as it should be: %w", name, ctx.Err()), last)
		case <-time.After(watchPause):
		}
	}
}

func watchOnce[T runtime.Object](ctx context.Context, api objects[T], name string, good func(T) bool) (done bool, err error) {
	obj, err := api.Get(ctx, name, meta.GetOptions{})
	var version string
	switch {
	case err == nil:
		if good(obj) {
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
		if obj, ok := event.Object.(T); ok && event.Type != watch.Deleted && good(obj) {
			return true, nil
		}
	}
	return false, nil
}
