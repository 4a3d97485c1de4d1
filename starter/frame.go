package main

import (
	"fmt"
	"strings"
	"time"

	"ebb/internal/ops"
	"ebb/workflows"
)

// blockedShown is how many blocked pods are named below a node.
const blockedShown = 4

// frame is an operation as a table of at most height lines, none wider than
// width. A width or height that is not positive is no limit.
func frame(op ops.Operation, now time.Time, width, height int) []string {
	lines := heading(op, now)
	if op.Status != nil && len(op.Status.Nodes) > 0 {
		room := 0
		if height > 0 {
			room = max(height-len(lines)-2, 3)
		}
		lines = append(append(lines, ""), nodeLines(op, room)...)
	}
	if op.Notice != "" {
		lines = append(lines, "", "! "+op.Notice)
	}
	for i := range lines {
		lines[i] = fit(lines[i], width)
	}
	return lines
}

func heading(op ops.Operation, now time.Time) []string {
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
	if live, ok := clusterTrouble(op); ok {
		lines = append(lines, "trying again: "+live)
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
func nodeLines(op ops.Operation, room int) []string {
	t := table{head: []string{" ", "NODE", "ROLE", "PHASE", "", ""}}
	for _, n := range op.Status.Nodes {
		t.row(mark(n, op), n.Node, string(n.Role), phaseText(n), podsText(op.Live[n.Node].Drain), firstLine(n.Detail))
	}
	rows := t.lines()
	lines, hidden := rows[:1:1], map[workflows.Phase]int{}
	var below [][]string
	high := len(rows)
	for _, n := range op.Status.Nodes {
		details := liveLines(op.Live[n.Node])
		below, high = append(below, details), high+len(details)
	}
	for i, n := range op.Status.Nodes {
		if room > 0 && high > room && quiet(n) {
			hidden[n.Phase]++
			high--
			if len(hidden) == 1 && hidden[n.Phase] == 1 {
				high++ // the line that says so
			}
			continue
		}
		lines = append(append(lines, rows[i+1]), below[i]...)
	}
	if len(hidden) > 0 {
		lines = append(lines, "   and "+counted(hidden))
	}
	if room > 0 && len(lines) > room {
		lines = append(lines[:room-1], "   …")
	}
	return lines
}

func quiet(n workflows.NodeStatus) bool {
	switch n.Phase {
	case workflows.Pending, workflows.Done, workflows.Skipped, workflows.Drained, workflows.RolledBack:
		return true
	default:
		return false
	}
}

func counted(hidden map[workflows.Phase]int) string {
	var parts []string
	for _, phase := range []workflows.Phase{workflows.Done, workflows.Skipped, workflows.Drained, workflows.RolledBack, workflows.Pending} {
		if hidden[phase] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", hidden[phase], phase))
		}
	}
	return strings.Join(parts, ", ")
}

// mark is the sign in front of a node.
func mark(n workflows.NodeStatus, op ops.Operation) string {
	switch n.Phase {
	case workflows.Done, workflows.Skipped, workflows.Drained:
		return "✓"
	case workflows.Failed:
		return "✗"
	case workflows.RolledBack:
		return "↩"
	case workflows.Pending:
		return " "
	default:
		if op.State.Over() {
			return " "
		}
		return "●"
	}
}

// liveLines are the lines below a node: who is blocked, what the script says.
func liveLines(live ops.Live) []string {
	var lines []string
	if live.Drain != nil {
		for i, b := range live.Drain.Blocked {
			if i == blockedShown {
				lines = append(lines, fmt.Sprintf("     and %d more", len(live.Drain.Blocked)-i))
				break
			}
			advice := b.Advice
			b.Advice = ""
			lines = append(lines, "     "+b.String())
			if advice != "" {
				lines = append(lines, "       → "+advice)
			}
		}
	}
	if output := strings.TrimSpace(live.Output); output != "" {
		lines = append(lines, "     | "+strings.TrimSpace(output[strings.LastIndexByte(output, '\n')+1:]))
	}
	if live.Trouble != "" {
		lines = append(lines, "     trying again: "+live.Trouble)
	}
	return lines
}
