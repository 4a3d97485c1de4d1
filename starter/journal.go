package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"ebb/internal/natural"
	"ebb/internal/operation"
	"ebb/internal/ops"
)

// journal writes one line for each change, for a log or a pipe.
type journal struct {
	out, errs io.Writer
	err       error
	last      ops.Operation
	begun     bool
}

func (j *journal) show(op ops.Operation) {
	stamp := time.Now().Format(time.TimeOnly)
	lines := changes(j.last, op)
	if !j.begun {
		lines = append([]string{fmt.Sprintf("%s (operation %s)", op, op.ID)}, lines...)
	}
	j.last, j.begun = op, true
	for _, line := range lines {
		if j.err == nil {
			_, j.err = fmt.Fprintf(j.out, "%s  %s\n", stamp, line)
		}
	}
}

func (j *journal) notice(text string) { say(j.errs, text) }
func (j *journal) close() error       { return j.err }

// changes are the lines that lead from one look at an operation to the next.
func changes(before, now ops.Operation) []string {
	var lines []string
	if now.Cancelling && !before.Cancelling {
		lines = append(lines, "cancelling: taking back what was done")
	}
	lines = append(lines, changedStatus(before.Status, now.Status, now.State)...)
	for _, name := range names(before.Live, now.Live) {
		for _, line := range changedLive(before.Live[name], now.Live[name]) {
			lines = append(lines, name+"  "+line)
		}
	}
	if now.Notice != "" && shape(now.Notice) != shape(before.Notice) {
		lines = append(lines, now.Notice)
	}
	if now.State == ops.Done && before.State != ops.Done {
		lines = append(lines, verdict(now))
	}
	return lines
}

func changedStatus(before, now *operation.Status, state ops.State) []string {
	if now == nil {
		return nil
	}
	if before == nil {
		before = &operation.Status{}
	}
	var lines []string
	if now.Step != before.Step && !state.Over() { // the last step is in the verdict
		lines = append(lines, now.Step)
	}
	if now.Warning != "" && now.Warning != before.Warning { // they are added to
		lines = append(lines, "warning: "+strings.TrimPrefix(strings.TrimPrefix(now.Warning, before.Warning), "; "))
	}
	for _, n := range now.Nodes {
		old := operation.NodeStatus{Phase: operation.PhasePending}
		if i := slices.IndexFunc(before.Nodes, func(o operation.NodeStatus) bool { return o.Node == n.Node }); i >= 0 {
			old = before.Nodes[i]
		}
		if text := changedNode(old, n); text != "" {
			lines = append(lines, n.Node+"  "+text)
		}
	}
	return lines
}

// changedNode is what is new of a node; "" when it only waits for its turn again.
func changedNode(before, now operation.NodeStatus) string {
	text := phaseText(now)
	switch {
	case before.Phase == now.Phase && before.Attempt == now.Attempt && before.Detail == now.Detail:
		return ""
	case now.Phase == operation.PhasePending && before.Phase == operation.PhaseStaging:
		text = "staged"
	case now.Phase == operation.PhasePending && now.Detail == "":
		return ""
	}
	if now.Detail != "" {
		text += ": " + firstLine(now.Detail)
	}
	return text
}

// changedLive is what is new at a node: how much there is to move, who is
// blocked by what, what the script printed.
func changedLive(before, now ops.Live) []string {
	var lines []string
	if now.Drain != nil {
		known := map[string]string{}
		for _, b := range blocked(before.Drain) {
			known[b.Pod] = cause(b)
		}
		if now.Drain.Total > 0 && (before.Drain == nil || before.Drain.Total == 0) {
			lines = append(lines, count(now.Drain.Total, "pod")+" to move")
		}
		for _, b := range blocked(now.Drain) {
			if known[b.Pod] != cause(b) {
				lines = append(lines, b.String())
			}
			delete(known, b.Pod)
		}
		for _, pod := range slices.Sorted(maps.Keys(known)) {
			lines = append(lines, "no longer blocked: "+pod)
		}
	}
	for line := range strings.Lines(appended(whole(before.Output), whole(now.Output))) {
		lines = append(lines, "| "+strings.TrimRight(line, "\r\n"))
	}
	if now.Trouble != "" && shape(now.Trouble) != shape(before.Trouble) {
		lines = append(lines, now.Trouble)
	}
	return lines
}

// cause is what has to change for a pod to leave: with a budget the figures in
// the reason come and go.
func cause(b operation.BlockedPod) string {
	if b.Budget != "" {
		return b.Budget + "\n" + b.Advice
	}
	return shape(b.Reason) + "\n" + b.Advice
}

// appended is what came after before in now, which is the end of a growing text.
func appended(before, now string) string {
	for from := 0; from < len(before); from++ {
		if rest, ok := strings.CutPrefix(now, before[from:]); ok {
			return rest
		}
	}
	return now
}

// whole is a text up to its last complete line.
func whole(s string) string { return s[:strings.LastIndexByte(s, '\n')+1] }

var digits = regexp.MustCompile(`[0-9]+`)

// shape is a text without its numbers: a countdown is no news.
func shape(s string) string { return digits.ReplaceAllString(s, "#") }

func names(a, b map[string]ops.Live) []string {
	list := slices.Collect(maps.Keys(a))
	for name := range b {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return natural.Sorted(list)
}
