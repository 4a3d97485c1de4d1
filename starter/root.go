package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

const about = `Ebb takes load off a thing before it touches it, and puts it back afterwards.

It drains, scales down and upgrades Kubernetes clusters made with kubeadm, as
durable operations on Temporal: an operation survives the death of any process,
this one included. Commands that start an operation follow it to its end; Ctrl-C
stops the following, never the operation.

Start with ` + "`ebb dev`" + ` (an engine, its Web UI and a worker in one process) and an
ebb.yaml that names your clusters; ` + "`ebb clusters check`" + ` tells whether Ebb can work
with them. Another engine is named by TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE; with
--gateway (or EBB_GATEWAY) all of it is done through an ebb-gateway instead.`

const aboutExitCodes = `Exit codes of ebb:

    0  done
    1  failed: the cluster, or the command, needs your attention
    2  usage: the command line is wrong, nothing was started
    3  refused: the operation was not accepted, nothing was touched
    4  rolled back: the operation did not go through (or was cancelled), and
       everything it did was taken back
  130  you stopped following with Ctrl-C; the operation goes on

upgrade, scale-down, drain, uncordon and watch end with the code of the operation. pause,
resume, retry, skip-node and plan end with 3 when the operation, or the cluster,
would not have it. The others end with 0, 1 or 2, whatever they show.`

// run is the whole command; it returns the exit code.
func run(ctx context.Context, a *app, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	a.Close()
	if err != nil {
		say(a.errs, message(err))
	}
	return exitCode(err)
}

// newRoot is the tree of commands. A new one is added to the list below.
func newRoot(a *app) *cobra.Command {
	a.log = zap.NewNop() // until the flags are read; completion never reads them
	root := &cobra.Command{
		Use: "ebb", Short: "Drain, scale down and upgrade Kubernetes clusters without an outage", Long: about,
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		Args: noSuchCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.errs)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%v", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "path of ebb.yaml (default $EBB_CONFIG, else ./ebb.yaml, else ~/.config/ebb/ebb.yaml)")
	flags.StringVarP(&a.output, "output", "o", "", `"json": one JSON object a line instead of text`)
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "log what the libraries do, to stderr")
	a.gateway.add(flags)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.validate(cmd) }

	root.AddGroup(
		&cobra.Group{ID: groupOperate, Title: "Start an operation:"},
		&cobra.Group{ID: groupFollow, Title: "Look at operations and clusters:"},
		&cobra.Group{ID: groupSteer, Title: "Steer an operation that runs:"},
		&cobra.Group{ID: groupEngine, Title: "Run Ebb:"})
	root.AddCommand(
		in(groupOperate, newUpgrade(a)), in(groupOperate, newScaleDown(a)), in(groupOperate, newDrain(a)), in(groupOperate, newUncordon(a)),
		in(groupFollow, newPlan(a)),
		in(groupFollow, newStatus(a)), in(groupFollow, newWatch(a)), in(groupFollow, newList(a)), in(groupFollow, newLogs(a)),
		in(groupSteer, newPause(a)), in(groupSteer, newResume(a)), in(groupSteer, newRetry(a)), in(groupSteer, newSkipNode(a)), in(groupSteer, newCancel(a)),
		in(groupFollow, newClusters(a)),
		in(groupEngine, newDev(a)), in(groupEngine, newDemo(a)),
		newVersion(a),
		&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: aboutExitCodes},
	)
	return root
}

// Groups of commands in the help.
const (
	groupOperate = "operate"
	groupFollow  = "follow"
	groupSteer   = "steer"
	groupEngine  = "engine"
)

func in(group string, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = group
	return cmd
}

func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return usage(cmd, "there is no command %q%s", args[0], hint)
}

// arguments checks the number of arguments; most < 0 is no limit.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage(cmd, "too few arguments: %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		case most >= 0 && len(args) > most:
			return usage(cmd, "unexpected argument %q: %s", args[most], strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}
