package cluster

import (
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim drops what no decision needs before an object is kept: a cluster's pods
// are most of the memory of a worker.
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
	case *apps.DaemonSet: // only its existence counts
		o.Spec, o.Status, o.Annotations = apps.DaemonSetSpec{}, apps.DaemonSetStatus{}, nil
	}
}

// trimPod keeps identity, ownership, volumes, placement and requests.
func trimPod(pod *core.Pod) {
	mirror, isMirror := pod.Annotations[core.MirrorPodAnnotationKey]
	pod.Annotations = nil
	if isMirror {
		pod.Annotations = map[string]string{core.MirrorPodAnnotationKey: mirror}
	}
	trimContainers(pod.Spec.InitContainers)
	trimContainers(pod.Spec.Containers)
	pod.Spec.EphemeralContainers = nil
	for i, v := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].VolumeSource = core.VolumeSource{
			EmptyDir: v.EmptyDir, PersistentVolumeClaim: v.PersistentVolumeClaim, Ephemeral: trimEphemeral(v.Ephemeral),
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
