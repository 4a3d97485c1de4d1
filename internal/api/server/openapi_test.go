package server

import (
	"encoding/json"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"ebb/internal/api/wire"
)

type object = map[string]any

var parsedDocument = sync.OnceValue(func() object {
	var doc object
	if err := yaml.Unmarshal(openAPIDocument, &doc); err != nil {
		panic(err)
	}
	return doc
})

// resolve follows a $ref within the document.
func resolve(v any) object {
	o, _ := v.(object)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	at := any(parsedDocument())
	for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.(object)[part]
	}
	if at == nil {
		panic("the document has no " + ref)
	}
	return resolve(at)
}

// documented checks an answer against what the document says of its route.
func documented(rt *route, a answer) error {
	if a.status == 499 || strings.HasPrefix(a.header.Get("Content-Type"), "text/plain; version") {
		return nil
	}
	responses := object{"default": object{"$ref": "#/components/responses/Problem"}}
	if rt.pattern != "unknown" {
		responses = parsedDocument()["paths"].(object)[rt.pattern].(object)[strings.ToLower(rt.method)].(object)["responses"].(object)
	}
	response, ok := responses[strconv.Itoa(a.status)]
	if !ok {
		if response, ok = responses["default"]; !ok || a.status < 400 {
			return fmt.Errorf("%s %s: status %d is not in the document", rt.method, rt.pattern, a.status)
		}
	}
	kind, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	content, ok := resolve(response)["content"].(object)[kind]
	if !ok {
		return fmt.Errorf("%s %s: %d with %q is not in the document", rt.method, rt.pattern, a.status, kind)
	}
	schema := content.(object)["schema"]
	switch kind {
	case "application/yaml":
		return nil
	case wire.ContentTypeEvents:
		lines, err := linesOf(a.body)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if err := fits(schema, any(line), "line"); err != nil {
				return err
			}
		}
		return nil
	}
	var body any
	if err := json.Unmarshal(a.body, &body); err != nil {
		return fmt.Errorf("%s %s: %w: %q", rt.method, rt.pattern, err, a.body)
	}
	return fits(schema, body, rt.pattern)
}

// fits checks a value against a schema: as much of JSON Schema as the document uses.
func fits(schema, value any, at string) error {
	s := resolve(schema)
	if list, ok := s["oneOf"].([]any); ok {
		var faults []string
		for _, one := range list {
			err := fits(one, value, at)
			if err == nil {
				return nil
			}
			faults = append(faults, err.Error())
		}
		return fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	if allowed, ok := s["enum"].([]any); ok && !slices.Contains(allowed, value) {
		return fmt.Errorf("%s: %v is none of %v", at, value, allowed)
	}
	var ok bool
	switch s["type"] {
	case "object":
		return fitsObject(s, value, at)
	case "array":
		var list []any
		if list, ok = value.([]any); ok {
			for i, item := range list {
				if err := fits(s["items"], item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
					return err
				}
			}
		}
	case "string":
		_, ok = value.(string)
	case "boolean":
		_, ok = value.(bool)
	case "integer":
		n, number := value.(float64)
		ok = number && n == float64(int64(n))
	case nil:
		ok = true
	}
	if !ok {
		return fmt.Errorf("%s: %v is not %v", at, value, s["type"])
	}
	return nil
}

func fitsObject(s object, value any, at string) error {
	o, ok := value.(object)
	if !ok {
		return fmt.Errorf("%s: %v is no object", at, value)
	}
	properties, _ := s["properties"].(object)
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := o[name.(string)]; !ok {
			return fmt.Errorf("%s: %v is missing", at, name)
		}
	}
	for name, v := range o {
		schema, known := properties[name]
		if !known {
			if s["additionalProperties"] == false {
				return fmt.Errorf("%s: %s is not in the document", at, name)
			}
			continue
		}
		if err := fits(schema, v, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}
