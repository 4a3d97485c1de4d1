package nodessh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// chunkLimit bounds one chunk of followed output, in bytes.
const chunkLimit = 256 << 10

// Follow hands on a run's output from an offset in bytes, as it comes, until the
// run has ended, and returns how it ended; the state is never running. An absent
// run returns at once. After a *TransportError the caller dials again and follows
// from the offset it has reached: every byte is seen exactly once. An error of out
// ends it and is returned as it is; the chunk is only valid during the call.
func (c *Client) Follow(ctx context.Context, dir string, offset int64, out func(chunk []byte) error) (RunStatus, error) {
	script, err := actionScript("follow", dir, map[string]string{
		"offset": strconv.FormatInt(offset, 10),
		"chunk":  strconv.Itoa(chunkLimit),
	})
	if err != nil {
		return RunStatus{}, err
	}
	sessionCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	var stderr tail
	ended := make(chan struct{})
	var exit int
	var sessionErr error
	go func() {
		defer close(ended)
		exit, sessionErr = c.session(sessionCtx, script, writer, &stderr)
		// Everything is read before the end is seen: writes to the pipe are done.
		_ = writer.CloseWithError(io.EOF) // never fails
	}()
	status, err := readFrames(bufio.NewReader(reader), out)
	cancel()
	_ = reader.CloseWithError(io.ErrClosedPipe) // never fails; unblocks the session's copying
	<-ended

	var fromOut outError
	switch {
	case err == nil && status.State != RunAbsent && status.Size < offset:
		return status, fmt.Errorf("follow run %s: its output has %d bytes, fewer than the %d already read", dir, status.Size, offset)
	case err == nil:
		return status, nil
	case errors.As(err, &fromOut):
		return RunStatus{}, fromOut.error
	case sessionErr != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return RunStatus{}, fmt.Errorf("follow run %s: %w", dir, sessionErr)
	default:
		return RunStatus{}, fmt.Errorf("follow run %s: %w", dir, c.complaint(err, stderr.String(), exit))
	}
}

// outError marks an error of the caller's own.
type outError struct{ error }

// readFrames reads what do_follow of run.sh writes, to the final report.
func readFrames(r *bufio.Reader, out func([]byte) error) (RunStatus, error) {
	buffer := make([]byte, chunkLimit)
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
			return parseReport(line)
		}
		size, err := strconv.Atoi(text)
		if err != nil || size < 0 || size > chunkLimit {
			return RunStatus{}, fmt.Errorf("unexpected answer %q", line)
		}
		// What of a chunk has arrived before a cut is thrown away: it is read again
		// from the offset, which is the caller's.
		if _, err := io.ReadFull(r, buffer[:size]); err != nil {
			return RunStatus{}, err
		}
		if err := out(buffer[:size]); err != nil {
			return RunStatus{}, outError{err}
		}
	}
}
