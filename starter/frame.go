package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb/internal/operation"
	"ebb/internal/ops"
)

// How many reasons, and how many pods of each, are named below a node.
const (
	blockedShown = 4
	podsShown    = 3
)

// frame is an operation as a table of at most height lines, none wider than
// width. A width or height that is not positive is no limit.
func frame(op ops.Operation, now time.Time, width, height int) []string {
	lines := heading(op, now, width)
	var notice []string
	if op.Notice != "" {
		notice = append([]string{""}, wrap("! "+op.Notice, width, "  ")...)
	}
	if op.Status != nil && len(op.Status.Nodes) > 0 {
		room := 0
		if height > 0 {
			room = max(height-len(lines)-len(notice)-1, 3)
		}
		lines = append(append(lines, ""), nodeLines(op, width, room)...)
	}
	lines = append(lines, notice...)
	for i := range lines {
		lines[i] = fit(lines[i], width)
	}
	return lines
}

func heading(op ops.Operation, now time.Time, width int) []string {
	state := stateText(op)
	if !op.State.Over() {
		state += " for " + span(now.Sub(op.Started).Truncate(time.Second))
		if op.Status != nil && op.Status.Deadline.After(now) {
			state += ", " + span(op.Status.Deadline.Sub(now).Truncate(time.Second)) + " left"
		}
	} else {
		state += " after " + took(op)
	}
	lines := []string{fmt.Sprintf("%s   (%s)", op, op.ID), state}
	if op.Status != nil && op.Status.Step != "" && !op.State.Over() {
		lines[1] += ": " + op.Status.Step
	}
	if op.Status != nil && op.Status.Warning != "" {
		lines = append(lines, wrap("! "+op.Status.Warning, width, "  ")...)
	}
	if live, ok := clusterTrouble(op); ok {
		lines = append(lines, wrap("! "+live, width, "  ")...)
	}
	return lines
}

// clusterTrouble is the trouble of an activity that is not at a node.
func clusterTrouble(op ops.Operation) (string, bool) {
	for name, live := range op.Live {
		if live.Trouble != "" && !hasNode(op, name) {
			return live.Trouble, true
		}
	}
	return "", false
}

func hasNode(op ops.Operation, name string) bool {
	if op.Status == nil {
		return false
	}
	for _, n := range op.Status.Nodes {
		if n.Node == name {
			return true
		}
	}
	return false
}

// nodeLines is the table of nodes. When it is higher than room, what has yet to
// come and what is done give way to what goes on.
func nodeLines(op ops.Operation, width, room int) []string {
	t := table{head: []string{" ", "NODE", "ROLE", "PHASE", "", ""}}
	for _, n := range op.Status.Nodes {
		t.row(mark(n, op), n.Node, string(n.Role), phaseText(n), podsText(op.Live[n.Node].Drain), firstLine(n.Detail))
	}
	rows, high := t.lines(), 1
	details := make([][]string, len(op.Status.Nodes))
	for i, n := range op.Status.Nodes {
		details[i] = liveLines(op.Live[n.Node], width)
		high += 1 + len(details[i])
	}
	lines, hidden := rows[:1:1], map[operation.Phase]int{}
	hide := dispensable(op.Status.Nodes, room, high)
	for i, n := range op.Status.Nodes {
		if hide[i] {
			hidden[n.Phase]++
			continue
		}
		lines = append(append(lines, rows[i+1]), details[i]...)
	}
	if len(hidden) > 0 {
		lines = append(lines, "   and "+counted(hidden))
	}
	if room > 0 && len(lines) > room {
		lines = append(lines[:room-1], "   …")
	}
	return lines
}

// dispensable are the nodes to hide so that a table so high fits the room: those
// that are done, the first ones first, then those that wait, the last ones first.
func dispensable(nodes []operation.NodeStatus, room, high int) map[int]bool {
	hide := map[int]bool{}
	if room <= 0 || high <= room {
		return hide
	}
	var order []int
	for i, n := range nodes {
		if quiet(n) && n.Phase != operation.PhasePending {
			order = append(order, i)
		}
	}
	for i, n := range slices.Backward(nodes) {
		if n.Phase == operation.PhasePending {
			order = append(order, i)
		}
	}
	for _, i := range order[:min(len(order), high+1-room)] { // one more: for the line that tells of them
		hide[i] = true
	}
	return hide
}

func quiet(n operation.NodeStatus) bool {
	switch n.Phase {
	case operation.PhasePending, operation.PhaseDone, operation.PhaseSkipped, operation.PhaseDrained, operation.PhaseRolledBack:
		return true
	default:
		return false
	}
}

func counted(hidden map[operation.Phase]int) string {
	var parts []string
	for _, phase := range []operation.Phase{operation.PhaseDone, operation.PhaseSkipped, operation.PhaseDrained, operation.PhaseRolledBack, operation.PhasePending} {
		if hidden[phase] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", hidden[phase], phase))
		}
	}
	return strings.Join(parts, ", ")
}

// mark is the sign in front of a node.
func mark(n operation.NodeStatus, op ops.Operation) string {
	switch n.Phase {
	case operation.PhaseDone, operation.PhaseSkipped, operation.PhaseDrained:
		return "✓"
	case operation.PhaseFailed:
		return "✗"
	case operation.PhaseRolledBack:
		return "↩"
	case operation.PhasePending:
		return " "
	default:
		if op.State.Over() {
			return " "
		}
		return "●"
	}
}

// liveLines are the lines below a node: who is blocked, what the script says.
func liveLines(live ops.Live, width int) []string {
	var lines []string
	if live.Drain != nil {
		groups := blockedGroups(blocked(live.Drain))
		for i, g := range groups {
			if i == blockedShown {
				lines = append(lines, fmt.Sprintf("%sand %d more reasons", below, len(groups)-i))
				break
			}
			lines = append(lines, g.lines(width)...)
		}
	}
	if output := strings.TrimSpace(live.Output); output != "" {
		lines = append(lines, below+"| "+strings.TrimSpace(output[strings.LastIndexByte(output, '\n')+1:]))
	}
	if live.Trouble != "" {
		lines = append(lines, wrap(below+"! "+live.Trouble, width, below+"  ")...)
	}
	return lines
}

// below indents what belongs to the node above.
const below = "     "

// blockedGroup are the pods that one thing keeps from leaving.
type blockedGroup struct {
	budget, reason, advice string
	pods                   []string
}

func blockedGroups(blocked []operation.BlockedPod) []*blockedGroup {
	var groups []*blockedGroup
	for _, b := range blocked {
		i := slices.IndexFunc(groups, func(g *blockedGroup) bool {
			return g.budget == b.Budget && g.reason == b.Reason && g.advice == b.Advice
		})
		if i < 0 {
			i = len(groups)
			groups = append(groups, &blockedGroup{budget: b.Budget, reason: b.Reason, advice: b.Advice})
		}
		groups[i].pods = append(groups[i].pods, b.Pod)
	}
	return groups
}

func (g *blockedGroup) lines(width int) []string {
	who := strings.Join(g.pods[:min(len(g.pods), podsShown)], ", ")
	if more := len(g.pods) - podsShown; more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	text := who + ": " + g.reason
	if g.budget != "" {
		text = fmt.Sprintf("budget %s blocks %s: %s", g.budget, who, g.reason)
	}
	lines := wrap(below+text, width, below+"  ")
	if g.advice != "" {
		lines = append(lines, wrap(below+"→ "+g.advice, width, below+"  ")...)
	}
	return lines
}
