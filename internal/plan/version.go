package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// ParseVersion reads a Kubernetes version with or without its "v".
func ParseVersion(s string) (*semver.Version, error) {
	v, err := semver.StrictNewVersion(strings.TrimPrefix(strings.TrimSpace(s), "v"))
	if err != nil {
		return nil, fmt.Errorf("version %q: want MAJOR.MINOR.PATCH, for example 1.37.2: %w", s, err)
	}
	return v, nil
}

// Canonical is the version without "v" and without build metadata, or s itself
// when it is no version.
func Canonical(s string) string {
	v, err := ParseVersion(s)
	if err != nil {
		return s
	}
	return canonical(v)
}

func canonical(v *semver.Version) string {
	text := fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
	if pre := v.Prerelease(); pre != "" {
		text += "-" + pre
	}
	return text
}

// SameVersion reports whether two versions are the same release. Build metadata
// (+vendor.1) says who built it, not what it is, and is ignored; everything else
// is exact: 1.28.1 is not 1.28.10. Two strings that are no versions are never the same.
func SameVersion(a, b string) bool {
	va, errA := ParseVersion(a)
	vb, errB := ParseVersion(b)
	return errA == nil && errB == nil && va.Equal(vb)
}

// PrintsVersion reports whether a line of a command's output ends in exactly
// this version. It goes line by line because the output of a remote command may
// have stderr mixed in, for example a warning of sudo.
func PrintsVersion(output, version string) bool {
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) > 0 && SameVersion(fields[len(fields)-1], version) {
			return true
		}
	}
	return false
}

// CheckStep says whether a cluster may go from current to target in one
// upgrade. Kubernetes supports one minor version at a time and no downgrade
// (kubeadm's version skew policy); a refusal says which hops to take.
func CheckStep(current, target string) error {
	from, err := ParseVersion(current)
	if err != nil {
		return err
	}
	to, err := ParseVersion(target)
	if err != nil {
		return err
	}
	switch {
	case to.Equal(from):
		return refuse("the cluster is at %s already", Canonical(current))
	case to.LessThan(from):
		return refuse("%s is older than the cluster's %s: kubeadm does not downgrade", Canonical(target), Canonical(current))
	case to.Major() != from.Major():
		return refuse("%s to %s changes the major version", Canonical(current), Canonical(target))
	case to.Minor() > from.Minor()+1:
		return refuse("%s to %s skips a minor version: upgrade one minor at a time, %s; or let one operation take the hops (--hops)", Canonical(current), Canonical(target), hops(from, to))
	}
	return nil
}

// hops names the stations between two minors: "1.35.x, then 1.36.x, then 1.37.2".
func hops(from, to *semver.Version) string {
	var stations []string
	for minor := from.Minor() + 1; minor < to.Minor(); minor++ {
		stations = append(stations, fmt.Sprintf("%d.%d.x", from.Major(), minor))
	}
	return strings.Join(append(stations, canonical(to)), ", then ")
}

// CheckRoute checks the versions an upgrade stops at and its target: each a
// version, each one step after the one before. The error is a *Refusal.
func CheckRoute(hops []string, target string) error {
	before := ""
	for _, station := range append(slices.Clone(hops), target) {
		if _, err := ParseVersion(station); err != nil {
			return refuse("%v", err)
		}
		if before != "" {
			if err := CheckStep(before, station); err != nil {
				return refuse("hop %s to %s: %v", Canonical(before), Canonical(station), err)
			}
		}
		before = station
	}
	return nil
}
