package api

import (
	"encoding/json"
	"fmt"
	"mime"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type object = map[string]any

var parsed = sync.OnceValue(func() object {
	var doc object
	if err := yaml.Unmarshal(document, &doc); err != nil {
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
	at := any(parsed())
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
		responses = parsed()["paths"].(object)[rt.pattern].(object)[strings.ToLower(rt.method)].(object)["responses"].(object)
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
	case typeEvents:
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

// The document and the table of routes are the same list, with the same roles.
func TestDocumentHasEveryRoute(t *testing.T) {
	inDocument := map[string]object{}
	for path, methods := range parsed()["paths"].(object) {
		for method, operation := range methods.(object) {
			inDocument[strings.ToUpper(method)+" "+path] = operation.(object)
		}
	}
	for _, rt := range routes() {
		operation, ok := inDocument[rt.method+" "+rt.pattern]
		require.True(t, ok, "%s %s is not in the document", rt.method, rt.pattern)
		delete(inDocument, rt.method+" "+rt.pattern)
		role := string(rt.role)
		if rt.reach == anybody {
			role = "none"
			require.Equal(t, []any{}, operation["security"], rt.pattern)
		}
		require.Equal(t, role, operation["x-role"], rt.pattern)
		var inPath []string
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(rt.pattern, -1) {
			inPath = append(inPath, m[1])
		}
		require.Equal(t, inPath, parameters(operation, "path"), rt.pattern)
	}
	require.Empty(t, inDocument, "no such routes")
}

func parameters(operation object, in string) (names []string) {
	list, _ := operation["parameters"].([]any)
	for _, p := range list {
		if o := resolve(p); o["in"] == in {
			names = append(names, o["name"].(string))
		}
	}
	return names
}

// A server that is asked for a parameter it does not have tells those that it has.
func TestDocumentHasEveryParameter(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	checked := 0
	for _, rt := range routes() {
		if rt.method != "GET" || rt.class == always {
			continue
		}
		path := strings.NewReplacer("{id}", "op-1", "{name}", "prod").Replace(rt.pattern)
		p := b.do("ada", "GET", path+"?nope=1", "").problem(t)
		require.Equal(t, CodeBadRequest, p.Code)
		last := p.Faults[len(p.Faults)-1]
		_, list, ok := strings.Cut(last, `unknown parameter "nope"; known here: `)
		require.True(t, ok, last)
		var known []string
		if list != "none" {
			known = strings.Split(list, ", ")
		}
		documented := parameters(parsed()["paths"].(object)[rt.pattern].(object)["get"].(object), "query")
		slices.Sort(known)
		slices.Sort(documented)
		require.Equal(t, documented, known, rt.pattern)
		checked++
	}
	require.Equal(t, 7, checked)
}

// The types that go over the wire have the fields that the document says.
func TestDocumentHasEveryField(t *testing.T) {
	for name, v := range map[string]any{
		"Problem": &Problem{}, "Submission": &submission{}, "Steering": &steering{}, "Steered": &steered{},
		"Lifecycle": &lifecycle{}, "StatusLine": &statusLine{}, "EndLine": &endLine{},
	} {
		_, fields := fieldsOf(v)
		schema := parsed()["components"].(object)["schemas"].(object)[name].(object)
		var documented []string
		for field := range schema["properties"].(object) {
			documented = append(documented, field)
		}
		require.ElementsMatch(t, fields, documented, name)
	}
}
