package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb/internal/cluster"
	"ebb/internal/operation"
)

func labelled(value string) func(*core.Pod) {
	return func(p *core.Pod) { p.Labels[labelDrain] = value }
}

func ofJob(p *core.Pod) {
	p.OwnerReferences = []meta.OwnerReference{controller("Job", "migrate")}
	p.OwnerReferences[0].APIVersion = "batch/v1"
}

func terminatingPod(p *core.Pod) { at := meta.NewTime(now); p.DeletionTimestamp = &at }

func completed(p *core.Pod) { p.Status.Phase = core.PodSucceeded }

func TestActionOfLabelsAndJobs(t *testing.T) {
	exists := func(_, _ string) bool { return true }
	waits := Settings{WaitForJobs: true}
	for name, c := range map[string]struct {
		pod      *core.Pod
		settings Settings
		want     action
	}{
		"skip":                               {newPod("a", labelled("skip")), Settings{}, ignore},
		"skip in another case":               {newPod("a", labelled("Skip")), Settings{}, ignore},
		"skip of a bare pod":                 {newPod("a", labelled("skip"), func(p *core.Pod) { p.OwnerReferences = nil }), Settings{}, ignore},
		"another value":                      {newPod("a", labelled("drain")), Settings{}, evict},
		"wait-completed":                     {newPod("a", labelled("wait-completed")), Settings{}, await},
		"wait-completed of a bare pod":       {newPod("a", labelled("wait-completed"), func(p *core.Pod) { p.OwnerReferences = nil }), Settings{}, await},
		"wait-completed that has completed":  {newPod("a", labelled("wait-completed"), completed), Settings{}, evict},
		"wait-completed that is terminating": {newPod("a", labelled("wait-completed"), terminatingPod), Settings{}, evict},
		"a Job":                              {newPod("a", ofJob), Settings{}, evict},
		"a Job that is waited for":           {newPod("a", ofJob), waits, await},
		"a Job that has completed":           {newPod("a", ofJob, completed), waits, evict},
		"a Job of another project":           {newPod("a", ofJob, func(p *core.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }), waits, evict},
		"another controller":                 {newPod("a"), waits, evict},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, actionFor(c.pod, c.settings, exists)) })
	}
}

// What runs to completion is waited for while the others go, and critical pods stay until
// it has completed.
func TestNextWaitsForWhatRunsToCompletion(t *testing.T) {
	s := situation(tracked("batch", func(p *pod) { labelled("wait-completed")(p.Pod) }), tracked("dns", isCritical), tracked("web"))
	d := next(s, now)
	require.Equal(t, goOn, d.verdict.outcome)
	require.Len(t, d.evict, 1)
	require.EqualValues(t, "uid-web", d.evict[0].pod)
	require.Contains(t, s.remaining(now)[0].String(), "app/batch: it runs to completion and is waited for (label cluster.x-k8s.io/drain: wait-completed)")
}

func TestJobCompletesBeforeTheNodeIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("migrate-x", ofJob), newPod("pinned", labelled("skip")))
		go func() {
			time.Sleep(20 * time.Second)
			s.locked(func() {
				p := s.pod("app", "migrate-x")
				completed(p)
				s.put(podsResource, p)
			})
		}()
		result, _, err := s.drain(t.Context(), func(r *Request) { r.Settings.WaitForJobs = true })
		require.NoError(t, err)
		s.requireEvictedOnce("a", "migrate-x")
		require.Equal(t, 20*time.Second+deleteDelay, result.Took)
		require.Contains(t, result.Output, "app/migrate-x: it runs to completion and is waited for (drain.jobs: wait)")
	})
}

// forecastOf returns the forecast of a drain of the node in a cluster of these objects, as
// a watch shows them.
func forecastOf(t *testing.T, s Settings, pods ...*core.Pod) Forecast {
	t.Helper()
	client := fake.NewClientset(cordonedNode(), agentDaemonSet(), budget("none", maxUnavailable(0)))
	for _, p := range pods {
		require.NoError(t, client.Tracker().Add(p))
	}
	c := cluster.New("test", client, nil, zap.NewNop())
	t.Cleanup(c.Close)
	w, err := c.Watch(t.Context())
	require.NoError(t, err)
	return NewForecaster(w, s).Node(node)
}

func TestForecast(t *testing.T) {
	other := func(p *core.Pod) { p.Labels = map[string]string{"app": "other"} } // no budget selects it
	bare := func(p *core.Pod) { p.OwnerReferences = nil }
	annotated := func(name, value string) func(*core.Pod) {
		return func(p *core.Pod) { p.Annotations = map[string]string{name: value, "unread": "x"} }
	}
	of := func(owner string) func(*core.Pod) {
		return func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("ReplicaSet", owner)} }
	}
	elsewhere := func(p *core.Pod) { p.Spec.NodeName = "w9" }
	data := func(p *core.Pod) {
		p.Spec.Volumes = []core.Volume{{Name: "data", VolumeSource: core.VolumeSource{HostPath: &core.HostPathVolumeSource{Path: "/var/data"}}}}
	}
	for name, c := range map[string]struct {
		settings    Settings
		pods        []*core.Pod
		risks       []string
		objections  []string
		blocked     []string
		moves, wait int
	}{
		"hostPath":       {pods: []*core.Pod{newPod("a", other, data), newPod("b", other, elsewhere)}, moves: 1, risks: []string{"app/a leaves data behind on the node (hostPath /var/data)"}},
		"safe-to-evict":  {pods: []*core.Pod{newPod("a", other, annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")), newPod("b", other, elsewhere)}, moves: 1, objections: []string{`app/a on w1: its owner asks that it be left alone (cluster-autoscaler.kubernetes.io/safe-to-evict: "false")`}},
		"do-not-disrupt": {pods: []*core.Pod{newPod("a", other, annotated("karpenter.sh/do-not-disrupt", "true")), newPod("b", other, elsewhere)}, moves: 1, objections: []string{`app/a on w1: its owner asks that it be left alone (karpenter.sh/do-not-disrupt: "true")`}},
		"may be evicted": {pods: []*core.Pod{newPod("a", other, annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "true")), newPod("b", other, elsewhere)}, moves: 1},
		"a Job":          {pods: []*core.Pod{newPod("a", other, ofJob)}, moves: 1, risks: []string{"app/a of Job migrate is evicted and its work starts over elsewhere (drain.jobs: wait lets it complete)"}},
		"a Job that is waited for": {settings: Settings{WaitForJobs: true}, pods: []*core.Pod{newPod("a", other, ofJob)}, wait: 1,
			risks: []string{"app/a: it runs to completion and is waited for (drain.jobs: wait); raise drain.timeout if it needs longer"}},
		"skip":     {pods: []*core.Pod{newPod("a", other, labelled("skip"))}, risks: []string{"app/a stays on the node (label cluster.x-k8s.io/drain: skip)"}},
		"one only": {pods: []*core.Pod{newPod("a", other)}, moves: 1, risks: []string{"app/a is the only pod of ReplicaSet web: it is down until it runs elsewhere"}},
		"all on one node": {pods: []*core.Pod{newPod("a", other), newPod("b", other), newPod("c", other, of("spread")), newPod("d", other, of("spread"), elsewhere)}, moves: 3,
			objections: []string{"ReplicaSet app/web on w1: all its 2 pods are on this node, and no budget keeps one running while they move"}},
		"bare, forbidden": {pods: []*core.Pod{newPod("a", other, bare)}, moves: 1, blocked: []string{"app/a: it has no controller, nothing would create it again (set drain.force: true to evict it, or delete it)"}},
		"bare, forced":    {settings: Settings{Force: true}, pods: []*core.Pod{newPod("a", other, bare)}, moves: 1, objections: []string{"app/a on w1: no controller creates it again: it is lost"}},
		"a budget that allows nothing": {pods: []*core.Pod{newPod("a"), newPod("b", elsewhere)}, moves: 1,
			blocked: []string{"app/a blocked by budget app/none: the disruption controller has not worked it out yet"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := forecastOf(t, c.settings, c.pods...)
			var objections, blocked []string
			for _, o := range f.Objections {
				objections = append(objections, o.String())
			}
			for _, b := range f.Blocked {
				blocked = append(blocked, b.String())
			}
			require.Equal(t, c.risks, f.Risks)
			require.Equal(t, c.objections, objections)
			require.Equal(t, c.blocked, blocked)
			require.Equal(t, []int{c.moves, c.wait}, []int{f.Moves, f.Waits})
		})
	}
}

func TestReportPutsOneReasonOnOneLine(t *testing.T) {
	f := Forecast{Node: "w2", Objections: []Objection{{Subject: "app/z on w2", Reason: reasonBare}}, Blocked: []operation.BlockedPod{
		{Pod: "app/a", Budget: "app/none", Reason: "needs 3 healthy pods and has 3", Advice: "raise it"},
		{Pod: "app/b", Budget: "app/none", Reason: "needs 3 healthy pods and has 3", Advice: "raise it"},
	}}
	require.Equal(t, []string{
		"app/a on w2, app/b on w2: blocked by budget app/none: needs 3 healthy pods and has 3 (raise it)",
		"app/z on w2: no controller creates it again: it is lost",
	}, Report(f.AllObjections()))
}
