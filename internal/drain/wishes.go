package drain

import (
	"fmt"
	"strings"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
)

// labelDrain is Cluster API's label for pods that a drain treats differently; its values
// are compared without regard to case, as Cluster API does.
const (
	labelDrain         = "cluster.x-k8s.io/drain"
	drainSkip          = "skip"           // neither evicted nor waited for
	drainWaitCompleted = "wait-completed" // not evicted, and waited for until it has completed
)

// stays reports whether the pod's label asks a drain to leave it on the node.
func stays(pod *core.Pod) bool { return strings.EqualFold(pod.Labels[labelDrain], drainSkip) }

// whyAwaited returns why a pod is waited for until it completes instead of evicted; "" when
// it is not.
func whyAwaited(pod *core.Pod, s Settings) string {
	switch {
	case strings.EqualFold(pod.Labels[labelDrain], drainWaitCompleted):
		return "label " + labelDrain + ": " + drainWaitCompleted
	case s.WaitForJobs && jobOf(pod) != "":
		return "drain.jobs: wait"
	}
	return ""
}

// awaited returns what is said of a pod that runs to completion.
func awaited(pod *core.Pod, s Settings) string {
	return "it runs to completion and is waited for (" + whyAwaited(pod, s) + "); raise drain.timeout if it needs longer"
}

// jobOf returns the name of the Job that a pod belongs to; "" when it belongs to none.
func jobOf(pod *core.Pod) string {
	owner := meta.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Job" || !strings.HasPrefix(owner.APIVersion, batch.GroupName+"/") {
		return ""
	}
	return owner.Name
}

// finished reports whether a pod has completed or failed.
func finished(pod *core.Pod) bool {
	return pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
}

// wish returns the annotation by which the owner of a pod asks that it be left alone; ""
// when there is none. A drain that was asked for by a person evicts the pod all the same,
// as kubectl drain does, but says so before.
func wish(pod *core.Pod) string {
	for _, a := range []struct{ name, value string }{{cluster.AnnotationSafeToEvict, "false"}, {cluster.AnnotationDoNotDisrupt, "true"}} {
		if pod.Annotations[a.name] == a.value {
			return fmt.Sprintf("%s: %q", a.name, a.value)
		}
	}
	return ""
}
