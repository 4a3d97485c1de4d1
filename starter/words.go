package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ebb/internal/command"
	"ebb/internal/operation"
	"ebb/internal/ops"
	kubeversion "ebb/internal/version"
)

// stateText is the state of an operation in a word or two.
func stateText(op ops.Operation) string {
	switch op.State {
	case ops.Running:
		if op.Cancelling {
			return "being cancelled"
		}
		if op.Status != nil && !op.Status.Paused.IsZero() {
			return "paused"
		}
		return "running"
	case ops.RolledBack:
		return "rolled back"
	case ops.Cancelled:
		if op.RolledBack {
			return "cancelled, rolled back"
		}
		return "cancelled"
	case ops.TimedOut:
		return "timed out"
	default:
		return strings.ToLower(string(op.State))
	}
}

// verdict is how an operation ended, and what to do next.
func verdict(op ops.Operation) string {
	if op.State == ops.Done {
		return fmt.Sprintf("done in %s: %s", took(op), outcome(op))
	}
	text := stateText(op)
	if m := reasonText(op); m != "" {
		text += ": " + m
	}
	if next := advice(op); next != "" {
		text += "\n  next: " + next
	}
	return text
}

// reasonText returns why an operation did not go through. That of a refusal is its
// cause: the state beside it says "refused" already.
func reasonText(op ops.Operation) string {
	if op.State == ops.Refused && op.Outcome != nil {
		return op.Outcome.Cause.Text
	}
	return op.Message
}

func outcome(op ops.Operation) string {
	if op.Status != nil && op.Status.Step != "" {
		return op.Status.Step
	}
	return op.String()
}

// advice is what to do about an operation that did not end well.
func advice(op ops.Operation) string {
	switch {
	case op.State == ops.Failed && op.Kind == operation.KindUpgrade:
		return fmt.Sprintf("find the cause (`ebb status %s` shows the nodes, `ebb logs %s` what the scripts printed), then `%s` goes on where it stopped", op.Cluster, op.ID, again(op))
	case op.State == ops.Failed:
		return fmt.Sprintf("`ebb status %s` shows in which state the cluster and its nodes are", op.Cluster)
	case op.State == ops.RolledBack:
		return "remove what was in the way, then start it again"
	case op.State == ops.Cancelled && !op.RolledBack && op.Kind == operation.KindUpgrade:
		return fmt.Sprintf("`%s` goes on where it stopped", again(op))
	case op.State == ops.Terminated, op.State == ops.TimedOut:
		return fmt.Sprintf("`ebb status %s` shows the nodes; starting the operation again takes over from this one", op.Cluster)
	}
	return ""
}

// again is the command that goes on with an upgrade.
func again(op ops.Operation) string {
	text := fmt.Sprintf("ebb upgrade %s --to %s", op.Cluster, op.Target)
	if len(op.Hops) > 0 {
		text += " --hops " + strings.Join(kubeversion.Strings(op.Hops), ",")
	}
	return text
}

// phaseText is where a node is, with the attempt when it is not the first.
func phaseText(n operation.NodeStatus) string {
	if n.Attempt > 1 {
		return fmt.Sprintf("%s (attempt %d)", n.Phase, n.Attempt)
	}
	return string(n.Phase)
}

// podsText is how far a drain is.
func podsText(p *operation.DrainProgress) string {
	if p == nil || p.Total == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %s gone", p.Gone, count(p.Total, "pod"))
	if n := len(blocked(p)); n > 0 {
		text += fmt.Sprintf(", %d blocked", n)
	}
	return text
}

// blocked are the pods that do not only wait for their turn, which is no news.
func blocked(p *operation.DrainProgress) []operation.BlockedPod {
	if p == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Blocked), func(b operation.BlockedPod) bool { return b.Queued })
}

func took(op ops.Operation) string {
	if op.Ended.IsZero() {
		return "…"
	}
	return span(op.Ended.Sub(op.Started))
}

// span is a duration as people read it: 0.8s, 42s, 3m05s, 2h10m.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// count is a number of things: "1 node", "2 nodes".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func clock(t time.Time) string { return t.Local().Format(time.DateTime) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// say prints what is of interest to a person and no result.
func say(w io.Writer, text string) { command.Printf(w, "ebb: %s\n", text) }
