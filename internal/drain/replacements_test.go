package drain

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb/internal/operation"
)

// pending returns a pod that the scheduler has found no node for.
func pending(name, message string, change ...func(*core.Pod)) *core.Pod {
	p := newPod(name, change...)
	p.Spec.NodeName, p.Status = "", core.PodStatus{Phase: core.PodPending, Conditions: []core.PodCondition{
		{Type: core.PodScheduled, Status: core.ConditionFalse, Reason: core.PodReasonUnschedulable, Message: message}}}
	return p
}

// failedCreate returns the event of a ReplicaSet that could not create a pod.
func failedCreate(name, message string, ago time.Duration) *core.Event {
	return &core.Event{
		ObjectMeta:     meta.ObjectMeta{Namespace: "app", Name: name + ".1"},
		InvolvedObject: core.ObjectReference{Kind: "ReplicaSet", Namespace: "app", Name: name, UID: types.UID("uid-ReplicaSet" + name)},
		Reason:         "FailedCreate", Message: message, LastTimestamp: meta.NewTime(now.Add(-ago)),
	}
}

// What a budget needs and has does not tell why it does not recover.
func TestWhyABudgetDoesNotRecover(t *testing.T) {
	quota := `pods "web-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3`
	created := func(ago time.Duration) func(*core.Pod) {
		return func(p *core.Pod) { p.CreationTimestamp = meta.NewTime(now.Add(-ago)) }
	}
	other := func(p *core.Pod) { p.Labels = map[string]string{"app": "other"} }
	terminating := func(p *core.Pod) { p.DeletionTimestamp = &meta.Time{Time: now} }
	for name, c := range map[string]struct {
		around neighbourhood
		want   string
	}{
		"nothing is known":                  {neighbourhood{pods: []*core.Pod{newPod("a")}}, ""},
		"a replacement fits nowhere":        {neighbourhood{pods: []*core.Pod{newPod("a"), pending("b", "0/5 nodes are available:\n too small.")}}, "b is Pending: 0/5 nodes are available: too small."},
		"several":                           {neighbourhood{pods: []*core.Pod{pending("c", "x"), pending("b", "y"), pending("d", "z")}}, "b and 2 more are Pending: y"},
		"a pod of another budget":           {neighbourhood{pods: []*core.Pod{pending("b", "x", other)}}, ""},
		"a pod that is going":               {neighbourhood{pods: []*core.Pod{pending("b", "x", terminating)}}, ""},
		"a quota refuses it":                {neighbourhood{pods: []*core.Pod{newPod("a", created(time.Hour))}, failures: []*core.Event{failedCreate("web", "Error creating: "+quota, time.Minute)}}, "ReplicaSet web cannot create its replacement: Error creating: " + quota},
		"it has been created since":         {neighbourhood{pods: []*core.Pod{newPod("a", created(time.Second))}, failures: []*core.Event{failedCreate("web", quota, time.Minute)}}, ""},
		"another controller is refused":     {neighbourhood{pods: []*core.Pod{newPod("a")}, failures: []*core.Event{failedCreate("other", quota, time.Minute)}}, ""},
		"that is long ago":                  {neighbourhood{pods: []*core.Pod{newPod("a")}, failures: []*core.Event{failedCreate("web", quota, failureAge)}}, ""},
		"the newest of several":             {neighbourhood{pods: []*core.Pod{newPod("a")}, failures: []*core.Event{failedCreate("web", "new", time.Second), failedCreate("web", "old", time.Minute)}}, "ReplicaSet web cannot create its replacement: new"},
		"a message is cut":                  {neighbourhood{pods: []*core.Pod{pending("b", strings.Repeat("ä", 400))}}, "b is Pending: " + strings.Repeat("ä", wordsLimit) + " …"},
		"a message that the scheduler owes": {neighbourhood{pods: []*core.Pod{pending("b", "")}}, "b is Pending: Unschedulable"},
	} {
		t.Run(name, func(t *testing.T) {
			b := allowing("x", 0)
			b.selector = selectors{}.compile([]*policy.PodDisruptionBudget{b.PodDisruptionBudget})[0].selector
			got := blockedBy(newPod("a"), []pdb{b}, c.around, now)
			want := operation.BlockedPod{Pod: "app/a", Budget: "app/x", Reason: "needs 2 healthy pods and has 2"}
			if c.want != "" {
				want.Reason += "; " + c.want
				require.NotEmpty(t, got.Advice)
			}
			got.Advice = ""
			require.Equal(t, want, got)
		})
	}
}
