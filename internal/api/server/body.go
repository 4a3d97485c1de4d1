package server

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

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// readTimeout is the deadline for a client to send its body.
const readTimeout = 30 * time.Second

// readJSON decodes the JSON body of a request into the struct that into points to.
// Without a body it returns nil if optional is set, else an error.
func (x *exchange) readJSON(into any, optional bool) error {
	deadlines := http.NewResponseController(x.w)
	_ = deadlines.SetReadDeadline(time.Now().Add(readTimeout)) // fails only for readers without deadlines, in tests
	// A client that sends slowly must not delay a shutdown.
	stop := context.AfterFunc(x.ctx(), func() { _ = deadlines.SetReadDeadline(time.Now()) })
	data, err := io.ReadAll(x.r.Body)
	if stop() {
		_ = deadlines.SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err != nil && x.ctx().Err() != nil:
		return context.Cause(x.ctx())
	case errors.As(err, &tooLarge):
		return errorBodyTooLarge()
	case err != nil:
		return newHTTPError(http.StatusBadRequest, wire.CodeBadRequest, "the body did not arrive whole: %v", err)
	case len(data) == 0 && optional:
		return nil
	}
	if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != wire.ContentTypeJSON {
		return newHTTPError(http.StatusUnsupportedMediaType, wire.CodeMediaType, "Content-Type must be %s, not %q", wire.ContentTypeJSON, wire.Truncate(x.r.Header.Get("Content-Type")))
	}
	if faults := decodeJSON(data, into); len(faults) > 0 {
		return &ops.RequestError{Faults: faults}
	}
	return nil
}

// decodeJSON decodes a JSON object into the struct that into points to, and returns
// everything that is wrong with it. It is stricter than encoding/json: names must match
// exactly and be unique, and the text must be UTF-8.
func decodeJSON(data []byte, into any) (faults []string) {
	if len(bytes.TrimSpace(data)) == 0 {
		return []string{"the body is empty: send a JSON object"}
	}
	if !utf8.Valid(data) {
		return []string{"the body is not UTF-8"}
	}
	fields, known := jsonFields(into)
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return []string{jsonFault(err, "the body must be a JSON object")}
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return append(faults, jsonFault(err, "a name is expected"))
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return append(faults, jsonFault(err, ""))
		}
		field, have := fields[name]
		switch {
		case !have:
			faults = append(faults, fmt.Sprintf("unknown field %q; known here: %s", wire.Truncate(name), joinOrNone(known)))
		case seen[name]:
			faults = append(faults, fmt.Sprintf("field %q comes twice", name))
		default:
			if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
				faults = append(faults, fmt.Sprintf("field %q must be %s", name, describeType(field.Type())))
			}
		}
		seen[name] = true
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return append(faults, jsonFault(err, ""))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		faults = append(faults, "something follows the JSON object")
	}
	return faults
}

// jsonFault returns the message for a syntax error, or otherwise if err is nil.
func jsonFault(err error, otherwise string) string {
	switch {
	case err == nil:
		return otherwise
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the body is not JSON: it ends too early"
	}
	return "the body is not JSON: " + err.Error()
}

// jsonFields returns the fields of a struct by their JSON names, and these names in
// order.
func jsonFields(into any) (fields map[string]reflect.Value, names []string) {
	v := reflect.ValueOf(into).Elem()
	fields = map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name], names = v.Field(i), append(names, name)
	}
	return fields, names
}

// describeType returns the JSON type of a field in words.
func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list, each item " + describeType(t.Elem())
	default:
		return "a " + t.String()
	}
}
