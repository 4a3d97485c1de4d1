package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
)

// maxBody bounds what a caller may send, in bytes: an upgrade of thousands of
// named nodes fits.
const maxBody = 1 << 20

// stages are what a request passes before its handler, in order. Who calls is
// found out before anything is told, also whether the server drains: to look up a
// token costs next to nothing, and a caller without one learns nothing.
func (s *Server) stages() []func(*call) error {
	return []func(*call) error{s.limitBody, s.authenticate, s.limitRate, s.authorize, s.admit}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := newCall(w, r)
	c.route = s.table.find(r)
	c.operation, c.cluster = r.PathValue("id"), r.PathValue("name")
	ctx, release := s.life.bound(r.Context())
	c.r = r.WithContext(ctx)
	s.metrics.begin()
	defer func() {
		p := recover()
		c.release()
		c.leave()
		release()
		p = s.recovered(c, p)
		s.finish(c)
		if p != nil {
			panic(p)
		}
	}()
	if s.life.now().State != Serving {
		w.Header().Set("Connection", "close") // the next request should find another server
	}
	if err := s.pass(c); err != nil {
		c.refuse(err)
	}
}

func (s *Server) pass(c *call) error {
	for _, stage := range s.stages() {
		if err := stage(c); err != nil {
			return err
		}
	}
	return c.route.handle(s, c)
}

// recovered answers a panic of a handler like any other fault. It returns what is
// to be panicked with: an answer that has begun can only be cut.
func (s *Server) recovered(c *call, p any) any {
	if p == nil {
		return nil
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the very value, as net/http compares it
		return p
	}
	s.log.Error("a request has made the gateway panic", zap.String("request", c.id), zap.String("route", c.route.name()),
		zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
	if c.w.status != 0 {
		return http.ErrAbortHandler
	}
	f := fail(http.StatusInternalServerError, CodeInternal, "a fault of the gateway: its log has more, under request %s", c.id)
	c.code = f.Code
	f.write(c.w, c.id)
	return nil
}

func (s *Server) limitBody(c *call) error {
	if c.r.ContentLength > maxBody {
		return c.tooLarge()
	}
	if c.r.Body != nil {
		c.sent = c.r.Body
		c.r.Body = http.MaxBytesReader(c.w, c.r.Body, maxBody)
	}
	return nil
}

const (
	// lingerBody and lingerTime are how much of a body that is too large is still
	// taken: who is cut off while it sends does not see the answer.
	lingerBody = 16 << 20
	lingerTime = 2 * time.Second
)

func (c *call) tooLarge() *failure {
	from := c.sent
	if from == nil {
		from = c.r.Body
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, from, lingerBody) // as far as it goes
	c.w.Header().Set("Connection", "close")
	return fail(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body is larger than %d bytes", maxBody)
}

func (s *Server) authenticate(c *call) error {
	if c.route.reach == anybody {
		return nil
	}
	p, err := authenticate(c.r, s.o.Auth)
	var refused *failure
	if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized {
		s.metrics.authFailures.Inc()
		// Only failures count, so that somebody who guesses behind the same proxy
		// keeps nobody out.
		if !s.strangers.allow(remoteOf(c.r)) {
			return s.limited("too many requests without a valid token come from your address")
		}
	}
	c.principal = p
	return err
}

func (s *Server) limitRate(c *call) error {
	if c.principal != nil && !s.callers.allow(c.principal.String()) {
		return s.limited(fmt.Sprintf("%s sends more than %d requests a second", c.principal.Name, s.o.PerSecond))
	}
	return nil
}

func (s *Server) limited(why string) *failure {
	s.metrics.limited.Inc()
	return fail(http.StatusTooManyRequests, CodeRate, "%s", why).after(time.Second)
}

// authorize checks what does not depend on which cluster it is about; that is for
// the handler to find out.
func (s *Server) authorize(c *call) error {
	rt := c.route
	switch {
	case rt.reach == anybody:
		return nil
	case rt.reach == theServer && !c.principal.hasEverywhere(rt.role):
		return fail(http.StatusForbidden, CodeForbidden, "this concerns the whole server: it takes the role %s on all clusters, which %s does not have", rt.role, c.principal.Name)
	case !c.principal.has(rt.role):
		return fail(http.StatusForbidden, CodeForbidden, "this takes the role %s, which %s does not have", rt.role, c.principal.Name)
	}
	return nil
}

// admit is the gate of the lifecycle.
func (s *Server) admit(c *call) error {
	cordoned, leave, ok := s.life.enter(c.route.class, c.r.URL.Query().Get("follow") == "true")
	if !ok {
		c.w.Header().Set("Connection", "close")
		return draining()
	}
	c.cordoned, c.leave = cordoned, leave
	return nil
}

// finish writes what became of a request into metrics and logs.
func (s *Server) finish(c *call) {
	took := time.Since(c.began)
	s.metrics.end(c.route, c.r.Method, c.w.status, took)
	fields := []zap.Field{
		zap.String("request", c.id), zap.String("method", c.r.Method), zap.String("route", c.route.name()),
		zap.Int("status", c.w.status), zap.String("remote", remoteOf(c.r)),
	}
	if forwarded := c.r.Header.Get("X-Forwarded-For"); forwarded != "" {
		fields = append(fields, zap.String("forwarded", brief(forwarded))) // as a proxy says, not to be relied on
	}
	if c.principal != nil {
		fields = append(fields, zap.String("principal", c.principal.String()))
	}
	for key, value := range map[string]string{"operation": brief(c.operation), "cluster": brief(c.cluster), "code": string(c.code)} {
		if value != "" {
			fields = append(fields, zap.String(key, value))
		}
	}
	if c.route.mutates() || c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
		s.log.Named("audit").Info("audit", fields...)
	}
	level := zap.DebugLevel
	if c.route.reach != anybody {
		level = zap.InfoLevel // probes of health come every second
	}
	s.log.Named("access").Log(level, "request", append(fields, zap.Duration("took", took), zap.Int64("bytes", c.w.bytes))...)
}

// remoteOf is the address, without its port, that a request came from.
func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// hold counts a stream or a wait, and gives a context that ends when the server is
// cordoned, beside everything that ends the request.
func (s *Server) hold(c *call) (context.Context, error) {
	done, ok := s.life.hold(s.o.MaxStreams)
	if !ok {
		return nil, s.limited(fmt.Sprintf("this server has %d streams and waits open, and takes no more", s.o.MaxStreams))
	}
	ctx, cancel := context.WithCancel(c.ctx())
	stop := context.AfterFunc(c.cordoned, cancel)
	c.release = func() {
		stop()
		cancel()
		done()
	}
	return ctx, nil
}
