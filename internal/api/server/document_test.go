package server

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
)

// The document and routes() have the same routes, with the same roles.
func TestDocumentHasEveryRoute(t *testing.T) {
	inDocument := map[string]object{}
	for path, methods := range parsedDocument()["paths"].(object) {
		for method, operation := range methods.(object) {
			inDocument[strings.ToUpper(method)+" "+path] = operation.(object)
		}
	}
	for _, rt := range routes() {
		operation, ok := inDocument[rt.method+" "+rt.pattern]
		require.True(t, ok, "%s %s is not in the document", rt.method, rt.pattern)
		delete(inDocument, rt.method+" "+rt.pattern)
		role := string(rt.role)
		if rt.scope == public {
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

// The error for an unknown parameter lists the known ones.
func TestDocumentHasEveryParameter(t *testing.T) {
	b := newBed(t)
	b.ops.Add("op-1", "prod", "Running")
	checked := 0
	for _, rt := range routes() {
		if rt.method != "GET" || rt.drain == alwaysServed {
			continue
		}
		path := strings.NewReplacer("{id}", "op-1", "{name}", "prod").Replace(rt.pattern)
		p := b.do("ada", "GET", path+"?nope=1", "").problem(t)
		require.Equal(t, wire.CodeBadRequest, p.Code)
		last := p.Faults[len(p.Faults)-1]
		_, list, ok := strings.Cut(last, `unknown parameter "nope"; known here: `)
		require.True(t, ok, last)
		var known []string
		if list != "none" {
			known = strings.Split(list, ", ")
		}
		documented := parameters(parsedDocument()["paths"].(object)[rt.pattern].(object)["get"].(object), "query")
		slices.Sort(known)
		slices.Sort(documented)
		require.Equal(t, documented, known, rt.pattern)
		checked++
	}
	require.Equal(t, 7, checked)
}

// The types of package wire have the fields of the document.
func TestDocumentHasEveryField(t *testing.T) {
	for name, v := range map[string]any{
		"Problem": &wire.Problem{}, "Submission": &wire.Submission{}, "Steering": &wire.Steering{}, "Steered": &wire.Steered{},
		"Lifecycle": &wire.Lifecycle{}, "StatusLine": &wire.StatusLine{}, "EndLine": &wire.EndLine{},
	} {
		_, fields := jsonFields(v)
		schema := parsedDocument()["components"].(object)["schemas"].(object)[name].(object)
		var documented []string
		for field := range schema["properties"].(object) {
			documented = append(documented, field)
		}
		require.ElementsMatch(t, fields, documented, name)
	}
}
