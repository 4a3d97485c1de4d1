package config

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong in a configuration.
type Fault struct {
	Path string // where in the tree, such as clusters[1].ssh.identityFile; empty = the file as a whole
	Line int    // line in the file, counted from 1; 0 = not known
	Text string // what is wrong and what to do
}

// String is the fault on one line: "line 7: clusters[0].ssh.port: must be ...".
func (f Fault) String() string {
	var parts []string
	if f.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", f.Line))
	}
	if f.Path != "" {
		parts = append(parts, f.Path)
	}
	return strings.Join(append(parts, f.Text), ": ")
}

// Error lists every fault of a configuration at once.
type Error struct {
	File   string // empty = not read from a file
	Faults []Fault
}

// Error names the file and each fault, one per line when there are several.
func (e *Error) Error() string {
	name := e.File
	if name == "" {
		name = "configuration"
	}
	if len(e.Faults) == 1 {
		return name + ": " + e.Faults[0].String()
	}
	lines := []string{fmt.Sprintf("%s: %d faults", name, len(e.Faults))}
	for _, f := range e.Faults {
		lines = append(lines, "  "+f.String())
	}
	return strings.Join(lines, "\n")
}

// faultsError is nil when there are no faults, so that it can be returned as it is.
func faultsError(file string, faults []Fault) error {
	if len(faults) == 0 {
		return nil
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return a.Line - b.Line })
	return &Error{File: file, Faults: faults}
}
