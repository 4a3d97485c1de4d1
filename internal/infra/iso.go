package infra

import (
	"regexp"
	"strings"
)

// versionWord is what stands for the version in the name of an ISO.
const versionWord = "{version}"

// ISO is the medium with the binaries of a Kubernetes version.
type ISO struct {
	Version string // such as 1.37.2
	Name    string // upgrade.iso: its name or ID in the infrastructure; empty = what the infrastructure has for the version
}

// name returns the name of the ISO of its version, or its ID; empty = none was given.
func (i ISO) name() string { return strings.ReplaceAll(i.Name, versionWord, i.Version) }

// isOfAVersion reports whether a name is that of the ISO of some version.
func (i ISO) isOfAVersion(name string) bool {
	before, after, several := strings.Cut(i.Name, versionWord)
	if !several {
		return i.Name != "" && name == i.Name
	}
	pattern := "^" + regexp.QuoteMeta(before) + `v?\d+\.\d+\.\d+[0-9A-Za-z.+-]*` + regexp.QuoteMeta(strings.ReplaceAll(after, versionWord, "")) + "$"
	return regexp.MustCompile(pattern).MatchString(name)
}
