package activities

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/policy"
)

// The engine's clock makes deadlines; a worker's may be minutes before or behind it.
func TestWorkerWithAWrongClockHasAsLongAsAnyOther(t *testing.T) {
	started := time.Date(2026, 12, 3, 10, 0, 0, 0, time.UTC)
	for _, wrong := range []time.Duration{-7 * time.Minute, 0, 7 * time.Minute} {
		now := started.Add(wrong)
		require.Equal(t, now.Add(10*time.Minute), localTime(now, started, started.Add(10*time.Minute)))
		require.Equal(t, now.Add(10*time.Minute), lookUntil(now, started, started.Add(10*time.Minute)))
		require.Equal(t, now.Add(-time.Minute), localTime(now, started, started.Add(-time.Minute)), "it has passed")
		require.Equal(t, now.Add(lookFor), lookUntil(now, started, started.Add(-time.Minute)), "one look all the same")
	}
}

// engineClock has the engine's clock be off by so much, as activities are told it.
type engineClock struct {
	interceptor.WorkerInterceptorBase
	off time.Duration
}

func (e *engineClock) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &engineClockInbound{interceptor.ActivityInboundInterceptorBase{Next: next}, e.off}
}

type engineClockInbound struct {
	interceptor.ActivityInboundInterceptorBase
	off time.Duration
}

func (e *engineClockInbound) Init(out interceptor.ActivityOutboundInterceptor) error {
	return e.Next.Init(&engineClockOutbound{interceptor.ActivityOutboundInterceptorBase{Next: out}, e.off})
}

type engineClockOutbound struct {
	interceptor.ActivityOutboundInterceptorBase
	off time.Duration
}

func (e *engineClockOutbound) GetInfo(ctx context.Context) activity.Info {
	info := e.Next.GetInfo(ctx)
	info.StartedTime = info.StartedTime.Add(e.off)
	return info
}

// Each waits for something that comes before its deadline, or never.
func TestWaitsByAnEngineWithAWrongClock(t *testing.T) {
	const wait, comesAfter = 2 * time.Second, 200 * time.Millisecond
	n := policy.Node{Name: "w1", Role: policy.Worker}
	attached := &storage.VolumeAttachment{
		ObjectMeta: meta.ObjectMeta{Name: "a"}, Spec: storage.VolumeAttachmentSpec{NodeName: "w1", Attacher: "csi", Source: storage.VolumeAttachmentSource{PersistentVolumeName: new("pv-1")}},
		Status: storage.VolumeAttachmentStatus{Attached: true},
	}
	for name, c := range map[string]struct {
		run  func(a *Activities, deadline time.Time) (activity any, in any)
		come func(*testing.T, *fake.Clientset)
	}{
		"WaitDetached": {
			func(a *Activities, deadline time.Time) (any, any) {
				return a.WaitDetached, WaitDetachedInput{Cluster: "prod", Node: n, Deadline: deadline}
			},
			func(t *testing.T, client *fake.Clientset) {
				require.NoError(t, client.StorageV1().VolumeAttachments().Delete(t.Context(), "a", meta.DeleteOptions{}))
			},
		},
		"WaitReady": {
			func(a *Activities, deadline time.Time) (any, any) {
				return a.WaitReady, WaitReadyInput{Cluster: "prod", Node: n, Version: "1.37.2", Deadline: deadline}
			},
			func(t *testing.T, client *fake.Clientset) {
				upgraded := node("w1", func(n *core.Node) { n.Status.NodeInfo.KubeletVersion = "v1.37.2" })
				require.NoError(t, client.Tracker().Update(core.SchemeGroupVersion.WithResource("nodes"), upgraded, ""))
			},
		},
	} {
		for _, off := range []time.Duration{-7 * time.Minute, 7 * time.Minute} {
			for _, comes := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, %v", name, off, comes), func(t *testing.T) {
					t.Parallel()
					a, client := bench(t, node("w1"))
					require.NoError(t, client.Tracker().Add(attached))
					env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
					env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&engineClock{off: off}, &Interceptor{}}})
					env.SetTestTimeout(time.Minute)
					began := time.Now()
					run, in := c.run(a, began.Add(off+wait))
					env.RegisterActivity(run)
					if comes {
						timer := time.AfterFunc(comesAfter, func() { c.come(t, client) })
						defer timer.Stop()
					}
					_, err := env.ExecuteActivity(run, in)
					if comes {
						require.NoError(t, err)
						return
					}
					require.Error(t, err)
					require.Greater(t, time.Since(began), wait-time.Second)
					require.Less(t, time.Since(began), wait+30*time.Second)
				})
			}
		}
	}
}
