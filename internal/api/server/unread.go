package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	"ebb/internal/api/wire"
)

const (
	// discardBytes and discardTimeout limit how much of a body that nobody wants is read
	// all the same once the response is sent: a client that is cut off while it sends
	// does not read the response.
	discardBytes   = 16 << 20
	discardTimeout = 2 * time.Second
)

// requestBody is the body of a request, and knows whether it has come to its end.
type requestBody struct {
	io.ReadCloser
	ended bool
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// newRequestBody returns the body of a request. One that is known to be empty has ended.
func newRequestBody(r *http.Request) *requestBody {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	return &requestBody{ReadCloser: r.Body, ended: r.Body == http.NoBody}
}

// abandonBody keeps net/http from waiting for the rest of the body before it sends the
// response and before it ends the request: it would for as long as the client likes.
// The connection is not used again.
func (x *exchange) abandonBody() {
	if x.body.ended {
		return
	}
	if x.r.ProtoMajor == 1 {
		x.w.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now()) // fails only for readers without deadlines, in tests
}

// discardBody sends the response and then reads what still comes of a body that was
// abandoned, for a moment, unless the server is to end.
func (s *Server) discardBody(x *exchange) {
	if x.body.ended || s.lifecycle.status().State != wire.Serving {
		return
	}
	deadlines := http.NewResponseController(x.w)
	if deadlines.Flush() != nil || deadlines.SetReadDeadline(time.Now().Add(discardTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, x.body, discardBytes) // as much of it as comes
	_ = deadlines.SetReadDeadline(time.Now())
}
