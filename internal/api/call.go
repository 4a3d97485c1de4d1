package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"
)

// writeTimeout is how long a caller may take to accept a piece of an answer.
const writeTimeout = 30 * time.Second

// call is one request and what was found out about it on its way.
type call struct {
	w       *recorder
	r       *http.Request
	id      string // of the request
	began   time.Time
	route   *route
	sent    io.Reader // the body without its bound
	leave   func()
	release func()

	cordoned  context.Context // ends when the server is cordoned
	principal *Principal      // nil until it is known
	operation string          // that it is about, for the audit
	cluster   string
	code      Code // of the problem it was answered with
}

// saneID is a request ID that may go into headers and logs as it is.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func newCall(w http.ResponseWriter, r *http.Request) *call {
	c := &call{w: &recorder{ResponseWriter: w}, r: r, id: r.Header.Get(HeaderRequest), began: time.Now(), leave: func() {}, release: func() {}}
	if !saneID.MatchString(c.id) {
		var made [8]byte
		_, _ = rand.Read(made[:]) // never fails; an ID of zeros would do no harm
		c.id = hex.EncodeToString(made[:])
	}
	w.Header().Set(HeaderRequest, c.id)
	return c
}

func (c *call) ctx() context.Context { return c.r.Context() }

// refuse answers with the problem that an error is, unless something was written
// already: then the connection is cut, for a good end would be a lie.
func (c *call) refuse(err error) {
	f := failureOf(c.ctx(), err)
	c.code = f.Code
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	if f.Code == CodeDraining && c.route.mutates() && errors.Is(context.Cause(c.ctx()), errDraining) && c.r.Header.Get(HeaderKey) == "" {
		f.Detail += "; it had no " + HeaderKey + ": look first whether it was done"
	}
	c.bound()
	f.write(c.w, c.id)
}

// answer writes a good answer as JSON.
func (c *call) answer(status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fail(http.StatusInternalServerError, CodeInternal, "write the answer: %v", err)
	}
	c.bound()
	c.w.Header().Set("Content-Type", typeJSON)
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(data, '\n')) // nobody is left to tell
	return nil
}

// bound gives the caller some time to accept what is written next. A writer that
// knows no deadline has nobody slow behind it.
func (c *call) bound() {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// allowed checks that the caller has a role on a cluster. The answer is the same
// whether there is such a cluster or not.
func (c *call) allowed(least Role, cluster string) error {
	c.cluster = cluster
	if c.principal.May(least, cluster) {
		return nil
	}
	return fail(http.StatusForbidden, CodeForbidden, "%s does not have the role %s on cluster %q", c.principal.Name, least, brief(cluster))
}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
