package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"golang.org/x/sync/errgroup"

	"ebb/activities"
)

// LogLine is a line that a script printed on a node.
type LogLine struct {
	Time    time.Time `json:"time"` // when it came into the log
	Node    string    `json:"node"`
	Phase   string    `json:"phase"`
	Hop     int       `json:"hop,omitempty"` // of an upgrade in hops
	Attempt int       `json:"attempt"`
	Text    string    `json:"text"`
}

// LogFilter chooses lines.
type LogFilter struct {
	Node   string // only of this node; empty = all
	Follow bool   // go on with what comes, until the operation is over
}

// Logs implements Client. The log is in the histories of the operation and of the
// workflows of its nodes, which hold every piece of output once or more.
func (t *Temporal) Logs(ctx context.Context, id string, f LogFilter, line func(LogLine) error) error {
	if _, err := t.describe(ctx, id); err != nil {
		return named(id, err)
	}
	r := &logReader{Temporal: t, filter: f, operation: id, children: map[string]bool{}}
	if f.Follow {
		r.emit = line
		group, ctx := errgroup.WithContext(ctx)
		r.group = group
		group.Go(func() error { return r.follow(ctx, id, "") })
		return group.Wait()
	}
	// All of it is there: put the lines of different nodes in order of time.
	var lines []LogLine
	r.emit = func(l LogLine) error { lines = append(lines, l); return nil }
	if err := r.follow(ctx, id, ""); err != nil {
		return err
	}
	slices.SortStableFunc(lines, func(a, b LogLine) int { return a.Time.Compare(b.Time) })
	for _, l := range lines {
		if err := line(l); err != nil {
			return err
		}
	}
	return nil
}

// logReader reads the log of one operation.
type logReader struct {
	*Temporal
	filter    LogFilter
	operation string
	group     *errgroup.Group // set while following: histories are read side by side

	mu       sync.Mutex
	emit     func(LogLine) error
	children map[string]bool // runs whose history is read
}

// follow reads one history to its end. It rides out an engine that is away.
func (r *logReader) follow(ctx context.Context, workflow, run string) error {
	pieces := assembly{}
	for last := int64(0); ; {
		err := r.read(ctx, workflow, run, &last, pieces)
		var missing *serviceerror.NotFound
		switch {
		case err == nil, errors.As(err, &missing):
			return r.print(pieces.rest())
		case ctx.Err() != nil:
			return ctx.Err()
		case !passing(ctx, err):
			return fmt.Errorf("read the log of %s: %w", workflow, err)
		}
		if err := wait(ctx, awayInterval); err != nil {
			return err
		}
	}
}

// read goes on after the event that was read last.
func (r *logReader) read(ctx context.Context, workflow, run string, last *int64, pieces assembly) error {
	events := r.client.GetWorkflowHistory(ctx, workflow, run, r.filter.Follow, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return err
		}
		if event.GetEventId() <= *last {
			continue
		}
		if err := r.take(ctx, event, pieces); err != nil {
			return err
		}
		*last = event.GetEventId()
	}
	return nil
}

func (r *logReader) take(ctx context.Context, event *historypb.HistoryEvent, pieces assembly) error {
	if started := event.GetChildWorkflowExecutionStartedEventAttributes(); started != nil {
		return r.child(ctx, started.GetWorkflowExecution().GetWorkflowId(), started.GetWorkflowExecution().GetRunId())
	}
	signal := event.GetWorkflowExecutionSignaledEventAttributes()
	var piece activities.Output
	if signal.GetSignalName() != activities.SignalOutput || decode(signal.GetInput(), &piece) == 0 {
		return nil
	}
	return r.print(pieces.add(event.GetEventTime().AsTime(), piece))
}

func (r *logReader) child(ctx context.Context, workflow, run string) error {
	node := strings.TrimPrefix(workflow, r.operation+"/")
	r.mu.Lock()
	known := r.children[run] || r.filter.Node != "" && r.filter.Node != node
	r.children[run] = true
	r.mu.Unlock()
	if known {
		return nil
	}
	if r.group == nil {
		return r.follow(ctx, workflow, run)
	}
	r.group.Go(func() error { return r.follow(ctx, workflow, run) })
	return nil
}

func (r *logReader) print(lines []LogLine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lines {
		if r.filter.Node != "" && r.filter.Node != l.Node {
			continue
		}
		if err := r.emit(l); err != nil {
			return err
		}
	}
	return nil
}

// assembly puts the pieces of each script's output together to lines.
type assembly map[scriptID]*partial

type scriptID struct {
	node, phase  string
	hop, attempt int
}

type partial struct {
	offset int64 // bytes that were taken
	line   string
	time   time.Time
}

// add takes a piece and returns the lines that it completes. A piece that was
// there before is passed over.
func (a assembly) add(at time.Time, o activities.Output) (lines []LogLine) {
	id := scriptID{node: o.Node, phase: o.Phase, hop: o.Hop, attempt: o.Attempt}
	p := a[id]
	if p == nil {
		p = &partial{}
		a[id] = p
	}
	if o.Offset+o.Size <= p.offset {
		return nil
	}
	text := o.Text
	if seen := p.offset - o.Offset; seen > 0 && seen < int64(len(text)) { // it overlaps what was taken
		text = text[seen:]
	}
	p.offset, p.time = o.Offset+o.Size, at
	for {
		line, rest, ended := strings.Cut(text, "\n")
		if !ended {
			p.line += line
			return lines
		}
		lines = append(lines, id.line(at, p.line+line))
		p.line, text = "", rest
	}
}

// rest are the lines that have no end, when nothing more comes.
func (a assembly) rest() (lines []LogLine) {
	for id, p := range a {
		if p.line != "" {
			lines = append(lines, id.line(p.time, p.line))
			p.line = ""
		}
	}
	return lines
}

func (id scriptID) line(at time.Time, text string) LogLine {
	return LogLine{Time: at, Node: id.node, Phase: id.phase, Hop: id.hop, Attempt: id.attempt, Text: strings.TrimSuffix(text, "\r")}
}
