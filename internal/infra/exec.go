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
	"ebb/internal/tail"
)

const (
	requestVersion = 1        // "version" in a request; raised when a field changes its meaning
	maxStdout      = 64 << 10 // bytes of stdout: a response has about 20, and 10 for each machine of states
	maxErrorText   = 2000     // bytes of stderr in an error
	defaultTimeout = 2 * time.Minute
	// pipeWaitDelay is how long the pipes of a command that has ended are waited
	// for, when a child that it left behind holds them open.
	pipeWaitDelay = 2 * time.Second
	// exitPermanent is the exit code of a command that would fail again (EX_CONFIG of
	// sysexits.h).
	exitPermanent = 78
)

// Actions of a request.
const (
	actionState     = "state"
	actionStates    = "states" // only of a program that is said to know it
	actionDestroy   = "destroy"
	actionAttachISO = "attach-iso"
	actionDetachISO = "detach-iso"
)

// request is what a command reads on stdin, as one JSON object.
type request struct {
	Version  int       `json:"version"`
	Action   string    `json:"action"`
	Machine  *Machine  `json:"machine,omitempty"`
	Machines []Machine `json:"machines,omitempty"` // of states
	ISO      *isoRef   `json:"iso,omitempty"`      // of attach-iso and detach-iso
}

// about names the call in an error.
func (r request) about() string {
	if r.Machine == nil {
		return fmt.Sprintf("%s of %d machines", r.Action, len(r.Machines))
	}
	return fmt.Sprintf("%s of the machine of node %s", r.Action, r.Machine.Node)
}

// isoRef is an ISO as a command is told of it.
type isoRef struct {
	Version string `json:"version"`
	Name    string `json:"name,omitempty"` // upgrade.iso
}

// response is what a command prints on stdout, as one JSON object.
type response struct {
	State State `json:"state"`
}

// statesResponse is the response to states.
type statesResponse struct {
	States []State `json:"states"` // in the order of the machines
}

// execProvider is the provider that runs a program, once per call. The program inherits
// the environment. Exit code 0 with the response on stdout is success (all but state may
// print nothing); any other exit code is an error, 78 a permanent one. Calls are repeated, so destroying a
// machine that is gone has to succeed, and so has attaching an ISO that is attached.
type execProvider struct {
	argv    []string
	timeout time.Duration
}

var (
	_ Provider = (*execProvider)(nil)
	_ ISODrive = (*execProvider)(nil)
)

func newExecProvider(cfg config.Infrastructure) (Provider, error) {
	if len(cfg.Command) == 0 || cfg.Command[0] == "" {
		return nil, errors.New("infrastructure.command is required with provider exec: the program and its arguments")
	}
	timeout := cfg.Timeout.D()
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	one := &execProvider{argv: cfg.Command, timeout: timeout}
	if cfg.States {
		return &execLister{one}, nil
	}
	return one, nil
}

// execLister is the provider that runs a program which knows the action states.
type execLister struct{ *execProvider }

var _ StateLister = (*execLister)(nil)

// States implements StateLister.
func (c *execLister) States(ctx context.Context, machines []Machine) ([]State, error) {
	req := request{Action: actionStates, Machines: machines}
	out, err := c.run(ctx, req)
	if err != nil {
		return nil, err
	}
	var got statesResponse
	if err := parseObject(out, &got, `{"states":["running","stopped"]}`); err != nil {
		return nil, c.wrapError(req, err)
	}
	if len(got.States) != len(machines) {
		return nil, c.wrapError(req, fmt.Errorf("states has %d items, want one for each machine", len(got.States)))
	}
	for _, state := range got.States {
		if err := state.check(); err != nil {
			return nil, c.wrapError(req, err)
		}
	}
	return got.States, nil
}

func (c *execProvider) State(ctx context.Context, m Machine) (State, error) {
	req := request{Action: actionState, Machine: &m}
	out, err := c.run(ctx, req)
	if err != nil {
		return "", err
	}
	got, err := parseResponse(out)
	if err != nil {
		return "", c.wrapError(req, err)
	}
	return got.State, nil
}

func (c *execProvider) Destroy(ctx context.Context, m Machine) error {
	return c.do(ctx, request{Action: actionDestroy, Machine: &m})
}

// AttachISO implements ISODrive.
func (c *execProvider) AttachISO(ctx context.Context, m Machine, iso ISO) error {
	return c.do(ctx, request{Action: actionAttachISO, Machine: &m, ISO: &isoRef{iso.Version, iso.name()}})
}

// DetachISO implements ISODrive.
func (c *execProvider) DetachISO(ctx context.Context, m Machine, iso ISO) error {
	if iso == (ISO{}) {
		return errors.ErrUnsupported
	}
	return c.do(ctx, request{Action: actionDetachISO, Machine: &m, ISO: &isoRef{iso.Version, iso.name()}})
}

// do is a call whose only answer is its success.
func (c *execProvider) do(ctx context.Context, req request) error {
	out, err := c.run(ctx, req)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return err
	}
	// Exit code 0 means success; the state that is printed may lag behind.
	if _, err := parseResponse(out); err != nil {
		return c.wrapError(req, err)
	}
	return nil
}

func (c *execProvider) wrapError(req request, err error) error {
	return fmt.Errorf("infrastructure command %s, %s: %w", c.argv[0], req.about(), err)
}

// run runs the program once, for at most the timeout, and returns stdout.
func (c *execProvider) run(ctx context.Context, req request) ([]byte, error) {
	req.Version = requestVersion
	input, err := json.Marshal(req)
	if err != nil {
		return nil, c.wrapError(req, err)
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, c.argv[0], c.argv[1:]...) // #nosec G204 -- the operator's own program
	stdout, stderr := &limitedBuffer{limit: maxStdout}, &tail.Writer{Limit: maxErrorText}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be killed with it
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = pipeWaitDelay

	err = cmd.Run()
	switch {
	case err == nil && stdout.exceeded:
		return nil, c.wrapError(req, fmt.Errorf("printed more than %d bytes on stdout", maxStdout))
	case err == nil:
		return stdout.data, nil
	case errors.Is(err, exec.ErrWaitDelay):
		// The program succeeded, but a child of it holds stdout open: kill it.
		if kill := killGroup(cmd.Process.Pid); kill != nil {
			return nil, c.wrapError(req, kill)
		}
		return stdout.data, nil
	}
	return nil, c.wrapError(req, c.describeError(ctx, limited, err, stderr))
}

// describeError returns the error of a run with the end of stderr and what to change.
func (c *execProvider) describeError(ctx, limited context.Context, err error, stderr *tail.Writer) error {
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", ctx.Err())
	case limited.Err() != nil:
		return fmt.Errorf("no answer within %s (infrastructure.timeout), killed: %w%s", c.timeout, limited.Err(), suffix(stderr))
	case errors.As(err, &exit) && exit.ExitCode() == exitPermanent:
		return permanentf("%w%s", err, suffix(stderr))
	case errors.As(err, &exit):
		return fmt.Errorf("%w%s", err, suffix(stderr))
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("program not found: install it on the worker or correct infrastructure.command: %w", err)
	}
	return err
}

// killGroup kills a process group; it returns nil when that has ended already.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", pid, err)
	}
	return nil
}

// parseResponse parses stdout, which must be one JSON object with a known state.
func parseResponse(out []byte) (got response, err error) {
	if err = parseObject(out, &got, `{"state":"running"}`); err == nil {
		err = got.State.check()
	}
	if err != nil {
		return response{}, err
	}
	return got, nil
}

// check returns an error for a state that there is not.
func (s State) check() error {
	if !s.valid() {
		return fmt.Errorf("state must be running, stopped, gone or unknown, not %.40q", string(s))
	}
	return nil
}

// parseObject parses stdout, which must be one JSON object such as the example.
func parseObject(out []byte, into any, example string) error {
	want := "stdout must be one JSON object such as " + example
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return errors.New(want + ", it is empty")
	}
	if out[0] != '{' { // null, too, would decode without an error
		return errors.New(want)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", want, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New(want + ", there is something after it")
	}
	return nil
}

// limitedBuffer keeps the first limit bytes written to it.
type limitedBuffer struct {
	data     []byte
	limit    int
	exceeded bool // more was written
}

func (h *limitedBuffer) Write(p []byte) (int, error) {
	room := h.limit - len(h.data)
	if len(p) > room {
		h.exceeded = true
	}
	h.data = append(h.data, p[:min(room, len(p))]...)
	return len(p), nil
}

// suffix returns what a program has written, ready to stand at the end of an error.
func suffix(stderr *tail.Writer) string {
	said := strings.TrimSpace(strings.ToValidUTF8(stderr.String(), ""))
	if said == "" {
		return ""
	}
	return ": " + said
}
