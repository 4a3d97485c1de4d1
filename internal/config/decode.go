package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxNodes = 200_000 // values in one file, aliases counted each time: a bound on alias bombs
	maxMerge = 8       // depth of << in <<: a bound on anchors that merge themselves
)

// decoder fills the configuration types from parsed YAML. The library's own
// decoder stops at the first fault of a kind and knows no paths; this one
// collects every fault with its path and line.
type decoder struct {
	lookup func(string) (string, bool)
	lines  map[string]int // path -> line
	faults []Fault
	nodes  int
}

// decode reads one YAML document. It returns what it could read, the line of each path, and the faults.
func decode(data []byte, lookup func(string) (string, bool)) (*Config, map[string]int, []Fault) {
	d := &decoder{lookup: lookup, lines: map[string]int{}}
	cfg := &Config{}
	root, fault := parse(data)
	if fault != nil {
		return cfg, d.lines, []Fault{*fault}
	}
	if root != nil {
		d.value(root, reflect.ValueOf(cfg).Elem(), "")
	}
	return cfg, d.lines, d.faults
}

func (d *decoder) fault(n *yaml.Node, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{Path: path, Line: n.Line, Text: fmt.Sprintf(format, args...)})
}

// value decodes one node; a null leaves v as it is, like a key that is not there.
func (d *decoder) value(at *yaml.Node, v reflect.Value, path string) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fault(at, path, "the file holds more than %d values", maxNodes)
		}
		return
	}
	if _, known := d.lines[path]; !known {
		d.lines[path] = at.Line
	}
	n := at
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		into := reflect.New(v.Type().Elem())
		before := len(d.faults)
		d.value(n, into.Elem(), path)
		if len(d.faults) == before {
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
		d.fault(n, path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, path, "must be a block of keys: %s", strings.Join(keys(v.Type()), ", "))
		return
	}
	for _, e := range d.entries(n, path, 0) {
		where := join(path, e.key.Value)
		field, known := fieldFor(v, e.key.Value)
		if !known {
			names := keys(v.Type())
			if near := suggest(e.key.Value, names); near != "" {
				d.fault(e.key, join(path, brief(e.key.Value)), "unknown key, did you mean %q?", near)
			} else {
				d.fault(e.key, join(path, brief(e.key.Value)), "unknown key; known here: %s", strings.Join(names, ", "))
			}
			continue
		}
		d.lines[where] = e.key.Line
		d.value(e.value, field, where)
	}
}

type entry struct{ key, value *yaml.Node }

// entries are the keys of a mapping, then those of its << merges that it does not have itself.
func (d *decoder) entries(n *yaml.Node, path string, depth int) []entry {
	var own []entry
	var merges []*yaml.Node
	line := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch first, twice := line[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.fault(key, path, "a key must be a plain name")
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case twice:
			d.fault(key, join(path, brief(key.Value)), "appears twice, first on line %d", first)
		default:
			line[key.Value] = key.Line
			own = append(own, entry{key, value})
		}
	}
	for _, merge := range merges {
		own = append(own, d.merged(merge, path, line, depth)...)
	}
	return own
}

func (d *decoder) merged(n *yaml.Node, path string, have map[string]int, depth int) []entry {
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
		if d.nodes++; source.Kind != yaml.MappingNode || depth >= maxMerge || d.nodes > maxNodes {
			d.fault(at, path, "<< must name an anchor that holds keys and does not merge itself")
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

// scalar decodes a single value. Errors show the text of the file, never what a variable expanded to.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fault(n, path, "must be a single value")
		return
	}
	text, err := expand(n.Value, d.lookup)
	if err != nil {
		d.fault(n, path, "%v", err)
		return
	}
	if v.Type() == reflect.TypeFor[Duration]() {
		parsed, err := parseDuration(text)
		if err != nil {
			d.fault(n, path, "%v, not %q", err, brief(n.Value))
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
			d.fault(n, path, "must be true or false, not %q", brief(n.Value))
		}
	case reflect.Int, reflect.Int64:
		parsed, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			d.fault(n, path, "must be a whole number, not %q", brief(n.Value))
		}
		v.SetInt(parsed)
	default:
		panic("config: no decoding for " + v.Type().String()) // a new kind of field in types.go
	}
}

// keys are the YAML keys of a configuration type, in the order of types.go.
func keys(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
	}
	return names
}

func fieldFor(v reflect.Value, key string) (reflect.Value, bool) {
	for i, name := range keys(v.Type()) {
		if name == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
