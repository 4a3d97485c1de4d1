package operation

import (
	"fmt"
	"strings"
	"time"

	"ebb/internal/policy"
	"ebb/internal/version"
)

// QueryStatus is the query that every operation and every node of an upgrade
// answers: with a Status and a NodeStatus.
const QueryStatus = "status"

// Phase is where a node is in an operation.
type Phase string

// Phases of a node.
const (
	PhasePending         Phase = "pending"
	PhaseChecking        Phase = "checking"
	PhaseStaging         Phase = "staging"
	PhaseCordoning       Phase = "cordoning"
	PhaseCordoned        Phase = "cordoned"
	PhaseDraining        Phase = "draining"
	PhaseDrained         Phase = "drained"
	PhaseWaitingToRetry  Phase = "waiting to retry"
	PhaseUpgrading       Phase = "upgrading"
	PhaseVerifying       Phase = "verifying"
	PhaseUncordoning     Phase = "uncordoning"
	PhaseWaitingForReady Phase = "waiting for Ready"
	PhaseRemoving        Phase = "removing"
	PhaseDone            Phase = "done"
	PhaseSkipped         Phase = "skipped"
	PhaseFailed          Phase = "failed"
	PhaseRolledBack      Phase = "rolled back"
)

// NodeStatus is one node of a running or finished operation.
type NodeStatus struct {
	Node    string      `json:"node"`
	Role    policy.Role `json:"role"`
	Phase   Phase       `json:"phase"`
	Attempt int         `json:"attempt,omitempty"` // of the drain or the script; 1 is the first
	Detail  string      `json:"detail,omitempty"`
}

// Status is what an operation says of itself.
type Status struct {
	Operation string          `json:"operation"`
	Kind      Kind            `json:"kind"`
	Cluster   string          `json:"cluster"`
	Target    version.Version `json:"target,omitempty"`
	Step      string          `json:"step"`
	Nodes     []NodeStatus    `json:"nodes,omitempty"`
	Started   time.Time       `json:"started"`
	Deadline  time.Time       `json:"deadline,omitzero"`
	Paused    time.Time       `json:"paused,omitzero"`   // since when no further node is started
	Warning   string          `json:"warning,omitempty"` // what an operator should know before it is too late
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
