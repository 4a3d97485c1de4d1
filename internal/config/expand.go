package config

import (
	"fmt"
	"regexp"
	"strings"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand returns text with ${NAME} replaced by the variable's value and $$ by a dollar
// sign; other dollar signs stay. It is applied to values after the YAML is parsed, so
// that a variable cannot add keys.
func expand(text string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{"):
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed {
				return "", fmt.Errorf("${ has no closing }; write $$ for a dollar sign")
			}
			if !envName.MatchString(name) {
				return "", fmt.Errorf("${%s} is not the name of an environment variable; write $$ for a dollar sign", shorten(name))
			}
			value, set := lookup(name)
			if !set {
				return "", fmt.Errorf("environment variable %s is not set", name)
			}
			out.WriteString(value)
			text = after
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// escape returns what expands to text.
func escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// shorten returns at most 40 characters of a value, for an error message.
func shorten(text string) string { return truncate(text, 40) }

// truncate returns at most that many characters of text, with an ellipsis when it is cut.
func truncate(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
