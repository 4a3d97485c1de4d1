package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	goccyyaml "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"go.yaml.in/yaml/v3"
)

// parse returns the root of the only document in data; nil, nil when it is empty.
func parse(data []byte) (*yaml.Node, *FieldError) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, nextDoc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(data, err)
	}
	switch err := dec.Decode(&nextDoc); {
	case err == nil:
		return nil, &FieldError{Line: nextDoc.Line, Message: "holds a second YAML document: everything goes into one"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(data, err)
	}
	return doc.Content[0], nil
}

var (
	syntaxLine    = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.+)' referenced$`)
)

// syntaxError returns the error for YAML that does not parse. yaml/v3, which gives the
// decoder its tree, often has the line where the block begins, or none; the other
// parser has the line of the error.
func syntaxError(data []byte, cause error) *FieldError {
	line, text := 0, strings.TrimPrefix(cause.Error(), "yaml: ")
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits; one that overflows is no line
		text = m[2]
	}
	var goccyErr goccyyaml.Error
	if m := unknownAnchor.FindStringSubmatch(text); m != nil {
		before, _, _ := bytes.Cut(data, []byte("*"+m[1]))
		line = bytes.Count(before, []byte("\n")) + 1
	} else if _, err := parser.ParseBytes(data, 0); errors.As(err, &goccyErr) && goccyErr.GetToken() != nil {
		line, text = goccyErr.GetToken().Position.Line, goccyErr.GetMessage()
	}
	return &FieldError{Line: max(0, line), Message: "not valid YAML: " + truncate(text, 200)}
}
