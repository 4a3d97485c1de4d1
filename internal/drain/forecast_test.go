package drain

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
)

// The pods of all namespaces are counted, those that a drain ignores are not.
func TestCheckCapacity(t *testing.T) {
	other := cordonedNode()
	other.Name, other.Spec.Unschedulable = "w2", false
	other.Status.Allocatable = core.ResourceList{core.ResourceCPU: resource.MustParse("1"), core.ResourcePods: resource.MustParse("10")}
	requests := func(namespace, cpu string) func(*core.Pod) {
		return func(p *core.Pod) {
			p.Namespace = namespace
			p.Spec.Containers = []core.Container{{Resources: core.ResourceRequirements{
				Requests: core.ResourceList{core.ResourceCPU: resource.MustParse(cpu)}}}}
		}
	}
	c := cluster.New("test", fake.NewClientset(cordonedNode(), other, agentDaemonSet(),
		newPod("a", requests("app", "600m")), newPod("b", requests("shop", "600m")),
		newPod("agent-1", requests("app", "600m"), func(p *core.Pod) {
			p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")}
		})), nil, zap.NewNop())
	defer c.Close()
	w, err := c.Watch(t.Context())
	require.NoError(t, err)
	verdict := CheckCapacity(w, []string{node}, Settings{})
	require.Equal(t, 2, verdict.Moving)
	require.Len(t, verdict.Unschedulable, 1)
	require.Equal(t, "shop/b", verdict.Unschedulable[0].Pod)
}
