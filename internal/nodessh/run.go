package nodessh

import (
	"context"
	_ "embed" // the node's side of a run
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A run is a script that goes on without the connection that started it, at most
// once per directory. On the node, the directory is the whole truth about it: see
// node/wrapper.sh for its files and node/run.sh for what is done with them.

//go:embed node/run.sh
var runScript string

//go:embed node/wrapper.sh
var wrapperScript string

// Run is a script to run detached. The script works in Dir, is told that path as
// EBB_RUN_DIR, reads an empty input, and is run by the program its #! line names.
type Run struct {
	Dir    string // on the node; relative = under the login directory
	Script []byte
	Env    map[string]string
}

// RunState is where a run is in its life.
type RunState string

// The states of a run.
const (
	RunAbsent  RunState = "absent"  // never started
	RunRunning RunState = "running" // going on
	RunExited  RunState = "exited"  // ended, with an exit code
	RunLost    RunState = "lost"    // ended without one: killed, or the machine went down
)

// RunStatus is what a node knows about a run.
type RunStatus struct {
	State    RunState `json:"state"`
	ExitCode int      `json:"exitCode"` // of an exited run; 143 or 137 when it was stopped
	Size     int64    `json:"size"`     // bytes of output so far
}

// Start starts a run and returns when it has begun. A run that exists in that
// directory, in whatever state, is left alone, so a Start that failed is repeated.
func (c *Client) Start(ctx context.Context, run Run) error {
	env, err := envFile(run.Env)
	if err != nil {
		return fmt.Errorf("start run %s: %w", run.Dir, err)
	}
	if strings.ContainsRune(string(run.Script), 0) {
		return fmt.Errorf("start run %s: the script holds a NUL byte: it must be text", run.Dir)
	}
	_, err = c.action(ctx, "start", run.Dir, map[string]string{
		"script":  string(run.Script),
		"env":     env,
		"launch":  launchFile(run.Script),
		"wrapper": wrapperScript,
	})
	return err
}

// Status reports on a run.
func (c *Client) Status(ctx context.Context, dir string) (RunStatus, error) {
	return c.action(ctx, "status", dir, nil)
}

// Stop ends a run: SIGTERM, after the grace (whole seconds, rounded up) SIGKILL,
// and returns when nothing of it is left. A run that does not run is left alone.
func (c *Client) Stop(ctx context.Context, dir string, grace time.Duration) (RunStatus, error) {
	seconds := max(0, (grace+time.Second-1)/time.Second)
	return c.action(ctx, "stop", dir, map[string]string{"grace": fmt.Sprint(int64(seconds))})
}

// action has the node do one thing with a run directory and report.
func (c *Client) action(ctx context.Context, action, dir string, args map[string]string) (RunStatus, error) {
	script, err := actionScript(action, dir, args)
	if err != nil {
		return RunStatus{}, err
	}
	stdout, stderr, exit, err := c.Exec(ctx, script)
	if err != nil {
		return RunStatus{}, fmt.Errorf("%s run %s: %w", action, dir, err)
	}
	status, err := parseReport(strings.TrimSuffix(stdout, "\n"))
	if err != nil {
		return RunStatus{}, fmt.Errorf("%s run %s: %w", action, dir, c.complaint(err, stderr, exit))
	}
	return status, nil
}

// actionScript puts the values that run.sh works with in front of it.
func actionScript(action, dir string, args map[string]string) (string, error) {
	if dir == "" || strings.HasPrefix(dir, "-") || strings.ContainsAny(dir, "\x00\n") {
		return "", fmt.Errorf("%s run: %q cannot be a run directory", action, dir)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "action=%s\ndir=%s\n", action, quote(dir))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		fmt.Fprintf(&b, "%s=%s\n", name, quote(args[name]))
	}
	b.WriteString(runScript)
	return b.String(), nil
}

// refusal is a message of the node's own, not a broken answer.
type refusal string

func (r refusal) Error() string { return string(r) }

// parseReport reads "S <state> <exit code> <size>" or "F <message>".
func parseReport(line string) (RunStatus, error) {
	if message, found := strings.CutPrefix(line, "F "); found {
		return RunStatus{}, refusal(message)
	}
	var status RunStatus
	if _, err := fmt.Sscanf(line, "S %s %d %d", &status.State, &status.ExitCode, &status.Size); err != nil {
		return RunStatus{}, fmt.Errorf("unexpected answer %q", line)
	}
	switch status.State {
	case RunAbsent, RunRunning, RunExited, RunLost:
		return status, nil
	default:
		return RunStatus{}, fmt.Errorf("unexpected answer %q", line)
	}
}

// complaint finds out why a node gave no report: sudo, the node itself, or a cut.
func (c *Client) complaint(err error, stderr string, exit int) error {
	stderr = strings.TrimSpace(stderr)
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return &RunError{Node: c.target.Node, Message: joinNonEmpty(string(refused), stderr)}
	case c.target.Sudo && strings.HasPrefix(stderr, "sudo:"):
		return &SudoError{Node: c.target.Node, Stderr: stderr}
	case exit > 128: // killed, as when the machine goes down
		return &TransportError{Node: c.target.Node, Op: "read the answer", Err: fmt.Errorf("the shell was killed (exit code %d)", exit)}
	case exit != 0 || stderr != "":
		return &RunError{Node: c.target.Node, Message: joinNonEmpty(fmt.Sprintf("the shell ended with exit code %d", exit), stderr)}
	default:
		return &TransportError{Node: c.target.Node, Op: "read the answer", Err: err}
	}
}

func joinNonEmpty(message, detail string) string {
	if detail == "" {
		return message
	}
	return message + ": " + detail
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// envFile is sourced by the run, so that no value is ever on a command line.
func envFile(env map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(name) {
			return "", fmt.Errorf("%q cannot be an environment variable", name)
		}
		if strings.ContainsRune(env[name], 0) {
			return "", fmt.Errorf("environment variable %s holds a NUL byte", name)
		}
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(env[name]))
	}
	return b.String(), nil
}

// launchFile starts the script by the interpreter of its #! line, so that it also
// works where nothing may be executed from the run directory.
func launchFile(script []byte) string {
	interpreter := "sh"
	first, _, _ := strings.Cut(string(script), "\n")
	if line, found := strings.CutPrefix(first, "#!"); found {
		// As the kernel does: a program and at most one argument.
		program, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
		if program != "" {
			interpreter = quote(program)
			if argument = strings.TrimSpace(argument); argument != "" {
				interpreter += " " + quote(argument)
			}
		}
	}
	return "umask 022\n. ./env\nEBB_RUN_DIR=$(pwd -P)\nexport EBB_RUN_DIR\nexec " + interpreter + " ./script\n"
}
