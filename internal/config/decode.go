package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxValues     = 200_000 // values in one file, aliases counted each time: the bound against alias bombs
	maxMergeDepth = 8       // depth of << in <<: a bound on anchors that merge themselves
)

// decoder fills the configuration types from parsed YAML. Unlike the library's own
// decoder, which stops at the first error of a kind and has no paths, it collects
// every error with its path and line.
type decoder struct {
	lookup func(string) (string, bool)
	lines  map[string]int // path -> line
	errs   []FieldError
	values int
}

// decode decodes one YAML document. It returns what could be decoded, the line of each
// path, and the errors.
func decode(data []byte, lookup func(string) (string, bool)) (*Config, map[string]int, []FieldError) {
	d := &decoder{lookup: lookup, lines: map[string]int{}}
	cfg := &Config{}
	root, fieldErr := parse(data)
	if fieldErr != nil {
		return cfg, d.lines, []FieldError{*fieldErr}
	}
	if root != nil {
		d.value(root, reflect.ValueOf(cfg).Elem(), "")
	}
	return cfg, d.lines, d.errs
}

func (d *decoder) errorf(n *yaml.Node, path, format string, args ...any) {
	d.errs = append(d.errs, FieldError{Path: path, Line: n.Line, Message: fmt.Sprintf(format, args...)})
}

// value decodes one node into v; null leaves v as it is, like a missing key.
func (d *decoder) value(node *yaml.Node, v reflect.Value, path string) {
	if d.values++; d.values > maxValues {
		if d.values == maxValues+1 {
			d.errorf(node, path, "the file holds more than %d values", maxValues)
		}
		return
	}
	if _, known := d.lines[path]; !known {
		d.lines[path] = node.Line
	}
	n := node
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		into := reflect.New(v.Type().Elem())
		before := len(d.errs)
		d.value(n, into.Elem(), path)
		if len(d.errs) == before {
			v.Set(into)
		}
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.sequence(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.errorf(n, path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.errorf(n, path, "must be a block of keys: %s", strings.Join(yamlKeys(v.Type()), ", "))
		return
	}
	for _, e := range d.entries(n, path, 0) {
		fieldPath := join(path, e.key.Value)
		field, known := fieldFor(v, e.key.Value)
		if !known {
			names := yamlKeys(v.Type())
			if closest := closestName(e.key.Value, names); closest != "" {
				d.errorf(e.key, join(path, shorten(e.key.Value)), "unknown key, did you mean %q?", closest)
			} else {
				d.errorf(e.key, join(path, shorten(e.key.Value)), "unknown key; known here: %s", strings.Join(names, ", "))
			}
			continue
		}
		d.lines[fieldPath] = e.key.Line
		d.value(e.value, field, fieldPath)
	}
}

type entry struct{ key, value *yaml.Node }

// entries returns the keys of a mapping, then those of its << merges that it does not
// have itself.
func (d *decoder) entries(n *yaml.Node, path string, depth int) []entry {
	var own []entry
	var merges []*yaml.Node
	line := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch first, twice := line[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.errorf(key, path, "a key must be a plain name")
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case twice:
			d.errorf(key, join(path, shorten(key.Value)), "appears twice, first on line %d", first)
		default:
			line[key.Value] = key.Line
			own = append(own, entry{key, value})
		}
	}
	for _, merge := range merges {
		own = append(own, d.mergedEntries(merge, path, line, depth)...)
	}
	return own
}

// mergedEntries returns the keys of a << merge that are not in have, and adds them to it.
func (d *decoder) mergedEntries(n *yaml.Node, path string, have map[string]int, depth int) []entry {
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	var added []entry
	for _, at := range sources {
		source := at
		if source.Kind == yaml.AliasNode {
			source = source.Alias
		}
		if d.values++; source.Kind != yaml.MappingNode || depth >= maxMergeDepth || d.values > maxValues {
			d.errorf(at, path, "<< must name an anchor that holds keys and does not merge itself")
			return added
		}
		for _, e := range d.entries(source, path, depth+1) {
			if _, own := have[e.key.Value]; !own {
				have[e.key.Value] = e.key.Line
				added = append(added, e)
			}
		}
	}
	return added
}

// scalar decodes a single value. Errors quote the text of the file, never the value of
// an environment variable.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.errorf(n, path, "must be a single value")
		return
	}
	text, err := expand(n.Value, d.lookup)
	if err != nil {
		d.errorf(n, path, "%v", err)
		return
	}
	if v.Type() == reflect.TypeFor[Duration]() {
		parsed, err := parseDuration(text)
		if err != nil {
			d.errorf(n, path, "%v, not %q", err, shorten(n.Value))
		}
		v.SetInt(int64(parsed))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		switch text {
		case "true", "True", "TRUE":
			v.SetBool(true)
		case "false", "False", "FALSE":
			v.SetBool(false)
		default:
			d.errorf(n, path, "must be true or false, not %q", shorten(n.Value))
		}
	case reflect.Int, reflect.Int64:
		parsed, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			d.errorf(n, path, "must be a whole number, not %q", shorten(n.Value))
		}
		v.SetInt(parsed)
	default:
		panic("config: no decoding for " + v.Type().String()) // a new kind of field in types.go
	}
}

// yamlKeys returns the YAML keys of a configuration type, in the order of types.go.
func yamlKeys(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
	}
	return names
}

// fieldFor returns the field of v with a YAML key, and whether there is one.
func fieldFor(v reflect.Value, key string) (reflect.Value, bool) {
	for i, name := range yamlKeys(v.Type()) {
		if name == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// join returns the path of a key below another path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
