// Package version holds Kubernetes versions, and routes of upgrades over several
// of them, in one spelling each: read once at the edge, equal when they are the same.
package version

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Version is a Kubernetes version as MAJOR.MINOR.PATCH, with a pre-release where it
// has one, without "v" and without build metadata: that (+vendor.1) says who built
// it and not what it is. Two versions are the same release when they are equal:
// 1.28.1 is not 1.28.10. Text that is no version, for a kubelet may report
// anything, is kept as it is and is neither newer nor older than any other.
type Version string

// Parse reads a version with or without its "v".
func Parse(s string) (Version, error) {
	v, err := semver.StrictNewVersion(strings.TrimPrefix(strings.TrimSpace(s), "v"))
	if err != nil {
		return "", fmt.Errorf("version %q: want MAJOR.MINOR.PATCH, for example 1.37.2: %w", s, err)
	}
	text := fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
	if pre := v.Prerelease(); pre != "" {
		text += "-" + pre
	}
	return Version(text), nil
}

// Of returns the version that s spells, or s itself where it spells none.
func Of(s string) Version {
	v, err := Parse(s)
	if err != nil {
		return Version(s)
	}
	return v
}

// Each returns Of for each of a list; nil for none.
func Each(list []string) (versions []Version) {
	for _, s := range list {
		versions = append(versions, Of(s))
	}
	return versions
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes any text, as Of does.
func (v *Version) UnmarshalText(text []byte) error {
	*v = Of(string(text))
	return nil
}

// Check returns an error when v is no version.
func (v Version) Check() error {
	_, err := Parse(string(v))
	return err
}

// Newer reports whether v is a later version than other. When one of them is no
// version it is not.
func (v Version) Newer(other Version) bool {
	a, errA := semver.StrictNewVersion(string(v))
	b, errB := semver.StrictNewVersion(string(other))
	return errA == nil && errB == nil && a.GreaterThan(b)
}

// Minor returns the major and the minor version, and whether v is a version.
func (v Version) Minor() (major, minor uint64, ok bool) {
	parsed, err := semver.StrictNewVersion(string(v))
	if err != nil {
		return 0, 0, false
	}
	return parsed.Major(), parsed.Minor(), true
}

// EndsLine reports whether a line of a command's output ends in exactly this
// version. It goes line by line because the output of a remote command may have
// stderr mixed in, for example a warning of sudo.
func (v Version) EndsLine(output string) bool {
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) > 0 && Of(fields[len(fields)-1]) == v {
			return true
		}
	}
	return false
}

// Route is the way of an upgrade: the versions that it stops at, one minor apart,
// and its target.
type Route struct {
	Hops   []Version `json:"hops,omitempty"`
	Target Version   `json:"target,omitempty"`
}

// Stops returns the hops and, last, the target.
func (r Route) Stops() []Version { return append(slices.Clone(r.Hops), r.Target) }

// From returns what is left of the route when next comes first. A version that is
// not on the route leaves nothing but the target.
func (r Route) From(next Version) Route {
	i := slices.Index(r.Hops, next)
	if i < 0 {
		return Route{Target: r.Target}
	}
	return Route{Hops: r.Hops[i:], Target: r.Target}
}

// Equal reports whether two routes are the same.
func (r Route) Equal(other Route) bool {
	return r.Target == other.Target && slices.Equal(r.Hops, other.Hops)
}

// Strings returns the versions of a list as text; nil for none.
func Strings(list []Version) (texts []string) {
	for _, v := range list {
		texts = append(texts, string(v))
	}
	return texts
}
