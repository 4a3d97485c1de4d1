package ops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"ebb/internal/wait"

	historypb "go.temporal.io/api/history/v1"
	"golang.org/x/sync/errgroup"
)

// Events implements Client. What has happened is in the history of the operation
// and of the workflows of its nodes. First come the events that there are, those
// of different histories in order of time, then what is added.
func (t *Temporal) Events(ctx context.Context, id string, f EventFilter, each func(Event) error) error {
	if err := f.Validate(); err != nil {
		return err
	}
	after, err := parsePlace(f.After)
	if err != nil {
		return err
	}
	d, err := t.describe(ctx, id)
	if err != nil {
		return named(id, err)
	}
	n := &narrator{Temporal: t, filter: f, each: each, told: after, open: map[int64]*history{}}
	n.own = n.newHistory(id, d.run(), 0, newTeller(summary(d.info()), ""))
	if err := n.catchUp(ctx); err != nil || !f.Follow || n.own.closed {
		return err
	}
	return n.follow(ctx)
}

// Validate reports what is wrong with a filter, as a *RequestError.
func (f EventFilter) Validate() error {
	var faults []string
	for _, kind := range f.Types {
		if !slices.Contains(EventTypes, kind) {
			faults = append(faults, fmt.Sprintf("there is no type of event %q, only %v", kind, EventTypes))
		}
	}
	if f.Tail < 0 {
		faults = append(faults, fmt.Sprintf("tail %d: want the number of events to begin with", f.Tail))
	}
	if f.Tail > 0 && f.After != "" {
		faults = append(faults, "tail and after exclude each other")
	}
	if len(faults) > 0 {
		return &RequestError{Faults: faults}
	}
	return nil
}

func (f EventFilter) matches(e Event) bool {
	return (len(f.Types) == 0 || slices.Contains(f.Types, e.Type)) && (f.Node == "" || f.Node == e.Node)
}

// narrator tells the events of one operation. A node's history is told to its end
// before the event of the operation's own history with which it ends, so that a
// place only has to name the nodes that are under way.
type narrator struct {
	*Temporal
	filter EventFilter
	each   func(Event) error
	own    *history
	open   map[int64]*history // of nodes that are under way, by the event with which they began
	told   place
	tail   []Event // the last ones, while they are looked for
}

// catchUp tells the events that there are.
func (n *narrator) catchUp(ctx context.Context) error {
	if err := n.skip(ctx); err != nil {
		return err
	}
	for {
		h, err := n.earliest(ctx)
		if err != nil {
			return err
		}
		if h == nil {
			break
		}
		event := h.head
		h.head = nil
		if err := n.take(h, event); err != nil {
			return err
		}
	}
	tail := n.tail
	n.tail, n.filter.Tail = nil, 0
	for _, e := range tail {
		if err := n.each(e); err != nil {
			return err
		}
	}
	return n.known()
}

// skip reads the operation's own history up to the place where telling begins. Of
// the nodes that were begun until there only those are read that had not ended.
func (n *narrator) skip(ctx context.Context) error {
	for n.own.read < n.told.own.event {
		event, err := n.own.next(ctx)
		if err != nil {
			return err
		}
		if event == nil {
			return noPlace(n.filter.After, n.own.workflow)
		}
		if event.GetEventId() == n.told.own.event { // what it told in part is told on
			n.own.head = event
		} else {
			n.own.tell(event)
		}
		n.enter(event)
		delete(n.open, leaves(event))
	}
	for began := range n.told.nodes {
		if n.open[began] == nil {
			return noPlace(n.filter.After, n.own.workflow)
		}
	}
	return nil
}

// known checks that every node has been read as far as the place says it was told.
func (n *narrator) known() error {
	for began, h := range n.open {
		if !h.closed && h.read < n.told.nodes[began].event {
			return noPlace(n.filter.After, n.own.workflow)
		}
	}
	return nil
}

// earliest is the history whose next event is the earliest, nil = all that there
// is was told. The end of a node waits until its own history is told.
func (n *narrator) earliest(ctx context.Context) (first *history, err error) {
	for _, h := range n.histories() {
		if err := n.look(ctx, h); err != nil {
			return nil, err
		}
		if h.head == nil || h == n.own && n.waitsFor(h.head) {
			continue
		}
		if first == nil || h.head.GetEventTime().AsTime().Before(first.head.GetEventTime().AsTime()) {
			first = h
		}
	}
	return first, nil
}

// look reads the next event of a history, unless there was none before. It is
// asked again when the operation's own history has its end: it is there by now.
func (n *narrator) look(ctx context.Context, h *history) (err error) {
	ended := n.own.head != nil && h != n.own && leaves(n.own.head) == h.began
	if h.head != nil || h.closed || h.dry && !ended {
		return nil
	}
	if h.dry {
		if err := wait.Sleep(ctx, watchInterval); err != nil {
			return err
		}
	}
	h.head, err = h.next(ctx)
	h.dry, h.closed = h.head == nil, errors.Is(err, errForgotten)
	if h.closed {
		return nil
	}
	return err
}

// histories are those that are read, the operation's own first.
func (n *narrator) histories() []*history {
	all := []*history{n.own}
	for _, began := range slices.Sorted(maps.Keys(n.open)) {
		all = append(all, n.open[began])
	}
	return all
}

// take tells an event.
func (n *narrator) take(h *history, event *historypb.HistoryEvent) error {
	at, id := n.told.own, event.GetEventId()
	if h.began > 0 {
		at = n.told.nodes[h.began]
	}
	n.enter(event)
	if node := n.open[leaves(event)]; node != nil && h == n.own {
		delete(n.open, node.began)
		delete(n.told.nodes, node.began)
	}
	if closes(event) {
		h.closed = true
		if at.event > id {
			return noPlace(n.filter.After, n.own.workflow)
		}
	}
	for i, e := range h.tell(event) {
		if at.passed(id, i+1) {
			continue
		}
		n.mark(h, mark{id, i + 1})
		e.Seq = n.told.String()
		if err := n.emit(e); err != nil {
			return err
		}
	}
	if id > at.event {
		n.passed(h, id)
	}
	return nil
}

// passed notes that an event was told which tells nothing.
func (n *narrator) passed(h *history, id int64) {
	if now := n.markOf(h); now.event < id {
		n.mark(h, mark{event: id})
	}
}

func (n *narrator) markOf(h *history) mark {
	if h.began > 0 {
		return n.told.nodes[h.began]
	}
	return n.told.own
}

func (n *narrator) mark(h *history, m mark) {
	if h.began > 0 {
		n.told.nodes[h.began] = m
		return
	}
	n.told.own = m
}

func (n *narrator) emit(e Event) error {
	if !n.filter.matches(e) {
		return nil
	}
	if n.filter.Tail > 0 {
		n.tail = append(n.tail, e)
		n.tail = n.tail[max(0, len(n.tail)-n.filter.Tail):]
		return nil
	}
	return n.each(e)
}

// enter begins to read the history of a node that an event of the operation's own
// history has begun.
func (n *narrator) enter(event *historypb.HistoryEvent) {
	began := event.GetChildWorkflowExecutionStartedEventAttributes()
	if began == nil || n.open[event.GetEventId()] != nil {
		return
	}
	workflow, run := began.GetWorkflowExecution().GetWorkflowId(), began.GetWorkflowExecution().GetRunId()
	node := strings.TrimPrefix(workflow, n.own.workflow+"/")
	n.open[event.GetEventId()] = n.newHistory(workflow, run, event.GetEventId(), newTeller(n.own.operation, node))
}

// leaves is the event with which the node began whose end this one is; 0 = it is
// none. (No history begins with event 0.)
func leaves(event *historypb.HistoryEvent) int64 {
	for _, ends := range []interface{ GetStartedEventId() int64 }{
		event.GetChildWorkflowExecutionCompletedEventAttributes(), event.GetChildWorkflowExecutionFailedEventAttributes(),
		event.GetChildWorkflowExecutionCanceledEventAttributes(), event.GetChildWorkflowExecutionTimedOutEventAttributes(),
		event.GetChildWorkflowExecutionTerminatedEventAttributes(),
	} {
		if began := ends.GetStartedEventId(); began > 0 {
			return began
		}
	}
	return 0
}

// follow tells what comes, until the operation's own history ends. Each history is
// waited on by a goroutine of its own; all is told by this one.
func (n *narrator) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	arrivals := make(chan arrival)
	defer func() { cancel(); _ = group.Wait() }()
	watch := func(h *history) {
		h.follow, h.events = true, nil
		group.Go(func() error { return h.watch(ctx, arrivals) })
	}
	var held []*historypb.HistoryEvent // of the operation's own, while a node has to be told first
	if n.own.head != nil {             // it was read, and the node's history as it was read had no end yet
		held = append(held, n.own.head)
		n.own.head = nil
	}
	for _, h := range n.histories() {
		if !h.closed {
			watch(h)
		}
	}
	for !n.own.closed {
		var a arrival
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a = <-arrivals:
		}
		switch {
		case a.h == n.own:
			held = append(held, a.event)
		case a.event == nil:
			a.h.closed = true
		default:
			if err := n.take(a.h, a.event); err != nil {
				return err
			}
		}
		for len(held) > 0 && !n.waitsFor(held[0]) {
			event := held[0]
			held = held[1:]
			if err := n.take(n.own, event); err != nil {
				return err
			}
			if entered := n.open[event.GetEventId()]; entered != nil {
				watch(entered)
			}
		}
	}
	return nil
}

// waitsFor reports whether a node's history has to be told before this event.
func (n *narrator) waitsFor(event *historypb.HistoryEvent) bool {
	node := n.open[leaves(event)]
	return node != nil && !node.closed
}
