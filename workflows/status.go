package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"ebb/activities"
	"ebb/internal/plan"
)

// QueryStatus is the query that every operation and every node of an upgrade
// answers: with a Status and a NodeStatus.
const QueryStatus = "status"

// Phase is where a node is in an operation.
type Phase string

// Phases of a node.
const (
	Pending     Phase = "pending"
	Checking    Phase = "checking"
	Staging     Phase = "staging"
	Cordoning   Phase = "cordoning"
	Cordoned    Phase = "cordoned"
	DrainPhase  Phase = "draining"
	Drained     Phase = "drained"
	WaitRetry   Phase = "waiting to retry"
	RunScript   Phase = "upgrading"
	Verifying   Phase = "verifying"
	Uncordoning Phase = "uncordoning"
	WaitReady   Phase = "waiting for Ready"
	Removing    Phase = "removing"
	Done        Phase = "done"
	Skipped     Phase = "skipped"
	Failed      Phase = "failed"
	RolledBack  Phase = "rolled back"
)

// NodeStatus is one node of a running or finished operation.
type NodeStatus struct {
	Node    string    `json:"node"`
	Role    plan.Role `json:"role"`
	Phase   Phase     `json:"phase"`
	Attempt int       `json:"attempt,omitempty"` // of the drain or the script; 1 is the first
	Detail  string    `json:"detail,omitempty"`
}

// Status is what an operation says of itself.
type Status struct {
	Operation string       `json:"operation"`
	Kind      Kind         `json:"kind"`
	Cluster   string       `json:"cluster"`
	Target    string       `json:"target,omitempty"`
	Step      string       `json:"step"`
	Nodes     []NodeStatus `json:"nodes,omitempty"`
	Started   time.Time    `json:"started"`
	Deadline  time.Time    `json:"deadline,omitzero"`
	Paused    time.Time    `json:"paused,omitzero"`   // since when no further node is started
	Warning   string       `json:"warning,omitempty"` // what an operator should know before it is too late
}

// Markdown is the status as the Web UI shows it.
func (s Status) Markdown() string {
	lines := []string{fmt.Sprintf("**%s of %s**: %s", s.Kind, s.Cluster, s.Step), ""}
	if !s.Paused.IsZero() {
		lines = append(lines, "**Paused** since "+s.Paused.UTC().Format(time.RFC3339)+": no further node is started", "")
	}
	if s.Warning != "" {
		lines = append(lines, "**Warning**: "+s.Warning, "")
	}
	if len(s.Nodes) > 0 {
		lines = append(lines, "| node | role | phase | |", "|---|---|---|---|")
	}
	for _, n := range s.Nodes {
		lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s |", n.Node, n.Role, n.Phase, firstLine(n.Detail)))
	}
	return strings.Join(lines, "\n") + "\n"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.ReplaceAll(line, "|", `\|`)
}

// track answers the status query of an operation, and takes the output of scripts
// that is sent to it off its hands: it is for those who read the history.
func (o *operation) track(ctx workflow.Context) error {
	workflow.Go(ctx, func(ctx workflow.Context) {
		for output := workflow.GetSignalChannel(ctx, activities.SignalOutput); output.Receive(ctx, nil); {
		}
	})
	return workflow.SetQueryHandler(ctx, QueryStatus, func() (Status, error) { return o.status, nil })
}

func (o *operation) step(ctx workflow.Context, format string, args ...any) {
	o.status.Step = fmt.Sprintf(format, args...)
	o.show(ctx)
}

// show puts the status where the Web UI shows it.
func (o *operation) show(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, o.status.Markdown())
}

// follow makes these nodes the ones that the status shows.
func (o *operation) follow(ctx workflow.Context, nodes []plan.Node) {
	o.status.Nodes = make([]NodeStatus, len(nodes))
	for i, n := range nodes {
		o.status.Nodes[i] = NodeStatus{Node: n.Name, Role: n.Role, Phase: Pending}
	}
	o.show(ctx)
}

// mark sets a node's place in the operation.
func (o *operation) mark(ctx workflow.Context, node string, phase Phase, attempt int, detail string) {
	for i := range o.status.Nodes {
		if o.status.Nodes[i].Node == node {
			n := &o.status.Nodes[i]
			n.Phase, n.Attempt, n.Detail = phase, attempt, detail
		}
	}
	o.show(ctx)
}
