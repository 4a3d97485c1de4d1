package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// D returns the duration as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String returns the shortest text that parses to the same duration: "5m", not "5m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalYAML writes the duration with its unit.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// UnmarshalYAML reads a duration with a unit; a bare number other than 0 is an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %s", n.Line, durationHelp)
	}
	parsed, err := parseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*d = parsed
	return nil
}

const durationHelp = "must be a duration such as 300s, 10m or 1h30m"

// parseDuration parses "300s". Its errors do not quote the text, which may come from an
// environment variable.
func parseDuration(text string) (Duration, error) {
	text = strings.TrimSpace(text)
	if parsed, err := time.ParseDuration(text); err == nil {
		return Duration(parsed), nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("a duration needs a unit: add s, m or h")
	}
	return 0, fmt.Errorf("%s", durationHelp)
}
