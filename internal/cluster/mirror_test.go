package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

func TestWatchIsThereSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	back := time.Now().Add(6 * time.Second)
	client.PrependReactor("list", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
		if time.Now().Before(back) {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	c := New("test", client, nil, zap.NewNop())
	defer c.Close()
	_, err := c.Watch(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, time.Since(back), 3200*time.Millisecond, "however long it took")
}
