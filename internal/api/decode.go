package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"ebb/internal/ops"
)

// readTimeout is how long a caller may take to send its body.
const readTimeout = 30 * time.Second

// body reads the JSON body of a request into a struct. A body that is left out is
// an error unless optional is set.
func (c *call) body(into any, optional bool) error {
	deadlines := http.NewResponseController(c.w)
	_ = deadlines.SetReadDeadline(time.Now().Add(readTimeout)) // a reader that knows none has nobody slow behind it
	// A caller that sends slowly does not keep a server that has to end.
	hurry := context.AfterFunc(c.ctx(), func() { _ = deadlines.SetReadDeadline(time.Now()) })
	data, err := io.ReadAll(c.r.Body)
	if hurry() {
		_ = deadlines.SetReadDeadline(time.Time{})
	}
	var long *http.MaxBytesError
	switch {
	case err != nil && c.ctx().Err() != nil:
		return context.Cause(c.ctx())
	case errors.As(err, &long):
		return c.tooLarge()
	case err != nil:
		return fail(http.StatusBadRequest, CodeBadRequest, "the body did not arrive whole: %v", err)
	case len(data) == 0 && optional:
		return nil
	}
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != typeJSON {
		return fail(http.StatusUnsupportedMediaType, CodeMediaType, "Content-Type must be %s, not %q", typeJSON, brief(c.r.Header.Get("Content-Type")))
	}
	if faults := decodeJSON(data, into); len(faults) > 0 {
		return &ops.RequestError{Faults: faults}
	}
	return nil
}

// decodeJSON reads one JSON object into a flat struct and tells everything that is
// wrong with it. It is stricter than encoding/json: names have to match exactly,
// none may come twice, and the text must be UTF-8.
func decodeJSON(data []byte, into any) (faults []string) {
	if len(bytes.TrimSpace(data)) == 0 {
		return []string{"the body is empty: send a JSON object"}
	}
	if !utf8.Valid(data) {
		return []string{"the body is not UTF-8"}
	}
	fields, known := fieldsOf(into)
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return []string{notJSON(err, "the body must be a JSON object")}
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return append(faults, notJSON(err, "a name is expected"))
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return append(faults, notJSON(err, ""))
		}
		field, have := fields[name]
		switch {
		case !have:
			faults = append(faults, fmt.Sprintf("unknown field %q; known here: %s", brief(name), orNone(known)))
		case seen[name]:
			faults = append(faults, fmt.Sprintf("field %q comes twice", name))
		default:
			if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
				faults = append(faults, fmt.Sprintf("field %q must be %s", name, want(field.Type())))
			}
		}
		seen[name] = true
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return append(faults, notJSON(err, ""))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		faults = append(faults, "something follows the JSON object")
	}
	return faults
}

func notJSON(err error, otherwise string) string {
	switch {
	case err == nil:
		return otherwise
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the body is not JSON: it ends too early"
	}
	return "the body is not JSON: " + err.Error()
}

// fieldsOf are the fields of a struct by their names in JSON, and the names in order.
func fieldsOf(into any) (fields map[string]reflect.Value, names []string) {
	v := reflect.ValueOf(into).Elem()
	fields = map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name], names = v.Field(i), append(names, name)
	}
	return fields, names
}

// want says in words what a field takes.
func want(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list, each item " + want(t.Elem())
	default:
		return "a " + t.String()
	}
}
