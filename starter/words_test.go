package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"ebb/internal/operation"
	"ebb/internal/ops"
	kubeversion "ebb/internal/version"
)

func TestExitCodes(t *testing.T) {
	outcome := func(op ops.Operation) error { return fmt.Errorf("wrapped: %w", &outcomeError{op: op}) }
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"done":                    {nil, 0},
		"some error":              {errors.New("no"), 1},
		"usage":                   {usage(&cobra.Command{Use: "ebb"}, "no"), 2},
		"senseless request":       {&ops.RequestError{}, 2},
		"unknown operation":       {&ops.UnknownError{ID: "x"}, 1},
		"ID taken":                {&ops.ConflictError{}, 3},
		"failed":                  {outcome(ops.Operation{State: ops.Failed}), 1},
		"refused":                 {outcome(ops.Operation{State: ops.Refused}), 3},
		"rolled back":             {outcome(ops.Operation{State: ops.RolledBack, RolledBack: true}), 4},
		"cancelled, rolled back":  {outcome(ops.Operation{State: ops.Cancelled, RolledBack: true}), 4},
		"cancelled in the middle": {outcome(ops.Operation{State: ops.Cancelled}), 1},
		"terminated":              {outcome(ops.Operation{State: ops.Terminated}), 1},
		"timed out":               {outcome(ops.Operation{State: ops.TimedOut}), 1},
		"stopped following":       {&stoppedError{id: "x"}, 130},
		"interrupted":             {fmt.Errorf("list: %w", context.Canceled), 130},
	} {
		require.Equal(t, c.code, exitCode(c.err), name)
	}
}

func TestVerdictSaysWhatToDoNext(t *testing.T) {
	began := time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	request := ops.Request{ID: "up-1", Kind: operation.KindUpgrade, Cluster: "prod", Route: kubeversion.Route{Target: "1.37.2"}}
	for _, c := range []struct {
		op   ops.Operation
		want string
	}{
		{ops.Operation{State: ops.Done, Started: began, Ended: began.Add(65 * time.Second), Status: &operation.Status{Step: "every node is at 1.37.2"}},
			"done in 1m05s: every node is at 1.37.2"},
		{ops.Operation{State: ops.Refused, Message: "up-1 refused: cluster prod is held", Outcome: &operation.Outcome{Cause: operation.Cause{Text: "cluster prod is held"}}}, "refused: cluster prod is held"},
		{ops.Operation{State: ops.Failed, Message: "node w1"},
			"failed: node w1\n  next: find the cause (`ebb status prod` shows the nodes, `ebb logs up-1` what the scripts printed), then `ebb upgrade prod --to 1.37.2` goes on where it stopped"},
		{ops.Operation{State: ops.RolledBack, RolledBack: true, Message: "x"}, "rolled back: x\n  next: remove what was in the way, then start it again"},
		{ops.Operation{State: ops.Cancelled, RolledBack: true, Message: "x"}, "cancelled, rolled back: x"},
		{ops.Operation{State: ops.Cancelled, Message: "x"}, "cancelled: x\n  next: `ebb upgrade prod --to 1.37.2` goes on where it stopped"},
	} {
		c.op.Request = request
		require.Equal(t, c.want, verdict(c.op))
	}
}

func TestMessageLeavesOutTheNoise(t *testing.T) {
	err := errors.New(`no Temporal engine answers at h:1: start one: failed reaching server: connection error: desc = "transport: Error while dialing: dial tcp h:1: connect: connection refused"`)
	require.Equal(t, "no Temporal engine answers at h:1: start one: dial tcp h:1: connect: connection refused", message(err))
	require.Equal(t, "plain", message(errors.New("plain")))
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		830 * time.Millisecond: "800ms", 1234 * time.Millisecond: "1.2s", 42400 * time.Millisecond: "42s",
		185 * time.Second: "3m05s", 2*time.Hour + 9*time.Minute + 40*time.Second: "2h10m",
	} {
		require.Equal(t, want, span(d))
	}
}
