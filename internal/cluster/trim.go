package cluster

import (
	"maps"
	"slices"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim removes the fields that nothing here reads before an object is kept: a
// cluster's pods are most of the memory of a worker.
func trim(obj any) {
	if o, err := meta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *core.Pod:
		trimPod(o)
	case *core.Node:
		o.Status.Images = nil
	case *core.PersistentVolumeClaim:
		o.Annotations = nil
	case *core.PersistentVolume: // whose it is, and where it can be used
		o.Annotations, o.Spec, o.Status = nil, core.PersistentVolumeSpec{NodeAffinity: o.Spec.NodeAffinity, ClaimRef: o.Spec.ClaimRef}, core.PersistentVolumeStatus{}
	case *core.Event: // who could not create what, why and when
		*o = core.Event{ObjectMeta: o.ObjectMeta, InvolvedObject: o.InvolvedObject, Reason: o.Reason, Message: o.Message,
			EventTime: o.EventTime, LastTimestamp: o.LastTimestamp, Series: o.Series}
	case *apps.DaemonSet: // only its existence counts
		o.Spec, o.Status, o.Annotations = apps.DaemonSetSpec{}, apps.DaemonSetStatus{}, nil
	}
}

// Annotations by which the owner of a pod asks that it be left where it is.
const (
	AnnotationSafeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict" // "false": of the cluster autoscaler
	AnnotationDoNotDisrupt = "karpenter.sh/do-not-disrupt"                    // "true": of Karpenter
)

// keptAnnotations are the annotations of a pod that are read.
var keptAnnotations = []string{core.MirrorPodAnnotationKey, AnnotationSafeToEvict, AnnotationDoNotDisrupt}

// trimPod keeps identity, ownership, volumes, placement and requests.
func trimPod(pod *core.Pod) {
	maps.DeleteFunc(pod.Annotations, func(name, _ string) bool { return !slices.Contains(keptAnnotations, name) })
	trimContainers(pod.Spec.InitContainers)
	trimContainers(pod.Spec.Containers)
	pod.Spec.EphemeralContainers = nil
	for i, v := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].VolumeSource = core.VolumeSource{
			EmptyDir: v.EmptyDir, HostPath: v.HostPath, PersistentVolumeClaim: v.PersistentVolumeClaim, Ephemeral: trimEphemeral(v.Ephemeral),
		}
	}
}

func trimContainers(containers []core.Container) {
	for i, c := range containers {
		containers[i] = core.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
}

func trimEphemeral(source *core.EphemeralVolumeSource) *core.EphemeralVolumeSource {
	if source == nil {
		return nil
	}
	return &core.EphemeralVolumeSource{VolumeClaimTemplate: &core.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{}}}
}
