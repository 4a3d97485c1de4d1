package api

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

	"ebb/internal/ops"
)

const (
	// silence is when a stream counts as dead: the server says something every 15 s.
	silence = 45 * time.Second
	// settled is how long a stream must last to count as an answer when nothing
	// new comes with it: a server that interrupts at once is as good as none.
	settled = 5 * time.Second
	// maxLine bounds a line, in bytes: an operation with thousands of nodes fits.
	maxLine = 16 << 20
)

// errBroken is a stream that ended without saying that it does.
var errBroken = errors.New("the stream broke off")

// Events implements ops.Client. A stream that is interrupted is resumed where it
// was.
func (c *Client) Events(ctx context.Context, id string, f ops.EventFilter, each func(ops.Event) error) error {
	if err := f.Validate(); err != nil {
		return err
	}
	return c.follow(ctx, id, func() url.Values { return eventQuery(f) }, func(l line) (bool, error) {
		if l.Type == statusType {
			return false, nil
		}
		f.After, f.Tail = l.Seq, 0
		return true, each(l.Event)
	})
}

func eventQuery(f ops.EventFilter) url.Values {
	q := url.Values{}
	set(q, "after", f.After)
	set(q, "node", f.Node)
	types := make([]string, len(f.Types))
	for i, t := range f.Types {
		types[i] = string(t)
	}
	set(q, "types", strings.Join(types, ","))
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
	query := func() url.Values { return url.Values{"types": {statusType}, "follow": {"true"}} }
	return c.follow(ctx, id, query, func(l line) (bool, error) {
		if l.Type != statusType || reflect.DeepEqual(l.Operation, last) {
			return false, nil
		}
		last = l.Operation
		changed(last)
		return true, nil
	})
}

// line is any line of a stream.
type line struct {
	ops.Event
	Operation ops.Operation `json:"operation"`
}

// follow reads a stream to its end, over as many connections as it takes. query
// says where to go on; take reports whether a line was news.
func (c *Client) follow(ctx context.Context, id string, query func() url.Values, take func(line) (news bool, err error)) error {
	var o outage
	for begun := false; ; {
		r := request{method: http.MethodGet, path: []string{"operations", id, "events"}, query: query(), stream: true}
		ended, rep, err := c.connection(ctx, r, &o, take)
		switch {
		case err != nil:
			return ofOperation(id, err)
		case ended:
			return nil
		}
		v := classify(rep)
		if v == answered { // a stream that was begun, and is to be gone on with
			v = leaving
		}
		begun = begun || rep.status == http.StatusOK
		r.resumed = begun && r.query.Get("types") != statusType
		if err := c.wait(ctx, &o, r, rep, v); err != nil {
			return err
		}
	}
}

// connection reads one connection's part of a stream. ended says that it was the
// last; otherwise rep is why it has stopped. The error is one of the caller's, or
// what the gateway has answered.
func (c *Client) connection(ctx context.Context, r request, o *outage, take func(line) (bool, error)) (ended bool, rep reply, err error) {
	alive, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watchdog := time.AfterFunc(silence, func() { stop(errBroken) })
	defer watchdog.Stop()
	res, rep := c.attempt(alive, r)
	if rep.err != nil || rep.status >= 300 {
		if classify(rep) == answered {
			c.recovered(o, c.now())
			return false, rep, c.failure(rep)
		}
		return false, rep, nil
	}
	defer func() { _ = res.Body.Close() }() // only read from
	if kind := res.Header.Get("Content-Type"); kind != typeEvents {
		return false, reply{err: &strayError{fmt.Sprintf("the answer is %s and not a stream of an Ebb gateway", cut(kind))}}, nil
	}
	began := c.now()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		data, err := readLine(lines)
		if err != nil {
			if ctx.Err() != nil {
				return false, reply{}, context.Cause(ctx)
			}
			return false, reply{status: rep.status, header: rep.header, err: cmpErr(context.Cause(alive), err)}, nil
		}
		watchdog.Reset(silence)
		var l line
		if len(data) > 0 {
			if err := json.Unmarshal(data, &l); err != nil {
				return false, reply{err: &strayError{fmt.Sprintf("a line of the stream cannot be read (%v): is the gateway of another version?", err)}}, nil
			}
		}
		switch l.Type {
		case lineEnd:
			c.recovered(o, began)
			return true, rep, nil
		case lineRetry:
			return false, rep, nil
		default:
		}
		news := false
		if len(data) > 0 {
			if news, err = take(l); err != nil {
				return false, reply{}, err
			}
		}
		if news || c.now().Sub(began) >= settled {
			c.recovered(o, began)
		}
	}
}

// cmpErr is the cause of an end that has one.
func cmpErr(cause, err error) error {
	if cause != nil {
		return cause
	}
	return err
}

// readLine reads a whole line without its end. Half a line is none.
func readLine(r *bufio.Reader) ([]byte, error) {
	var data []byte
	for {
		part, err := r.ReadSlice('\n')
		data = append(data, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(data, "\r\n"), nil
		case len(data) > maxLine:
			return nil, &strayError{fmt.Sprintf("a line of the stream is longer than %d bytes", maxLine)}
		case errors.Is(err, io.EOF):
			return nil, errBroken
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
