package policy

import (
	"fmt"
	"strings"

	"ebb/internal/version"
)

// CheckStep says whether a cluster may go from current to target in one
// upgrade. Kubernetes supports one minor version at a time and no downgrade
// (kubeadm's version skew policy). The error is a *Refusal; it says which hops to take.
func CheckStep(current, target version.Version) error {
	for _, v := range []version.Version{current, target} {
		if err := v.Check(); err != nil {
			return refuse("%v", err)
		}
	}
	fromMajor, fromMinor, _ := current.Minor()
	toMajor, toMinor, _ := target.Minor()
	switch {
	case target == current:
		return refuse("the cluster is at %s already", current)
	case current.Newer(target):
		return refuse("%s is older than the cluster's %s: kubeadm does not downgrade", target, current)
	case toMajor != fromMajor:
		return refuse("%s to %s changes the major version", current, target)
	case toMinor > fromMinor+1:
		return refuse("%s to %s skips a minor version: upgrade one minor at a time, %s; or let one operation take the hops (--hops)", current, target, missingHops(current, target))
	}
	return nil
}

// missingHops names the versions between two minors: "1.35.x, then 1.36.x, then 1.37.2".
func missingHops(current, target version.Version) string {
	major, from, _ := current.Minor()
	_, to, _ := target.Minor()
	var hops []string
	for minor := from + 1; minor < to; minor++ {
		hops = append(hops, fmt.Sprintf("%d.%d.x", major, minor))
	}
	return strings.Join(append(hops, string(target)), ", then ")
}

// CheckRoute checks the hops of an upgrade and its target: each a version, each one
// step after the one before. The error is a *Refusal.
func CheckRoute(r version.Route) error {
	stops := r.Stops()
	for i, stop := range stops {
		if err := stop.Check(); err != nil {
			return refuse("%v", err)
		}
		if i == 0 {
			continue
		}
		if err := CheckStep(stops[i-1], stop); err != nil {
			return refuse("hop %s to %s: %v", stops[i-1], stop, err)
		}
	}
	return nil
}
