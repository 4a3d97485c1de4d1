package nodessh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"ebb/internal/tail"
)

// maxChunk is the most bytes of output that Follow passes on in one call.
const maxChunk = 256 << 10

// Follow calls out with a run's output from an offset in bytes, as it is written, until
// the run has ended, and returns its final status; the state is never running. For an
// absent run it returns at once. After a *TransportError the caller dials again and
// follows from the offset it has reached, so that every byte is seen exactly once. An
// error of out ends Follow and is returned unwrapped. A chunk is valid during the call
// only.
func (c *Client) Follow(ctx context.Context, dir string, offset int64, out func(chunk []byte) error) (RunStatus, error) {
	script, err := actionScript("follow", dir, map[string]string{
		"offset": strconv.FormatInt(offset, 10),
		"chunk":  strconv.Itoa(maxChunk),
	})
	if err != nil {
		return RunStatus{}, err
	}
	sessionCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	stderr := tail.Writer{Limit: maxOutput}
	sessionDone := make(chan struct{})
	var exit int
	var sessionErr error
	go func() {
		defer close(sessionDone)
		exit, sessionErr = c.runSession(sessionCtx, script, writer, &stderr)
		// The reader gets EOF after all output: writes to the pipe return when they are read.
		_ = writer.CloseWithError(io.EOF) // never fails
	}()
	status, err := readFrames(bufio.NewReader(reader), out)
	cancel()
	_ = reader.CloseWithError(io.ErrClosedPipe) // never fails; unblocks the session's copying
	<-sessionDone

	var callbackErr callbackError
	switch {
	case err == nil && status.State != RunAbsent && status.Size < offset:
		return status, fmt.Errorf("follow run %s: its output has %d bytes, fewer than the %d already read", dir, status.Size, offset)
	case err == nil:
		return status, nil
	case errors.As(err, &callbackErr):
		return RunStatus{}, callbackErr.error
	case sessionErr != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return RunStatus{}, fmt.Errorf("follow run %s: %w", dir, sessionErr)
	default:
		return RunStatus{}, fmt.Errorf("follow run %s: %w", dir, c.statusError(err, stderr.String(), exit))
	}
}

// callbackError marks an error that the caller's out function has returned.
type callbackError struct{ error }

// readFrames reads the frames that do_follow of node/run.sh writes, calls out with the
// output in them, and returns the status in the last one.
func readFrames(r *bufio.Reader, out func([]byte) error) (RunStatus, error) {
	buffer := make([]byte, maxChunk)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return RunStatus{}, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "K" {
			continue
		}
		text, isData := strings.CutPrefix(line, "D ")
		if !isData {
			return parseStatus(line)
		}
		size, err := strconv.Atoi(text)
		if err != nil || size < 0 || size > maxChunk {
			return RunStatus{}, fmt.Errorf("unexpected answer %q", line)
		}
		// A chunk that arrives only in part is discarded: the caller reads it again from
		// its offset.
		if _, err := io.ReadFull(r, buffer[:size]); err != nil {
			return RunStatus{}, err
		}
		if err := out(buffer[:size]); err != nil {
			return RunStatus{}, callbackError{err}
		}
	}
}
