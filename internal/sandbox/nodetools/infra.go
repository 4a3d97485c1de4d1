package nodetools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"ebb/internal/sandbox/nodedir"
)

// infraRequest is what the exec infrastructure provider sends on stdin.
type infraRequest struct {
	Version int    `json:"version"`
	Action  string `json:"action"`
	Machine struct {
		Node      string `json:"node"`
		MachineID string `json:"machineID"`
	} `json:"machine"`
	ISO struct {
		Version string `json:"version"`
	} `json:"iso"`
}

// cannotSucceed is the exit code for what is not worth another try: there is no such ISO.
const cannotSucceed = 78

// Infra is the infrastructure command of the sandbox in dir: it reads one request on
// stdin, which asks for the state of a machine, destroys it, or changes the ISO in its
// drive, and returns its exit code. The sandbox sees the marker of a destroyed machine and takes it off the net.
func Infra(dir string) int {
	var req infraRequest
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return fail("infra", fmt.Errorf("read the request: %w", err))
	}
	if req.Version != 1 || req.Machine.Node == "" {
		return fail("infra", fmt.Errorf("a request of version 1 that names a node is needed, not version %d, node %q", req.Version, req.Machine.Node))
	}
	state, err := act(dir, req)
	if err != nil {
		code := fail("infra", fmt.Errorf("machine of node %s: %w", req.Machine.Node, err))
		if errors.Is(err, fs.ErrNotExist) {
			code = cannotSucceed
		}
		return code
	}
	if err := notify(dir, req); err != nil {
		return fail("infra", err)
	}
	fmt.Printf("{\"state\":%q}\n", state)
	return 0
}

// notify tells the sandbox what was done, if it listens, and returns when the sandbox
// lets the command answer.
func notify(dir string, req infraRequest) error {
	socket := nodedir.InfraSocket(dir)
	if !nodedir.Marked(socket) {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", socket) // #nosec G704 -- a socket below the sandbox directory
	if err != nil {
		return fmt.Errorf("tell the sandbox: %w", err)
	}
	_, err = fmt.Fprintf(conn, "%s %s\n", req.Action, req.Machine.Node)
	if err == nil {
		_, err = io.Copy(io.Discard, conn) // to the end of the connection
	}
	return errors.Join(err, conn.Close())
}

// act does what is asked for and returns the state of the machine.
func act(dir string, req infraRequest) (state string, err error) {
	d := nodedir.Of(dir, req.Machine.Node)
	info, err := d.Info()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "gone", nil
	case err != nil:
		return "", err
	case req.Machine.MachineID != "" && req.Machine.MachineID != info.MachineID:
		// Another machine bears the node's name now: the one that is meant is gone.
		return "gone", nil
	}
	switch req.Action {
	case "destroy":
		err = nodedir.Mark(d.Destroyed())
	case "attach-iso":
		err = d.AttachISO(nodedir.ISO(dir, req.ISO.Version), req.ISO.Version)
	case "detach-iso":
		err = d.DetachISO()
	case "state":
	default:
		err = fmt.Errorf("unknown action %q", req.Action)
	}
	if err != nil {
		return "", err
	}
	switch {
	case nodedir.Marked(d.Destroyed()):
		return "gone", nil
	case nodedir.Marked(d.Stopped()):
		return "stopped", nil
	}
	return "running", nil
}
