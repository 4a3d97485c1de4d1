package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"ebb/internal/sandbox/nodefs"
)

// infraRequest is what the exec infrastructure provider sends on stdin.
type infraRequest struct {
	Version int    `json:"version"`
	Action  string `json:"action"`
	Machine struct {
		Node      string `json:"node"`
		MachineID string `json:"machineID"`
	} `json:"machine"`
}

// infra owns the machines of the sandbox in dir: it tells their state and
// destroys them. The sandbox sees the marker and takes the machine off the net.
func infra(dir string) int {
	var req infraRequest
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return fail("infra", fmt.Errorf("read the request: %w", err))
	}
	if req.Version != 1 || req.Machine.Node == "" {
		return fail("infra", fmt.Errorf("a request of version 1 that names a node is needed, not version %d, node %q", req.Version, req.Machine.Node))
	}
	state, err := act(nodefs.Of(dir, req.Machine.Node), req)
	if err != nil {
		return fail("infra", fmt.Errorf("machine of node %s: %w", req.Machine.Node, err))
	}
	if err := tap(dir, req); err != nil {
		return fail("infra", err)
	}
	fmt.Printf("{\"state\":%q}\n", state)
	return 0
}

// tap tells the sandbox what was done, if it listens, and waits for its leave to answer.
func tap(dir string, req infraRequest) error {
	socket := nodefs.InfraTap(dir)
	if !nodefs.Marked(socket) {
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

func act(d nodefs.Dir, req infraRequest) (state string, err error) {
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
		if err := nodefs.Mark(d.Destroyed()); err != nil {
			return "", err
		}
	case "state":
	default:
		return "", fmt.Errorf("unknown action %q", req.Action)
	}
	switch {
	case nodefs.Marked(d.Destroyed()):
		return "gone", nil
	case nodefs.Marked(d.Stopped()):
		return "stopped", nil
	}
	return "running", nil
}
