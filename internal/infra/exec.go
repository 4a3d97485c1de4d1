package infra

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"ebb/internal/config"
)

const (
	protocol       = 1        // "version" in a request; it grows when a field changes its meaning
	maxAnswer      = 64 << 10 // bytes of stdout: an answer is some 20
	errorTail      = 2000     // bytes of stderr in an error
	defaultTimeout = 2 * time.Minute
	// pipeDelay is how long the pipes of a command that has ended are waited
	// for, when a child that it left behind holds them open.
	pipeDelay = 2 * time.Second
)

// Actions of a request.
const (
	actionState   = "state"
	actionDestroy = "destroy"
)

// request is what a command reads on stdin, as one JSON object.
type request struct {
	Version int     `json:"version"`
	Action  string  `json:"action"`
	Machine Machine `json:"machine"`
}

// answer is what a command prints on stdout, as one JSON object.
type answer struct {
	State State `json:"state"`
}

// command asks a program, one run per call. The program inherits the
// environment. Exit code 0 with the answer on stdout is success (destroy may
// print nothing); any other exit code fails the call, which may be repeated, so
// the program must take a repeated destroy and a machine that is gone as done.
type command struct {
	argv    []string
	timeout time.Duration
}

func newCommand(cfg config.Infrastructure) (Provider, error) {
	if len(cfg.Command) == 0 || cfg.Command[0] == "" {
		return nil, errors.New("infrastructure.command is required with provider exec: the program and its arguments")
	}
	timeout := cfg.Timeout.D()
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &command{argv: cfg.Command, timeout: timeout}, nil
}

func (c *command) State(ctx context.Context, m Machine) (State, error) {
	out, err := c.run(ctx, actionState, m)
	if err != nil {
		return "", err
	}
	got, err := parseAnswer(out)
	if err != nil {
		return "", c.fault(actionState, m, err)
	}
	return got.State, nil
}

func (c *command) Destroy(ctx context.Context, m Machine) error {
	out, err := c.run(ctx, actionDestroy, m)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return err
	}
	// Exit code 0 has said that the machine is going; its state may lag behind.
	if _, err := parseAnswer(out); err != nil {
		return c.fault(actionDestroy, m, err)
	}
	return nil
}

func (c *command) fault(action string, m Machine, err error) error {
	return fmt.Errorf("infrastructure command %s, %s of the machine of node %s: %w", c.argv[0], action, m.Node, err)
}

// run makes one call, bounded by the timeout, and returns stdout.
func (c *command) run(ctx context.Context, action string, m Machine) ([]byte, error) {
	input, err := json.Marshal(request{Version: protocol, Action: action, Machine: m})
	if err != nil {
		return nil, c.fault(action, m, err)
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, c.argv[0], c.argv[1:]...) // #nosec G204 -- the operator's own program
	stdout, stderr := &head{most: maxAnswer}, &tail{most: errorTail}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be killed with it
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = pipeDelay

	err = cmd.Run()
	switch {
	case err == nil && stdout.over:
		return nil, c.fault(action, m, fmt.Errorf("printed more than %d bytes on stdout", maxAnswer))
	case err == nil:
		return stdout.data, nil
	case errors.Is(err, exec.ErrWaitDelay):
		// Ended well, but a child it left behind still writes: stop that too.
		if kill := killGroup(cmd.Process.Pid); kill != nil {
			return nil, c.fault(action, m, kill)
		}
		return stdout.data, nil
	}
	return nil, c.fault(action, m, c.explain(ctx, limited, err, stderr))
}

// explain turns the failure of a run into an error that says what to do.
func (c *command) explain(ctx, limited context.Context, err error, stderr *tail) error {
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", ctx.Err())
	case limited.Err() != nil:
		return fmt.Errorf("no answer within %s (infrastructure.timeout), killed: %w%s", c.timeout, limited.Err(), stderr.suffix())
	case errors.As(err, &exit):
		return fmt.Errorf("%w%s", err, stderr.suffix())
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("program not found: install it on the worker or correct infrastructure.command: %w", err)
	}
	return err
}

// killGroup kills a process group; one that has ended is no error.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", pid, err)
	}
	return nil
}

// parseAnswer reads exactly one JSON object that holds a known state.
func parseAnswer(out []byte) (answer, error) {
	const want = `stdout must be one JSON object such as {"state":"running"}`
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return answer{}, errors.New(want + ", it is empty")
	}
	if out[0] != '{' { // null, too, would decode without an error
		return answer{}, errors.New(want)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	var got answer
	if err := dec.Decode(&got); err != nil {
		return answer{}, fmt.Errorf("%s: %w", want, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return answer{}, errors.New(want + ", there is something after it")
	}
	if !got.State.valid() {
		return answer{}, fmt.Errorf("state must be running, stopped, gone or unknown, not %.40q", string(got.State))
	}
	return got, nil
}

// head keeps the first bytes written to it.
type head struct {
	data []byte
	most int
	over bool // more was written
}

func (h *head) Write(p []byte) (int, error) {
	room := h.most - len(h.data)
	if len(p) > room {
		h.over = true
	}
	h.data = append(h.data, p[:min(room, len(p))]...)
	return len(p), nil
}

// tail keeps the last bytes written to it.
type tail struct {
	data []byte
	most int
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - t.most; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// suffix is what was written, ready to stand at the end of an error.
func (t *tail) suffix() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.data), ""))
	if text == "" {
		return ""
	}
	return ": " + text
}
