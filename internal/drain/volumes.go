package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"ebb/internal/cluster"
)

// detachLimit returns until when the volumes of the pods that have left are waited for.
func (s snapshot) detachLimit() time.Time { return s.emptied.Add(s.settings.VolumeDetachTimeout) }

// detached returns the verdict on a node whose pods have left: it goes on until their
// volumes are detached, because a pod that needs one cannot start elsewhere before. It
// takes no longer than the settings and the deadline allow, and what is attached after
// that is a warning.
func (s snapshot) detached(now time.Time) verdict {
	if !s.waitsForVolumes() {
		return verdict{outcome: done}
	}
	if now.Before(s.detachLimit()) && now.Before(s.deadline) {
		return verdict{}
	}
	return verdict{outcome: done, warning: fmt.Sprintf("volumes still attached to node %s after its pods have ended: %s",
		s.name, strings.Join(s.volumes, ", "))}
}

// waitsForVolumes reports whether volumes have to be detached before the drain is done.
func (s snapshot) waitsForVolumes() bool {
	return s.settings.WaitForVolumeDetach && len(s.volumes) > 0 && s.node != nil
}

// unusedVolumes returns the volumes attached to the node that no pod on it uses.
func (r *run) unusedVolumes() (names []string) {
	used := map[string]bool{}
	for _, p := range r.watch.PodsOn(r.req.Node) {
		if ours := r.pods[p.UID]; ours != nil && ours.gone {
			continue // the watch is behind
		}
		for _, claim := range claims(p) {
			used[r.watch.ClaimedVolume(p.Namespace, claim)] = true
		}
	}
	for _, a := range r.watch.Attachments(r.req.Node) {
		if volume := a.Spec.Source.PersistentVolumeName; volume != nil && !used[*volume] {
			names = append(names, *volume)
		}
	}
	slices.Sort(names)
	return names
}

// claims returns the names of the pod's volume claims; that of an ephemeral volume is the
// pod's name and the volume's.
func claims(pod *core.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

// Attached returns the volumes that are attached to a node and that its machine may not be
// destroyed with, each with the pods that use it. Those that only pods use which stay on
// the node for as long as it is there, as those of DaemonSets, are none of them.
func Attached(w *cluster.Watch, node string, s Settings) (names []string) {
	users, staying := map[string][]string{}, map[string]bool{}
	for _, p := range w.PodsOn(node) {
		for _, claim := range claims(p) {
			volume := w.ClaimedVolume(p.Namespace, claim)
			if actionFor(p, s, w.DaemonSetExists) == ignore {
				staying[volume] = true
			} else {
				users[volume] = append(users[volume], podName(p))
			}
		}
	}
	for _, a := range w.Attachments(node) {
		volume := a.Spec.Source.PersistentVolumeName
		switch {
		case volume == nil, staying[*volume] && len(users[*volume]) == 0:
		case len(users[*volume]) > 0:
			slices.Sort(users[*volume])
			names = append(names, fmt.Sprintf("%s (used by %s)", *volume, strings.Join(users[*volume], ", ")))
		default:
			names = append(names, *volume)
		}
	}
	slices.Sort(names)
	return names
}
