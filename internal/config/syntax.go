package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	located "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"go.yaml.in/yaml/v3"
)

// parse reads exactly one document; nil, nil is an empty one.
func parse(data []byte) (*yaml.Node, *Fault) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxFault(data, err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, &Fault{Line: second.Line, Text: "holds a second YAML document: everything goes into one"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxFault(data, err)
	}
	return doc.Content[0], nil
}

var (
	syntaxLine    = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.+)' referenced$`)
)

// syntaxFault says where the YAML is broken. yaml/v3 has the tree with the lines
// that the decoder needs, but for a syntax error it often names the line where
// the block begins, or none; the other parser names the line to look at.
func syntaxFault(data []byte, cause error) *Fault {
	line, text := 0, strings.TrimPrefix(cause.Error(), "yaml: ")
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits; one that overflows is no line
		text = m[2]
	}
	var syntax located.Error
	if m := unknownAnchor.FindStringSubmatch(text); m != nil {
		before, _, _ := bytes.Cut(data, []byte("*"+m[1]))
		line = bytes.Count(before, []byte("\n")) + 1
	} else if _, err := parser.ParseBytes(data, 0); errors.As(err, &syntax) && syntax.GetToken() != nil {
		line, text = syntax.GetToken().Position.Line, syntax.GetMessage()
	}
	return &Fault{Line: max(0, line), Text: "not valid YAML: " + cut(text, 200)}
}
