package config

import (
	"fmt"
	"slices"
	"strings"
)

// FieldError is one error in a configuration.
type FieldError struct {
	Path    string // of the field, such as clusters[1].ssh.identityFile; empty = the whole file
	Line    int    // in the file, from 1; 0 = not known
	Message string // what is wrong and what to do
}

// String returns the error on one line: "line 7: clusters[0].ssh.port: must be ...".
func (f FieldError) String() string {
	var parts []string
	if f.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", f.Line))
	}
	if f.Path != "" {
		parts = append(parts, f.Path)
	}
	return strings.Join(append(parts, f.Message), ": ")
}

// ValidationError is all errors of a configuration.
type ValidationError struct {
	File   string // empty = not read from a file
	Errors []FieldError
}

// Error returns the file and every error, one per line when there are several.
func (e *ValidationError) Error() string {
	name := e.File
	if name == "" {
		name = "configuration"
	}
	if len(e.Errors) == 1 {
		return name + ": " + e.Errors[0].String()
	}
	lines := []string{fmt.Sprintf("%s: %d faults", name, len(e.Errors))}
	for _, f := range e.Errors {
		lines = append(lines, "  "+f.String())
	}
	return strings.Join(lines, "\n")
}

// asError returns a *ValidationError, or nil when there are no errors.
func asError(file string, errs []FieldError) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b FieldError) int { return a.Line - b.Line })
	return &ValidationError{File: file, Errors: errs}
}
