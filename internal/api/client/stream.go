package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

const (
	// streamIdleTimeout is how long a stream may be silent; the server sends at least
	// an empty line every 15 s.
	streamIdleTimeout = 45 * time.Second
	// minStreamUptime is how long a stream that brings nothing new must last to end the
	// retries: a server that closes each stream at once has not recovered.
	minStreamUptime = 5 * time.Second
	// maxLineBytes fits the status of an operation with thousands of nodes.
	maxLineBytes = 16 << 20
)

// errStreamBroken is a stream that ended without an end line.
var errStreamBroken = errors.New("the stream broke off")

// Events implements ops.Client. An interrupted stream is resumed after the last event.
func (c *Client) Events(ctx context.Context, id string, f ops.EventFilter, each func(ops.Event) error) error {
	if err := f.Validate(); err != nil {
		return err
	}
	return c.followStream(ctx, id, func() url.Values { return eventQuery(f) }, func(l streamLine) (bool, error) {
		if l.Type == wire.LineStatus {
			return false, nil
		}
		f.After, f.Tail = l.Seq, 0
		return true, each(l.Event)
	})
}

func eventQuery(f ops.EventFilter) url.Values {
	q := url.Values{}
	setIfNotEmpty(q, "after", f.After)
	setIfNotEmpty(q, "node", f.Node)
	types := make([]string, len(f.Types))
	for i, t := range f.Types {
		types[i] = string(t)
	}
	setIfNotEmpty(q, "types", strings.Join(types, ","))
	if f.Tail > 0 {
		q.Set("tail", strconv.Itoa(f.Tail))
	}
	if f.Follow {
		q.Set("follow", "true")
	}
	return q
}

// Watch implements ops.Client.
func (c *Client) Watch(ctx context.Context, id string, changed func(ops.Operation)) error {
	var last ops.Operation
	query := func() url.Values { return url.Values{"types": {wire.LineStatus}, "follow": {"true"}} }
	return c.followStream(ctx, id, query, func(l streamLine) (bool, error) {
		if l.Type != wire.LineStatus || reflect.DeepEqual(l.Operation, last) {
			return false, nil
		}
		last = l.Operation
		changed(last)
		return true, nil
	})
}

// streamLine is any line of a stream: an event, a wire.StatusLine or a wire.EndLine.
type streamLine struct {
	ops.Event
	Operation ops.Operation `json:"operation"`
}

// followStream calls handle for every line until the stream of an operation has ended,
// and reconnects as often as needed. query returns the parameters of the next request;
// handle reports whether a line was new to the caller.
func (c *Client) followStream(ctx context.Context, id string, query func() url.Values, handle func(streamLine) (news bool, err error)) error {
	var state retryState
	for begun := false; ; {
		req := request{method: http.MethodGet, path: []string{"operations", id, "events"}, query: query(), streaming: true}
		ended, a, err := c.readStream(ctx, req, &state, handle)
		switch {
		case err != nil:
			return operationError(id, err)
		case ended:
			return nil
		}
		result := classify(a, c.seenGateway.Load())
		if result == final { // the stream was opened, and has more to come
			result = unavailable
		}
		begun = begun || a.status == http.StatusOK
		req.resuming = begun && req.query.Get("types") != wire.LineStatus
		if err := c.waitToRetry(ctx, &state, req, a, result); err != nil {
			return err
		}
	}
}

// readStream reads a stream from one connection. ended is true after the end line;
// otherwise, without an error, a says why the connection ended. The error is one of
// handle, of the context, or a final response of the gateway.
func (c *Client) readStream(ctx context.Context, req request, state *retryState, handle func(streamLine) (bool, error)) (ended bool, a attempt, err error) {
	alive, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watchdog := time.AfterFunc(streamIdleTimeout, func() { stop(errStreamBroken) })
	defer watchdog.Stop()
	res, a := c.attempt(alive, req)
	if a.err != nil || a.status >= 300 {
		if classify(a, c.seenGateway.Load()) == final {
			c.reportRecovery(state, c.now())
			return false, a, c.responseError(a)
		}
		return false, a, nil
	}
	defer func() { _ = res.Body.Close() }() // only read from
	if kind := res.Header.Get("Content-Type"); kind != wire.ContentTypeEvents {
		return false, attempt{err: &notGatewayError{fmt.Sprintf("the answer is %s and not a stream of an Ebb gateway", contentType(kind))}}, nil
	}
	began := c.now()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		data, err := readLine(lines)
		if err != nil {
			if ctx.Err() != nil {
				return false, attempt{}, context.Cause(ctx)
			}
			return false, attempt{status: a.status, header: a.header, err: causeOr(context.Cause(alive), err)}, nil
		}
		watchdog.Reset(streamIdleTimeout)
		var l streamLine
		if len(data) > 0 {
			if err := json.Unmarshal(data, &l); err != nil {
				return false, attempt{err: &notGatewayError{fmt.Sprintf("a line of the stream cannot be read (%v): is the gateway of another version?", err)}}, nil
			}
		}
		switch l.Type {
		case wire.LineEnd:
			c.reportRecovery(state, began)
			return true, a, nil
		case wire.LineRetry:
			return false, a, nil
		default:
		}
		news := false
		if len(data) > 0 {
			if news, err = handle(l); err != nil {
				return false, attempt{}, err
			}
		}
		if news || c.now().Sub(began) >= minStreamUptime {
			c.reportRecovery(state, began)
		}
	}
}

// causeOr returns cause if there is one, else err.
func causeOr(cause, err error) error {
	if cause != nil {
		return cause
	}
	return err
}

// readLine returns the next line without its line break. An incomplete last line is
// errStreamBroken.
func readLine(r *bufio.Reader) ([]byte, error) {
	var data []byte
	for {
		part, err := r.ReadSlice('\n')
		data = append(data, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(data, "\r\n"), nil
		case len(data) > maxLineBytes:
			return nil, &notGatewayError{fmt.Sprintf("a line of the stream is longer than %d bytes", maxLineBytes)}
		case errors.Is(err, io.EOF):
			return nil, errStreamBroken
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
