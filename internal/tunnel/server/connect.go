package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ebb/internal/tunnel/session"
)

// Connect returns a handler of HTTP CONNECT that dials in the cluster of a request. It needs
// HTTP/1.1, as kube-apiserver's dialler does.
func (s *Server) Connect(cluster func(*http.Request) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "want CONNECT HOST:PORT", http.StatusMethodNotAllowed)
			return
		}
		name, err := cluster(r)
		if err != nil {
			RespondRefused(w, s.Refuse("client", name, err))
			return
		}
		c, err := s.Dial(r.Context(), name, "tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), connectStatus(err))
			return
		}
		if err := hijack(w, c); err != nil {
			_ = c.Close()
			http.Error(w, err.Error(), http.StatusHTTPVersionNotSupported)
		}
	})
}

// RespondRefused tells a client why it is refused.
func RespondRefused(w http.ResponseWriter, err error) {
	code := http.StatusForbidden
	if status.Code(err) == codes.ResourceExhausted { // it may come again
		code = http.StatusTooManyRequests
	}
	http.Error(w, err.Error(), code)
}

func connectStatus(err error) int {
	switch {
	case errors.Is(err, ErrNotAllowed):
		return http.StatusForbidden
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// hijack takes the client's connection over and carries it to its end.
func hijack(w http.ResponseWriter, c *session.Conn) error {
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(raw, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_, _ = raw.Close(), c.Close()
		return nil // nobody is there to be told
	}
	session.Join(c, clientConn{Conn: raw, rest: buffered.Reader})
	return nil
}

// clientConn is a hijacked connection; what was read too early is in rest.
type clientConn struct {
	net.Conn
	rest *bufio.Reader
}

func (c clientConn) Read(p []byte) (int, error) { return c.rest.Read(p) }

// CloseWrite closes one direction of a TCP, Unix or TLS connection.
func (c clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return io.ErrClosedPipe
}
