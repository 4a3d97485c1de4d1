package server

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

// maxBodyBytes fits an upgrade with thousands of named nodes.
const maxBodyBytes = 1 << 20

// middleware returns what a request passes before its handler, in order. Authentication
// comes before all that discloses something, even whether the server drains.
func (s *Server) middleware() []func(*exchange) error {
	return []func(*exchange) error{s.limitBody, s.authenticate, s.limitRate, s.authorize, s.admit}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(w, r)
	x.route = s.router.lookup(r)
	x.operation, x.cluster = r.PathValue("id"), r.PathValue("name")
	ctx, release := s.lifecycle.withGrace(r.Context())
	x.r = r.WithContext(ctx)
	s.metrics.requestStarted()
	defer func() {
		p := recover()
		x.releaseStream()
		x.leave()
		release()
		p = s.recoverPanic(x, p)
		s.recordRequest(x)
		if p != nil {
			panic(p)
		}
	}()
	if s.lifecycle.status().State != wire.Serving {
		w.Header().Set("Connection", "close") // the next request should go to another gateway
	}
	if err := s.handle(x); err != nil {
		x.respondError(err)
	}
	s.discardBody(x)
}

// handle passes a request through the middleware to the handler of its route.
func (s *Server) handle(x *exchange) error {
	for _, stage := range s.middleware() {
		if err := stage(x); err != nil {
			return err
		}
	}
	return x.route.handle(s, x)
}

// recoverPanic logs the panic p of a handler and responds with 500. It returns what to
// panic with instead: http.ErrAbortHandler if the response has begun, so that net/http
// cuts the connection, and nil otherwise.
func (s *Server) recoverPanic(x *exchange, p any) any {
	if p == nil {
		return nil
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // the very value, as net/http compares it
		return p
	}
	s.log.Error("a request has made the gateway panic", zap.String("request", x.id), zap.String("route", x.route.name()),
		zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
	if x.w.status != 0 {
		return http.ErrAbortHandler
	}
	f := newHTTPError(http.StatusInternalServerError, wire.CodeInternal, "a fault of the gateway: its log has more, under request %s", x.id)
	x.code = f.Code
	f.write(x.w, x.id)
	return nil
}

// limitBody limits the size of the body.
func (s *Server) limitBody(x *exchange) error {
	if x.r.ContentLength > maxBodyBytes {
		return errorBodyTooLarge()
	}
	x.r.Body = http.MaxBytesReader(x.w, x.body, maxBodyBytes)
	return nil
}

// errorBodyTooLarge returns a 413.
func errorBodyTooLarge() *httpError {
	return newHTTPError(http.StatusRequestEntityTooLarge, wire.CodeTooLarge, "the body is larger than %d bytes", maxBodyBytes)
}

// authenticate finds the principal of a request, unless its route is public.
func (s *Server) authenticate(x *exchange) error {
	if x.route.scope == public {
		return nil
	}
	return s.identify(x)
}

// identify finds the principal of a request.
func (s *Server) identify(x *exchange) error {
	p, err := authenticate(x.r, s.options.Auth)
	var refused *httpError
	if errors.As(err, &refused) {
		s.metrics.authFailures.Inc()
		// Only failures are limited, so that clients behind the same proxy are not
		// affected by somebody who guesses tokens. A token that cannot be checked
		// counts as well: forged ones with keys that the issuer is asked for are such.
		if !s.authFailureLimiter.Allow(remoteAddr(x.r)) {
			return s.errorTooManyRequests("too many requests without a valid token come from your address")
		}
	}
	x.principal = p
	return err
}

// authenticate returns the principal of a request, or the response with which it is
// rejected.
func authenticate(r *http.Request, by auth.Authenticator) (*auth.Principal, error) {
	p, err := auth.AuthenticateHeaders(r.Context(), r.Header.Values("Authorization"), by)
	var bad *auth.TokenError
	switch {
	case errors.As(err, &bad):
		return nil, errorUnauthenticated(bad)
	case err != nil && r.Context().Err() == nil:
		return nil, newHTTPError(http.StatusServiceUnavailable, wire.CodeIssuerAway, "%v", err).withRetryAfter(retryAfterDependency)
	}
	return p, err
}

// errorUnauthenticated returns a 401.
func errorUnauthenticated(bad *auth.TokenError) *httpError {
	f := newHTTPError(http.StatusUnauthorized, wire.CodeUnauthenticated, "%s", bad.Reason)
	f.challenge = bad.Challenge()
	return f
}

// limitRate limits the rate of requests of each principal.
func (s *Server) limitRate(x *exchange) error {
	if x.principal != nil && !s.principalLimiter.Allow(x.principal.String()) {
		return s.errorTooManyRequests(fmt.Sprintf("%s sends more than %d requests a second", x.principal.Name, s.options.PerSecond))
	}
	return nil
}

// errorTooManyRequests counts and returns a 429.
func (s *Server) errorTooManyRequests(why string) *httpError {
	s.metrics.limited.Inc()
	return newHTTPError(http.StatusTooManyRequests, wire.CodeRate, "%s", why).withRetryAfter(time.Second)
}

// authorize checks the role of the principal as far as the route requires it. Handlers
// check it on the cluster in question.
func (s *Server) authorize(x *exchange) error {
	rt := x.route
	switch {
	case rt.scope == public:
		return nil
	case rt.scope == allClusters && !x.principal.HasOnAllClusters(rt.role):
		return newHTTPError(http.StatusForbidden, wire.CodeForbidden, "this concerns the whole server: it takes the role %s on all clusters, which %s does not have", rt.role, x.principal.Name)
	case !x.principal.HasOnAnyCluster(rt.role):
		return newHTTPError(http.StatusForbidden, wire.CodeForbidden, "this takes the role %s, which %s does not have", rt.role, x.principal.Name)
	}
	return nil
}

// admit rejects the request if its route is not served in the present state of the
// server.
func (s *Server) admit(x *exchange) error {
	cordoned, leave, ok := s.lifecycle.admit(x.route.drain, x.r.URL.Query().Get("follow") == "true")
	if !ok {
		x.w.Header().Set("Connection", "close")
		return errorDraining()
	}
	x.cordoned, x.leave = cordoned, leave
	return nil
}
