package drain

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"ebb/internal/operation"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	kubectl "k8s.io/kubectl/pkg/drain"
)

// kinds are the pods that the filters treat differently.
var kinds = map[string]func(*core.Pod){
	"plain":   func(*core.Pod) {},
	"bare":    func(p *core.Pod) { p.OwnerReferences = nil },
	"pending": func(p *core.Pod) { p.Status.Phase = core.PodPending },
	"mirror": func(p *core.Pod) {
		p.Annotations = map[string]string{core.MirrorPodAnnotationKey: "x"}
		p.OwnerReferences = nil
	},
	"daemon":       func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")} },
	"orphan":       func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "lost")} },
	"emptydir":     emptyDir,
	"bareemptydir": func(p *core.Pod) { emptyDir(p); p.OwnerReferences = nil },
	"daemonempty": func(p *core.Pod) {
		emptyDir(p)
		p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")}
	},
	"finished":    func(p *core.Pod) { p.Status.Phase, p.OwnerReferences = core.PodSucceeded, nil },
	"failedempty": func(p *core.Pod) { emptyDir(p); p.Status.Phase = core.PodFailed },
	"finisheddaemon": func(p *core.Pod) {
		p.Status.Phase, p.OwnerReferences = core.PodFailed, []meta.OwnerReference{controller("DaemonSet", "agent")}
	},
	"foreign daemon": func(p *core.Pod) { // another project's DaemonSet is a controller like any other
		emptyDir(p)
		p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "lost")}
		p.OwnerReferences[0].APIVersion = "example.com/v1"
	},
	"job": func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("Job", "batch")} },
}

func emptyDir(p *core.Pod) {
	p.Spec.Volumes = []core.Volume{{Name: "tmp", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
}

// TestActionIsKubectls compares the action for each kind of pod with what kubectl's
// own helper does with an API server.
func TestActionIsKubectls(t *testing.T) {
	exists := func(_, name string) bool { return name == "agent" }
	for _, force := range []bool{false, true} {
		for _, deleteEmptyDir := range []bool{false, true} {
			for kind, shape := range kinds {
				t.Run(fmt.Sprintf("%s force=%v deleteEmptyDir=%v", kind, force, deleteEmptyDir), func(t *testing.T) {
					pod := newPod(kind, shape)
					helper := kubectl.Helper{
						Ctx: context.Background(), Client: fake.NewClientset(pod.DeepCopy(), agentDaemonSet()), Force: force,
						DeleteEmptyDirData: deleteEmptyDir, IgnoreAllDaemonSets: true, Out: io.Discard, ErrOut: io.Discard,
					}
					list, errs := helper.GetPodsForDeletion(node)
					want := ignore
					if len(list.Pods()) > 0 {
						want = evict
					}
					if len(errs) > 0 {
						want = forbid
					}
					settings := Settings{Force: force, DeleteEmptyDir: deleteEmptyDir}
					require.Equal(t, want, actionFor(pod, settings, exists))
				})
			}
		}
	}
}

func TestTerminatingPodsNeedNoFlag(t *testing.T) {
	now := meta.NewTime(time.Unix(1, 0))
	never := func(_, _ string) bool { return true }
	for kind, want := range map[string]action{"bareemptydir": evict, "daemon": ignore, "mirror": ignore} {
		pod := newPod(kind, kinds[kind])
		pod.DeletionTimestamp = &now
		require.Equal(t, want, actionFor(pod, Settings{}, never), kind)
	}
}

func TestWhyForbiddenNamesTheSetting(t *testing.T) {
	require.Equal(t, "drain.force", settingIn(whyForbidden(newPod("a", kinds["bare"]), Settings{})))
	require.Equal(t, "drain.force", settingIn(whyForbidden(newPod("a", kinds["orphan"]), Settings{})))
	require.Equal(t, "drain.deleteEmptyDir", settingIn(whyForbidden(newPod("a", kinds["bareemptydir"]), Settings{})))
	require.Equal(t, "drain.force", settingIn(whyForbidden(newPod("a", kinds["bareemptydir"]), Settings{DeleteEmptyDir: true})))
	require.Equal(t, "drain.deleteEmptyDir", settingIn(whyForbidden(newPod("a", kinds["foreign daemon"]), Settings{})))
}

func settingIn(b operation.BlockedPod) string {
	var setting, rest string
	if n, err := fmt.Sscanf(b.Advice, "set %s true %s", &setting, &rest); err != nil || n < 2 {
		return ""
	}
	return setting[:len(setting)-1]
}
