package mirror

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
)

// source stands for the API server of a mirror of nodes.
type source struct {
	listErr, watchErr atomic.Pointer[error]
	events            chan watch.Event
}

func (s *source) list(context.Context, metav1.ListOptions) (*core.NodeList, error) {
	if err := s.listErr.Load(); err != nil {
		return nil, *err
	}
	return &core.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []core.Node{{ObjectMeta: metav1.ObjectMeta{Name: "w1", ResourceVersion: "1"}}}}, nil
}

func (s *source) watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if err := s.watchErr.Load(); err != nil {
		return nil, *err
	}
	return watch.NewProxyWatcher(s.events), nil
}

// What fails is said until it does not any more, and that nothing has happened is news too.
func TestStatus(t *testing.T) {
	s := &source{events: make(chan watch.Event)}
	refused, gone := errors.New("nodes is forbidden"), errors.New("no route to host")
	s.listErr.Store(&refused)
	m := New(fake.NewClientset(), Options[core.Node]{Resource: "nodes"}, s.list, s.watch)
	require.Equal(t, Status{Resource: "nodes"}, m.Status())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	eventually := func(want func(Status) bool) Status {
		t.Helper()
		require.Eventually(t, func() bool { return want(m.Status()) }, 20*time.Second, 5*time.Millisecond)
		return m.Status()
	}
	now := eventually(func(now Status) bool { return errors.Is(now.Err, refused) })
	require.False(t, now.Synced)
	require.Zero(t, now.LastEvent)

	s.listErr.Store(nil)
	now = eventually(func(now Status) bool { return now.Synced && now.Err == nil })
	s.events <- watch.Event{Type: watch.Bookmark, Object: &core.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}}
	eventually(func(later Status) bool { return later.LastEvent.After(now.LastEvent) })

	s.watchErr.Store(&gone)
	s.events <- watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410}}
	require.True(t, eventually(func(now Status) bool { return errors.Is(now.Err, gone) }).Synced)
	require.NotNil(t, m.Get("w1"), "it stays as it was")
	s.watchErr.Store(nil)
	eventually(func(now Status) bool { return now.Err == nil })
	cancel()
	<-ended
}
