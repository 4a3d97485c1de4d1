package client

import (
	"fmt"
	"net/http"

	"ebb/internal/api/wire"
	"ebb/internal/ops"
)

// problemError is a problem document for which internal/ops and internal/forecast have
// no error type.
type problemError struct{ wire.Problem }

func (e *problemError) Error() string {
	text := e.Detail
	if text == "" {
		text = e.Title
	}
	if e.Instance != "" {
		return fmt.Sprintf("%s (%d, request %s)", text, e.Status, e.Instance)
	}
	return fmt.Sprintf("%s (%d)", text, e.Status)
}

// notGatewayError is a response that no gateway of this version can have sent.
type notGatewayError struct{ text string }

func (e *notGatewayError) Error() string { return e.text }

// contentType returns a Content-Type for use in a message.
func contentType(kind string) string {
	if kind == "" {
		return "of no type"
	}
	return wire.Truncate(kind)
}

// responseError returns the error that the problem document of a final response stands
// for, or nil if there is none.
func (c *Client) responseError(a attempt) error {
	c.seenGateway.Store(true)
	if a.problem == nil {
		return nil
	}
	p := *a.problem
	switch p.Code {
	case wire.CodeBadRequest:
		if len(p.Faults) == 0 {
			p.Faults = []string{p.Detail}
		}
		return &ops.RequestError{Faults: p.Faults}
	case wire.CodeUnauthenticated:
		p.Detail += "; the token comes from --token-file, EBB_TOKEN_FILE or EBB_TOKEN"
	default:
	}
	return &problemError{p}
}

// describe returns, for an error message, what an attempt got in place of a response.
func (c *Client) describe(a attempt) string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case a.problem != nil:
		return (&problemError{*a.problem}).Error()
	case a.status >= 500:
		return fmt.Sprintf("a proxy answers %d %s: there is no server behind it", a.status, http.StatusText(a.status))
	case a.status >= 300 && a.status < 400:
		return fmt.Sprintf("it redirects to %s, which is not followed with a token: give that URL", wire.Truncate(a.header.Get("Location")))
	}
	return fmt.Sprintf("it answers %d %s (%s) and is not an Ebb gateway: is the URL right?", a.status, http.StatusText(a.status), contentType(a.header.Get("Content-Type")))
}
