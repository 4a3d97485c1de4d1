package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/policy"
	kubeversion "ebb/internal/version"
)

var began = time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)

// upgrading is an upgrade in the middle, with w2 blocked.
func upgrading() ops.Operation {
	blocked := func(pod string) operation.BlockedPod {
		return operation.BlockedPod{Pod: "default/" + pod, Budget: "default/web", Reason: "needs 8 healthy pods and has 8", Advice: "run more replicas"}
	}
	return ops.Operation{
		Request: ops.Request{ID: "up-1", Kind: operation.KindUpgrade, Cluster: "prod", Route: kubeversion.Route{Target: "1.37.2"}}, State: ops.Running, Started: began,
		Status: &operation.Status{Step: "upgrading w2", Deadline: began.Add(time.Hour), Nodes: []operation.NodeStatus{
			{Node: "cp1", Role: policy.FirstControlPlane, Phase: operation.PhaseDone},
			{Node: "w1", Role: policy.Worker, Phase: operation.PhaseUpgrading, Attempt: 1},
			{Node: "w2", Role: policy.Worker, Phase: operation.PhaseDraining, Attempt: 2},
			{Node: "w3", Role: policy.Worker, Phase: operation.PhasePending},
		}},
		Live: map[string]ops.Live{
			"w1": {Output: "[upgrade] one\n[upgrade] two\n"},
			"w2": {Drain: &operation.DrainProgress{Node: "w2", Total: 7, Gone: 3, Waiting: 4, Blocked: []operation.BlockedPod{
				blocked("web-1"), blocked("web-2"), blocked("web-3"), blocked("web-4"),
				{Pod: "default/slow", Reason: "terminating"}, {Pod: "default/next", Queued: true, Budget: "default/web"},
			}}},
		},
	}
}

func TestFrame(t *testing.T) {
	require.Equal(t, `upgrade of prod to 1.37.2   (up-1)
running for 5m00s, 55m00s left: upgrading w2

   NODE  ROLE                 PHASE
✓  cp1   first-control-plane  done
●  w1    worker               upgrading
     | [upgrade] two
●  w2    worker               draining (attempt 2)  3 of 7 pods gone, 5 blocked
     budget default/web blocks default/web-1, default/web-2, default/web-3 and 1 more: needs 8 healthy pods and has 8
     → run more replicas
     default/slow: terminating
   w3    worker               pending`,
		strings.Join(frame(upgrading(), began.Add(5*time.Minute), 0, 0), "\n"))
}

func TestFrameFitsTheScreen(t *testing.T) {
	op := upgrading()
	op.Notice = `no worker polls the task queue "ebb": start one with ebb-worker`
	for i := range 40 {
		op.Status.Nodes = append(op.Status.Nodes, operation.NodeStatus{Node: fmt.Sprintf("n%d", i), Role: policy.Worker, Phase: operation.PhasePending})
	}
	lines := frame(op, began.Add(time.Minute), 60, 20)
	require.LessOrEqual(t, len(lines), 20)
	text := strings.Join(lines, "\n")
	for _, line := range lines {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 60, line)
	}
	require.Len(t, lines, 20)
	require.Contains(t, text, "   w3    worker               pending\n   n0 ", "those that come next are shown")
	require.Contains(t, text, "and 1 done, 37 pending", "what is done and what waits give way to what goes on")
	require.Contains(t, text, "●  w1")
	require.Contains(t, text, "→ run more replicas")
	require.Contains(t, text, "ebb-worker", "a notice is wrapped, not cut")
}

func TestFrameOfTroubleThatIsNotAtANode(t *testing.T) {
	op := upgrading()
	op.Live = map[string]ops.Live{"Claim": {Trouble: "Claim is tried again (3): connection refused"}}
	require.Contains(t, frame(op, began, 0, 0), "! Claim is tried again (3): connection refused")
}

func TestWrap(t *testing.T) {
	require.Equal(t, []string{"  one two", "    three", "    four"}, wrap("  one two three four", 10, "    "))
	require.Equal(t, []string{"unlimited width"}, wrap("unlimited width", 0, ""))
	require.Equal(t, "abc…", fit("abcdefgh", 4))
}

func TestJournalSaysEachChangeOnce(t *testing.T) {
	before := upgrading()
	require.Empty(t, changes(before, before))

	first := changes(ops.Operation{}, before)
	require.Equal(t, []string{
		"upgrading w2",
		"cp1  done", "w1  upgrading", "w2  draining (attempt 2)",
		"w1  | [upgrade] one", "w1  | [upgrade] two",
		"w2  7 pods to move",
		"w2  default/web-1 blocked by budget default/web: needs 8 healthy pods and has 8 (run more replicas)",
		"w2  default/web-2 blocked by budget default/web: needs 8 healthy pods and has 8 (run more replicas)",
		"w2  default/web-3 blocked by budget default/web: needs 8 healthy pods and has 8 (run more replicas)",
		"w2  default/web-4 blocked by budget default/web: needs 8 healthy pods and has 8 (run more replicas)",
		"w2  default/slow: terminating",
	}, first)

	now := upgrading()
	now.Cancelling = true
	now.Status.Nodes[2].Detail = "1 pod left\nand output"
	now.Live["w1"] = ops.Live{Output: "[upgrade] one\n[upgrade] two\n[upgrade] three\n[upgr"}
	progress := *now.Live["w2"].Drain
	progress.Gone, progress.Blocked = 4, progress.Blocked[1:5]
	progress.Blocked[0].Reason = "needs 8 healthy pods and has 7" // figures are no news
	now.Live["w2"] = ops.Live{Drain: &progress, Trouble: "nothing heard of its worker x for 5s"}
	require.Equal(t, []string{
		"cancelling: taking back what was done",
		"w2  draining (attempt 2): 1 pod left",
		"w1  | [upgrade] three",
		"w2  no longer blocked: default/web-1",
		"w2  nothing heard of its worker x for 5s",
	}, changes(upgrading(), now))

	later := now
	later.Live = map[string]ops.Live{"w1": now.Live["w1"], "w2": {Drain: &progress, Trouble: "nothing heard of its worker x for 6s"}}
	require.Empty(t, changes(now, later), "a countdown is no news")
}

func TestJournalOfTheEnd(t *testing.T) {
	done := upgrading()
	done.State, done.Ended = ops.Done, began.Add(31*time.Second)
	done.Live, done.Status = nil, &operation.Status{Step: "every node is at 1.37.2"}
	require.Equal(t, []string{"done in 31s: every node is at 1.37.2"}, changes(upgrading(), done))

	failed := done
	failed.State = ops.Failed
	require.Empty(t, changes(upgrading(), failed), "the error says it")
}

func TestStagedNodeIsNotCalledPending(t *testing.T) {
	at := func(p operation.Phase, detail string) operation.NodeStatus {
		return operation.NodeStatus{Phase: p, Detail: detail}
	}
	require.Equal(t, "staged", changedNode(at(operation.PhaseStaging, ""), at(operation.PhasePending, "")))
	require.Empty(t, changedNode(at(operation.PhaseChecking, ""), at(operation.PhasePending, "")))
	require.Equal(t, "pending: no sudo", changedNode(at(operation.PhaseChecking, ""), at(operation.PhasePending, "no sudo")))
}

func TestAppended(t *testing.T) {
	for _, c := range []struct{ before, now, want string }{
		{"", "a\n", "a\n"},
		{"a\n", "a\nb\n", "b\n"},
		{"a\nb\nc\n", "b\nc\nd\n", "d\n"}, // the window has moved on
		{"a\n", "x\n", "x\n"},             // another run
		{"a\n", "a\n", ""},
	} {
		require.Equal(t, c.want, appended(c.before, c.now))
	}
}
