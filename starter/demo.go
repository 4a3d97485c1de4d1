package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"ebb/internal/demo"
	"ebb/internal/ops"
)

func newDemo(a *app) *cobra.Command {
	var worker bool
	options := demo.Options{Out: a.out, Follow: a.followPlainly}
	cmd := &cobra.Command{
		Annotations: map[string]string{hereOnly: "yes"},
		Use:         "demo", Short: "Watch four operations on a sandbox cluster (run it with `make demo`)",
		Long: `Start a sandbox on this machine (a real etcd, kube-apiserver, controller manager and
scheduler, simulated kubelets, an SSH server per node), an engine with its Web UI and a
worker, and play four acts on it. Each act checks its end state against the API.

The programs of the sandbox are built by "make tools"; "make demo" does everything.`,
		Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if worker {
				return demo.Work(cmd.Context())
			}
			return demo.Run(cmd.Context(), options)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&options.Keep, "keep", false, "leave everything running at the end, until Ctrl-C")
	flags.BoolVar(&worker, "worker", false, "be the worker of a demo, which kills it in act 3")
	_ = flags.MarkHidden("worker") // the flag is there
	return cmd
}

// followPlainly shows an operation until it is over, a line for each change and one
// for its end, and returns its last state. Other than follow it does so on a terminal
// too, and an operation that was not done is not an error.
func (a *app) followPlainly(ctx context.Context, operations ops.Client, id string) (last ops.Operation, err error) {
	j := &journal{out: a.out, errs: a.errs}
	err = operations.Watch(ctx, id, func(op ops.Operation) { last = op; j.show(op) })
	if err = errors.Join(err, j.close()); err == nil && last.State != ops.Done {
		say(a.out, message(&outcomeError{op: last}))
	}
	return last, err
}
