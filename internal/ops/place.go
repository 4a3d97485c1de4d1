package ops

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// place is how far an operation was told: its own history, and that of every node
// which its own history, as far as it was told, has begun and not yet ended. Event
// IDs of Temporal never change, so that a place means the same to everybody.
type place struct {
	own   mark
	nodes map[int64]mark // by the event in the operation's history with which the node's began
}

// mark is a place in one history: the event that was told last, and how many of
// the things that it tells were told.
type mark struct {
	event int64
	part  int
}

// passed reports whether the nth thing that an event tells, from 1, was told.
func (m mark) passed(event int64, part int) bool {
	return event < m.event || event == m.event && part <= m.part
}

func (m mark) String() string {
	if m.part == 0 {
		return strconv.FormatInt(m.event, 10)
	}
	return fmt.Sprintf("%d.%d", m.event, m.part)
}

// String is the place as events have it: "88.1", or "88.1;61:14.3,70:5" while
// nodes are under way.
func (p place) String() string {
	var open []string
	for _, began := range slices.Sorted(maps.Keys(p.nodes)) {
		if p.nodes[began] != (mark{}) {
			open = append(open, fmt.Sprintf("%d:%s", began, p.nodes[began]))
		}
	}
	if len(open) == 0 {
		return p.own.String()
	}
	return p.own.String() + ";" + strings.Join(open, ",")
}

var placeShape = regexp.MustCompile(`^\d{1,18}(\.\d{1,9})?(;\d{1,18}:\d{1,18}(\.\d{1,9})?(,\d{1,18}:\d{1,18}(\.\d{1,9})?)*)?$`)

// parsePlace reads what String has written; empty is the start.
func parsePlace(text string) (place, error) {
	p := place{nodes: map[int64]mark{}}
	if text == "" {
		return p, nil
	}
	if !placeShape.MatchString(text) {
		return place{}, noPlace(text, "")
	}
	own, open, _ := strings.Cut(text, ";")
	p.own = parseMark(own)
	for _, part := range strings.FieldsFunc(open, func(r rune) bool { return r == ',' }) {
		began, at, _ := strings.Cut(part, ":")
		p.nodes[parseMark(began).event] = parseMark(at)
	}
	return p, nil
}

// parseMark reads what has the shape of a mark.
func parseMark(text string) (m mark) {
	event, part, _ := strings.Cut(text, ".")
	m.event, _ = strconv.ParseInt(event, 10, 64)
	m.part, _ = strconv.Atoi(cmp.Or(part, "0"))
	return m
}

// noPlace is the error for a place that an operation does not have.
func noPlace(text, operation string) error {
	what := "a place in a stream of events"
	if operation != "" {
		what = "a place in operation " + operation
	}
	return &RequestError{Faults: []string{fmt.Sprintf("%q is not %s: give the seq of an event as it was told, or leave it out to begin at the start", text, what)}}
}
