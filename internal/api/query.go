package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb/internal/ops"
	"ebb/workflows"
)

// query reads the parameters of a request's URL, as strictly as a body: err tells
// everything that is wrong, and parameters that nobody asked for.
type query struct {
	values url.Values
	known  []string
	faults []string
}

func (c *call) query() *query {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fault("the parameters are malformed: %v", err)
	}
	return q
}

func (q *query) fault(format string, args ...any) {
	q.faults = append(q.faults, fmt.Sprintf(format, args...))
}

func (q *query) text(name string) string {
	q.known = append(q.known, name)
	if len(q.values[name]) > 1 {
		q.fault("parameter %q comes twice", name)
	}
	return q.values.Get(name)
}

// list is separated by commas.
func (q *query) list(name string) []string {
	text := q.text(name)
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func (q *query) flag(name string) bool {
	switch text := q.text(name); text {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fault("parameter %q must be true or false, not %q", name, brief(text))
		return false
	}
}

// number is 0 when it is left out.
func (q *query) number(name string, least, most int) int {
	text := q.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		q.fault("parameter %q must be a whole number from %d to %d, not %q", name, least, most, brief(text))
		return 0
	}
	return n
}

func (q *query) duration(name string, otherwise, least, most time.Duration) time.Duration {
	text := q.text(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		q.fault("parameter %q must be a duration from %s to %s such as 90s, not %q", name, least, most, brief(text))
		return otherwise
	}
	return d
}

// kind is "" when it is left out.
func (q *query) kind(name string) workflows.Kind {
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

// err is a *ops.RequestError, or nil.
func (q *query) err() error {
	var unknown []string
	for name := range q.values {
		if !slices.Contains(q.known, name) {
			unknown = append(unknown, fmt.Sprintf("unknown parameter %q; known here: %s", brief(name), orNone(q.known)))
		}
	}
	slices.Sort(unknown)
	if q.faults = append(q.faults, unknown...); len(q.faults) == 0 {
		return nil
	}
	return &ops.RequestError{Faults: q.faults}
}

// orNone lists names for a person.
func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// key is the Idempotency-Key of a request, "" when it has none.
func (c *call) key() (string, error) {
	values := c.r.Header.Values(HeaderKey)
	switch {
	case len(values) > 1:
		return "", fail(http.StatusBadRequest, CodeBadRequest, "there is more than one %s", HeaderKey)
	case len(values) == 0:
		return "", nil
	case !saneKey(values[0]):
		return "", fail(http.StatusBadRequest, CodeBadRequest, "%s must be up to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit", HeaderKey)
	}
	return values[0], nil
}

// saneKey is what an operation ID may be.
func saneKey(text string) bool {
	for i, r := range text {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return len(text) > 0 && len(text) <= 128
}
