package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
)

// detach waits until the volumes of the pods that have left are detached: until
// then a pod that needs one cannot start elsewhere. It takes no longer than the
// settings and the deadline allow, and what is attached after that is a warning.
func (r *run) detach(ctx context.Context) error {
	if !r.settings.WaitForVolumeDetach {
		return nil
	}
	limit := time.Now().Add(r.settings.VolumeDetachTimeout)
	told := ""
	for {
		now := time.Now()
		volumes := r.attached()
		names := strings.Join(volumes, ", ")
		if len(volumes) == 0 || r.node() == nil {
			return nil
		}
		if told != names {
			told = names
			r.out.printf("waiting for volumes to be detached: %s", names)
		}
		if !now.Before(limit) {
			return r.stillAttached(names)
		}
		if err := r.wait(ctx, earliest(limit, r.report(now))); err != nil {
			if ctx.Err() == context.DeadlineExceeded {
				return r.stillAttached(names)
			}
			return err
		}
	}
}

func (r *run) stillAttached(names string) error {
	warning := fmt.Sprintf("volumes still attached to node %s after its pods have ended: %s", r.req.Node, names)
	r.warnings = append(r.warnings, warning)
	r.out.printf("%s", warning)
	return nil
}

// attached are the volumes attached to the node that no pod on it uses any more.
func (r *run) attached() (names []string) {
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

// claims are the names of the pod's volume claims; that of an ephemeral volume
// is the pod's name and the volume's.
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
