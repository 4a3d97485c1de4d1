package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"ebb/internal/ops"
)

func newLogs(a *app) *cobra.Command {
	f := ops.EventFilter{Types: []ops.EventType{ops.LogEvent}}
	cmd := &cobra.Command{
		Use: "logs OPERATION", Short: "Show what the scripts of an operation printed on the nodes",
		Long: `Show what the scripts of an upgrade (or of the removal of a control plane) printed on
the nodes, each line with its time, node and phase. The lines are kept with the
operation, so they are there after the node is gone, and on every machine that
reaches the engine.`,
		Example: "  ebb logs upgrade-prod-20261201-014711-3f9a -f --node w3",
		Args:    arguments(1, 1), ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			operations, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			return operations.Events(cmd.Context(), args[0], f, a.printLogLine)
		},
	}
	cmd.Flags().BoolVarP(&f.Follow, "follow", "f", false, "go on with what comes, until the operation is over")
	cmd.Flags().IntVar(&f.Tail, "tail", 0, "of the lines that are there only the last so many (default all)")
	cmd.Flags().StringVar(&f.Node, "node", "", "only of this node")
	return cmd
}

func (a *app) printLogLine(l ops.Event) error {
	if a.json() {
		return json.NewEncoder(a.out).Encode(l)
	}
	phase := l.Phase
	if l.Hop > 0 {
		phase += fmt.Sprintf(" hop %d", l.Hop+1)
	}
	if l.Attempt > 1 {
		phase += fmt.Sprintf(" run %d", l.Attempt)
	}
	_, err := fmt.Fprintf(a.out, "%s %s %s | %s\n", l.Time.Local().Format(time.TimeOnly), l.Node, phase, l.Text)
	return err
}
