package ops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"ebb/internal/operation"

	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
)

// teller says what the events of one history tell. It depends on nothing else, so
// that each event tells the same things whoever asks, and when.
type teller struct {
	operation Operation // whose history it is, or whose node's
	node      string    // of the history of a node
	lines     assembly
	steps     map[int64]step    // activities that were begun, by the event that did
	updates   map[string]string // Workflow Updates that were accepted: their names by ID
}

// step is an activity as a person knows it.
type step struct{ kind, summary string }

func newTeller(operation Operation, node string) *teller {
	return &teller{operation: operation, node: node, lines: assembly{}, steps: map[int64]step{}, updates: map[string]string{}}
}

// tell returns what an event tells, in order.
func (t *teller) tell(e *historypb.HistoryEvent) (told []Event) {
	switch a := e.GetAttributes().(type) {
	case *historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes:
		told = t.state(Running, t.operation.String())
	case *historypb.HistoryEvent_WorkflowExecutionCancelRequestedEventAttributes:
		told = t.state(Running, "asked to take back what it did, and to end")
	case *historypb.HistoryEvent_WorkflowExecutionUpdateAcceptedEventAttributes:
		request := a.WorkflowExecutionUpdateAcceptedEventAttributes.GetAcceptedRequest()
		t.updates[request.GetMeta().GetUpdateId()] = request.GetInput().GetName()
	case *historypb.HistoryEvent_WorkflowExecutionUpdateCompletedEventAttributes:
		told = t.steered(a.WorkflowExecutionUpdateCompletedEventAttributes)
	case *historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes:
		told = t.output(a.WorkflowExecutionSignaledEventAttributes)
	case *historypb.HistoryEvent_ActivityTaskScheduledEventAttributes:
		s := step{kind: a.ActivityTaskScheduledEventAttributes.GetActivityType().GetName(), summary: summaryOf(e.GetUserMetadata())}
		t.steps[e.GetEventId()] = s
		told = t.progress(cmp.Or(s.summary, s.kind))
	case *historypb.HistoryEvent_TimerStartedEventAttributes:
		if summary := summaryOf(e.GetUserMetadata()); summary != "" {
			told = t.progress(summary)
		}
	case *historypb.HistoryEvent_ActivityTaskCompletedEventAttributes:
		told = t.completed(a.ActivityTaskCompletedEventAttributes)
	case *historypb.HistoryEvent_ActivityTaskFailedEventAttributes:
		told = t.stepEnded(a.ActivityTaskFailedEventAttributes.GetScheduledEventId(), rootMessage(a.ActivityTaskFailedEventAttributes.GetFailure()))
	case *historypb.HistoryEvent_ActivityTaskTimedOutEventAttributes:
		told = t.stepEnded(a.ActivityTaskTimedOutEventAttributes.GetScheduledEventId(), "it did not end in time: "+rootMessage(a.ActivityTaskTimedOutEventAttributes.GetFailure()))
	case *historypb.HistoryEvent_ActivityTaskCanceledEventAttributes:
		told = t.stepEnded(a.ActivityTaskCanceledEventAttributes.GetScheduledEventId(), "")
	default:
		if closes(e) {
			told = t.end(e)
		}
	}
	for i := range told {
		told[i].Time = e.GetEventTime().AsTime()
	}
	return told
}

// closes reports whether an event is the last of its history.
func closes(e *historypb.HistoryEvent) bool {
	return e.GetWorkflowExecutionCompletedEventAttributes() != nil || e.GetWorkflowExecutionFailedEventAttributes() != nil ||
		e.GetWorkflowExecutionCanceledEventAttributes() != nil || e.GetWorkflowExecutionTerminatedEventAttributes() != nil ||
		e.GetWorkflowExecutionTimedOutEventAttributes() != nil
}

// state tells of the operation; the histories of its nodes only have progress.
func (t *teller) state(s State, text string) []Event {
	if t.node != "" {
		return nil
	}
	return []Event{{Type: StateEvent, State: s, Text: text}}
}

func (t *teller) progress(text string) []Event {
	return []Event{{Type: ProgressEvent, Node: t.node, Text: text}}
}

// steered tells what came of an update.
func (t *teller) steered(a *historypb.WorkflowExecutionUpdateCompletedEventAttributes) []Event {
	var said string
	if decode(a.GetOutcome().GetSuccess(), &said) == 0 {
		said = a.GetOutcome().GetFailure().GetMessage()
	}
	text := t.updates[a.GetMeta().GetUpdateId()] + ": " + said
	if t.node != "" {
		return t.progress(text)
	}
	return t.state(Running, text)
}

// output tells the lines that a piece of a script's output completes.
func (t *teller) output(a *historypb.WorkflowExecutionSignaledEventAttributes) []Event {
	var piece operation.Output
	if a.GetSignalName() != operation.SignalOutput || decode(a.GetInput(), &piece) == 0 {
		return nil
	}
	return t.lines.add(piece)
}

// completed tells the end of a step, and of a drain what it has left on its node.
func (t *teller) completed(a *historypb.ActivityTaskCompletedEventAttributes) []Event {
	s := t.steps[a.GetScheduledEventId()]
	told := t.stepEnded(a.GetScheduledEventId(), "")
	var left operation.DrainLeft
	if s.kind != operation.ActivityDrain || decode(a.GetResult(), &left) == 0 {
		return told
	}
	for _, text := range left.Texts() {
		told = append(told, t.progress("warning: "+text)...)
	}
	return told
}

// stepEnded tells a line that the script of this step has left without an end, and
// what went wrong.
func (t *teller) stepEnded(scheduled int64, failure string) (told []Event) {
	s := t.steps[scheduled]
	delete(t.steps, scheduled)
	if s.kind == operation.ActivityRunScript {
		told = t.lines.rest()
	}
	if failure != "" {
		told = append(told, t.progress(cmp.Or(s.summary, s.kind)+": "+failure)...)
	}
	return told
}

// end tells how a history ended, after what its scripts have left.
func (t *teller) end(e *historypb.HistoryEvent) []Event {
	told := t.lines.rest()
	op := t.operation
	op.settle(e)
	switch {
	case t.node == "":
		return append(told, t.state(op.State, cmp.Or(op.Message, "done"))...)
	case op.State == Failed:
		return append(told, t.progress("failed: "+op.Message)...)
	default:
		return append(told, t.progress(strings.ToLower(string(op.State)))...)
	}
}

// summaryOf is what a workflow wrote beside a step, for people.
func summaryOf(m *sdkpb.UserMetadata) (text string) {
	if m.GetSummary() != nil {
		decode(&commonpb.Payloads{Payloads: []*commonpb.Payload{m.GetSummary()}}, &text)
	}
	return text
}

// rootMessage is the text of the failure that is behind another one.
func rootMessage(f *failurepb.Failure) string {
	for f.GetCause() != nil {
		f = f.GetCause()
	}
	return f.GetMessage()
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
}

// add takes a piece and returns the lines that it completes. A piece that was
// there before is passed over.
func (a assembly) add(o operation.Output) (lines []Event) {
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
	p.offset = o.Offset + o.Size
	for {
		line, rest, ended := strings.Cut(text, "\n")
		if !ended {
			p.line += line
			return lines
		}
		lines = append(lines, id.line(p.line+line))
		p.line, text = "", rest
	}
}

// rest are the lines that have no end, when nothing more comes, in the order of
// their scripts.
func (a assembly) rest() (lines []Event) {
	var open []scriptID
	for id, p := range a {
		if p.line != "" {
			open = append(open, id)
		}
	}
	slices.SortFunc(open, func(a, b scriptID) int { return cmp.Compare(a.String(), b.String()) })
	for _, id := range open {
		lines = append(lines, id.line(a[id].line))
		a[id].line = ""
	}
	return lines
}

func (id scriptID) line(text string) Event {
	return Event{Type: LogEvent, Node: id.node, Phase: id.phase, Hop: id.hop, Attempt: id.attempt, Text: strings.TrimSuffix(text, "\r")}
}

func (id scriptID) String() string {
	return fmt.Sprintf("%s %d %s %d", id.node, id.hop, id.phase, id.attempt)
}
