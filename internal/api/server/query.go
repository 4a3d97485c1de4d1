package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb/internal/api/wire"
	"ebb/internal/operation"
	"ebb/internal/ops"
)

// query reads the parameters of a URL. Its getters collect faults; after the last of
// them, err returns these together with parameters that were not read.
type query struct {
	values url.Values
	known  []string
	faults []string
}

func (x *exchange) query() *query {
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fault("the parameters are malformed: %v", err)
	}
	return q
}

func (q *query) fault(format string, args ...any) {
	q.faults = append(q.faults, fmt.Sprintf(format, args...))
}

// text returns a parameter, "" if it is absent.
func (q *query) text(name string) string {
	q.known = append(q.known, name)
	if len(q.values[name]) > 1 {
		q.fault("parameter %q comes twice", name)
	}
	return q.values.Get(name)
}

// list returns the elements of a comma-separated parameter.
func (q *query) list(name string) []string {
	text := q.text(name)
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// flag returns a boolean parameter, false if it is absent.
func (q *query) flag(name string) bool {
	switch text := q.text(name); text {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fault("parameter %q must be true or false, not %q", name, wire.Truncate(text))
		return false
	}
}

// number returns an integer parameter between least and most, 0 if it is absent.
func (q *query) number(name string, least, most int) int {
	text := q.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		q.fault("parameter %q must be a whole number from %d to %d, not %q", name, least, most, wire.Truncate(text))
		return 0
	}
	return n
}

// duration returns a duration parameter between least and most, otherwise if it is
// absent.
func (q *query) duration(name string, otherwise, least, most time.Duration) time.Duration {
	text := q.text(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		q.fault("parameter %q must be a duration from %s to %s such as 90s, not %q", name, least, most, wire.Truncate(text))
		return otherwise
	}
	return d
}

// kind returns a parameter that is a kind of operation, "" if it is absent.
func (q *query) kind(name string) operation.Kind {
	text := q.text(name)
	if text == "" {
		return ""
	}
	kind, err := ops.ParseKind(text)
	if err != nil {
		q.fault("parameter %q: %v", name, err)
	}
	return kind
}

// err returns a *ops.RequestError with all faults, or nil if there are none.
func (q *query) err() error {
	var unknown []string
	for name := range q.values {
		if !slices.Contains(q.known, name) {
			unknown = append(unknown, fmt.Sprintf("unknown parameter %q; known here: %s", wire.Truncate(name), joinOrNone(q.known)))
		}
	}
	slices.Sort(unknown)
	if q.faults = append(q.faults, unknown...); len(q.faults) == 0 {
		return nil
	}
	return &ops.RequestError{Faults: q.faults}
}

// joinOrNone returns names separated by commas, or "none".
func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// idempotencyKey returns the Idempotency-Key of a request, "" if it has none.
func (x *exchange) idempotencyKey() (string, error) {
	values := x.r.Header.Values(wire.HeaderIdempotencyKey)
	switch {
	case len(values) > 1:
		return "", newHTTPError(http.StatusBadRequest, wire.CodeBadRequest, "there is more than one %s", wire.HeaderIdempotencyKey)
	case len(values) == 0:
		return "", nil
	case !validOperationID(values[0]):
		return "", newHTTPError(http.StatusBadRequest, wire.CodeBadRequest, "%s must be up to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit", wire.HeaderIdempotencyKey)
	}
	return values[0], nil
}

// validOperationID reports whether text may be the ID of an operation.
func validOperationID(text string) bool {
	for i, r := range text {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return len(text) > 0 && len(text) <= 128
}

// plannableKind returns the parameter "kind" of a plan. Only upgrades and scale-downs
// can be planned.
func plannableKind(q *query) operation.Kind {
	kind := q.kind("kind")
	if kind != operation.KindUpgrade && kind != operation.KindScaleDown && len(q.faults) == 0 {
		q.fault(`parameter "kind" must be upgrade or scale-down`)
	}
	return kind
}
