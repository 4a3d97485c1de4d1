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

// A run is a script that runs detached from the connection that started it, at most
// once per directory. Its whole state is in that directory on the node: node/wrapper.sh
// describes the files, node/run.sh works with them.

//go:embed node/run.sh
var runScript string

//go:embed node/wrapper.sh
var wrapperScript string

// Run is a script to run detached. Dir is its working directory and the value of
// EBB_RUN_DIR, stdin is empty, and the interpreter is that of its #! line, default sh.
type Run struct {
	Dir    string // on the node; a relative path is below the login directory
	Script []byte
	Env    map[string]string
}

// RunState is the state of a run.
type RunState string

// The states of a run.
const (
	RunAbsent  RunState = "absent"  // never started
	RunRunning RunState = "running" // started and not ended
	RunExited  RunState = "exited"  // ended with an exit code
	RunLost    RunState = "lost"    // ended without one: killed, or the machine rebooted
)

// RunStatus is what a node reports about a run.
type RunStatus struct {
	State    RunState `json:"state"`
	ExitCode int      `json:"exitCode"` // of an exited run; 143 or 137 when it was stopped
	Size     int64    `json:"size"`     // bytes of output so far
}

// Start starts a run and returns when the script is running. A run that was started in
// that directory before is left as it is, whatever its state: Start can be repeated.
func (c *Client) Start(ctx context.Context, run Run) error {
	env, err := envFile(run.Env)
	if err != nil {
		return fmt.Errorf("start run %s: %w", run.Dir, err)
	}
	if strings.ContainsRune(string(run.Script), 0) {
		return fmt.Errorf("start run %s: the script holds a NUL byte: it must be text", run.Dir)
	}
	_, err = c.runAction(ctx, "start", run.Dir, map[string]string{
		"script":  string(run.Script),
		"env":     env,
		"launch":  launchFile(run.Script),
		"wrapper": wrapperScript,
	})
	return err
}

// Status returns the status of a run.
func (c *Client) Status(ctx context.Context, dir string) (RunStatus, error) {
	return c.runAction(ctx, "status", dir, nil)
}

// Stop sends SIGTERM to a run and, after the grace period (rounded up to whole
// seconds), SIGKILL. It returns the status when no process of the run is left. A run
// that is not running is left as it is.
func (c *Client) Stop(ctx context.Context, dir string, grace time.Duration) (RunStatus, error) {
	seconds := max(0, (grace+time.Second-1)/time.Second)
	return c.runAction(ctx, "stop", dir, map[string]string{"grace": fmt.Sprint(int64(seconds))})
}

// runAction runs one action of node/run.sh on a run directory and returns the status
// that the node reports afterwards.
func (c *Client) runAction(ctx context.Context, action, dir string, args map[string]string) (RunStatus, error) {
	script, err := actionScript(action, dir, args)
	if err != nil {
		return RunStatus{}, err
	}
	stdout, stderr, exit, err := c.Exec(ctx, script)
	if err != nil {
		return RunStatus{}, fmt.Errorf("%s run %s: %w", action, dir, err)
	}
	status, err := parseStatus(strings.TrimSuffix(stdout, "\n"))
	if err != nil {
		return RunStatus{}, fmt.Errorf("%s run %s: %w", action, dir, c.statusError(err, stderr, exit))
	}
	return status, nil
}

// actionScript returns node/run.sh with the variables that it uses set in front of it.
func actionScript(action, dir string, args map[string]string) (string, error) {
	if dir == "" || strings.HasPrefix(dir, "-") || strings.ContainsAny(dir, "\x00\n") {
		return "", fmt.Errorf("%s run: %q cannot be a run directory", action, dir)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "action=%s\ndir=%s\n", action, shellQuote(dir))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		fmt.Fprintf(&b, "%s=%s\n", name, shellQuote(args[name]))
	}
	b.WriteString(runScript)
	return b.String(), nil
}

// nodeError is an error that node/run.sh itself reports ("F <message>").
type nodeError string

func (r nodeError) Error() string { return string(r) }

// parseStatus parses "S <state> <exit code> <size>". "F <message>" is a nodeError.
func parseStatus(line string) (RunStatus, error) {
	if message, found := strings.CutPrefix(line, "F "); found {
		return RunStatus{}, nodeError(message)
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

// statusError returns the typed error for an action that gave no status: *RunError when
// the node reports one, *SudoError, or *TransportError when the answer was cut off.
func (c *Client) statusError(err error, stderr string, exit int) error {
	stderr = strings.TrimSpace(stderr)
	var reported nodeError
	switch {
	case errors.As(err, &reported):
		return &RunError{Node: c.target.Node, Message: joinNonEmpty(string(reported), stderr)}
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

// envFile returns the file "env", which the run sources: no value is on a command line.
func envFile(env map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(name) {
			return "", fmt.Errorf("%q cannot be an environment variable", name)
		}
		if strings.ContainsRune(env[name], 0) {
			return "", fmt.Errorf("environment variable %s holds a NUL byte", name)
		}
		fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(env[name]))
	}
	return b.String(), nil
}

// launchFile returns the file "launch", which starts the script by the interpreter of
// its #! line: that works on a file system that is mounted noexec, too.
func launchFile(script []byte) string {
	interpreter := "sh"
	first, _, _ := strings.Cut(string(script), "\n")
	if line, found := strings.CutPrefix(first, "#!"); found {
		// Like the kernel: a program and at most one argument.
		program, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
		if program != "" {
			interpreter = shellQuote(program)
			if argument = strings.TrimSpace(argument); argument != "" {
				interpreter += " " + shellQuote(argument)
			}
		}
	}
	return "umask 022\n. ./env\nEBB_RUN_DIR=$(pwd -P)\nexport EBB_RUN_DIR\nexec " + interpreter + " ./script\n"
}
