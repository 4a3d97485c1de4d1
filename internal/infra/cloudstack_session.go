package infra

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/apache/cloudstack-go/v2/cloudstack"

	"ebb/internal/wait"
)

// maxResponseBody bounds a response, in bytes: a page of 100 VMs takes about 500 KB.
const maxResponseBody = 32 << 20

// apiError is an error response, or the error of an asynchronous job.
type apiError struct {
	code          int    // errorcode, which is the HTTP status too
	text          string // errortext, with the API keys redacted
	notCloudStack bool   // it comes from a proxy, not from CloudStack
}

func (e *apiError) Error() string { return fmt.Sprintf("error %d: %s", e.code, e.text) }

// Error codes, named as in CloudStack's ApiErrorCode. For the others, which are about
// its own state (530 and 532 to 537) or a rate limit (429), another try may succeed.
const (
	codeUnauthorized       = 401 // wrong keys or signature, or a clock that is off by 15 minutes
	codeMethodNotAllowed   = 405
	codeMalformedParameter = 430
	codeParam              = 431 // also: an ID that it has never given out
	codeUnsupportedAction  = 432 // no such command, or not for this role
	codeUnauthorized2FA    = 511 // a second factor is missing
	codeAccount            = 531 // another account's

	codeInternal = 530
)

// permanentCodes are the codes with which the same request would fail again.
var permanentCodes = []int{codeUnauthorized, codeMethodNotAllowed, codeMalformedParameter, codeParam, codeUnsupportedAction, codeUnauthorized2FA, codeAccount}

// hasCode reports whether err is an error of CloudStack itself with one of the codes.
func hasCode(err error, codes ...int) bool {
	var refused *apiError
	return errors.As(err, &refused) && !refused.notCloudStack && slices.Contains(codes, refused.code)
}

// session is the CloudStack client for one call of the provider. The SDK has neither
// contexts nor typed errors; sessionTransport adds both.
type session struct {
	*cloudStack
	callerCtx context.Context // of the provider's caller
	ctx       context.Context // callerCtx with infrastructure.timeout; bounds every request
	api       *cloudstack.CloudStackClient

	cloudManaged bool // CloudStack itself manages the Kubernetes cluster; set by resolveScope
}

// newSession returns the client for one call. closeSession closes its connections.
func (c *cloudStack) newSession(ctx context.Context) (s *session, closeSession func()) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	base := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tlsConfig.Clone(), ForceAttemptHTTP2: true}
	s = &session{cloudStack: c, callerCtx: ctx, ctx: limited}
	client := &http.Client{Transport: &sessionTransport{session: s, base: base}}
	s.api = cloudstack.NewClient(c.endpoint, c.keys.apiKey, c.keys.secretKey, true, cloudstack.WithHTTPClient(client))
	return s, func() {
		cancel()
		base.CloseIdleConnections()
	}
}

// sessionTransport sends the requests of a session. Unlike other round trippers it
// returns error responses as errors: the SDK would turn them into plain text, follow a
// redirect with the signed request, and panic on some bodies.
type sessionTransport struct {
	session *session
	base    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w *sessionTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.base.RoundTrip(req.WithContext(w.session.ctx))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBody+1))
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxResponseBody:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxResponseBody)
	case resp.StatusCode != http.StatusOK:
		return nil, w.session.responseError(resp.StatusCode, body)
	}
	if _, err := unwrapResponse(body); err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// unwrapResponse returns the content of a response, which is an object with one key,
// "<command>response".
func unwrapResponse(body []byte) (json.RawMessage, error) {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(body, &outer); err != nil || len(outer) != 1 {
		return nil, errors.New("the answer is not one of the CloudStack API: check infrastructure.endpoint, and what stands before it")
	}
	for name, content := range outer {
		if strings.HasSuffix(name, "response") && bytes.HasPrefix(content, []byte("{")) {
			return content, nil
		}
	}
	return nil, errors.New("the answer does not hold a CloudStack response")
}

// responseError returns the error of a response with a status other than 200.
func (s *session) responseError(status int, body []byte) error {
	content, err := unwrapResponse(body)
	if err != nil {
		return &apiError{code: status, text: "no reason given: it does not come from CloudStack itself", notCloudStack: true}
	}
	return s.parseError(content, status)
}

// parseError returns errorcode and errortext of a response; code is used when there is
// no errorcode.
func (s *session) parseError(content json.RawMessage, code int) *apiError {
	var got struct {
		Code int    `json:"errorcode"`
		Text string `json:"errortext"`
	}
	if err := json.Unmarshal(content, &got); err != nil || got.Text == "" {
		got.Text = "no reason given"
	}
	if got.Code == 0 {
		got.Code = code
	}
	text := []rune(strings.ToValidUTF8(s.keys.redact(got.Text), ""))
	return &apiError{code: got.Code, text: strings.TrimSpace(string(text[:min(len(text), maxErrorText)]))}
}

// invoke makes one call of the SDK; its error is that of describeError.
func invoke[T any](s *session, command string, call func() (T, error)) (T, error) {
	out, err := call()
	if err != nil {
		return out, s.describeError(command, err)
	}
	return out, nil
}

// describeError returns the error of a request with its command and, for a timeout, the
// setting. It leaves out the URL, which holds the API key and the signature.
func (s *session) describeError(command string, err error) error {
	var (
		refused *apiError
		at      *url.Error
	)
	switch {
	case errors.As(err, &refused):
		if hasCode(refused, permanentCodes...) {
			return permanentf("CloudStack %s: %w", command, refused)
		}
		err = refused
	case s.callerCtx.Err() != nil:
		return fmt.Errorf("CloudStack %s: stopped: %w", command, s.callerCtx.Err())
	case s.ctx.Err() != nil:
		return fmt.Errorf("CloudStack %s: no answer within %s (infrastructure.timeout): %w", command, s.timeout, s.ctx.Err())
	case errors.As(err, &at):
		err = at.Err
	}
	return fmt.Errorf("CloudStack %s: %w", command, err)
}

// The interval at which a job is polled grows from one to the other: detaching an ISO
// takes a second, destroying a VM half a minute.
const (
	minPollInterval = 200 * time.Millisecond
	maxPollInterval = 3 * time.Second
)

// asyncJob is the answer to queryAsyncJobResult.
type asyncJob struct {
	Status int             `json:"jobstatus"` // 0 = pending, 1 = succeeded, 2 = failed
	Code   int             `json:"jobresultcode"`
	Result json.RawMessage `json:"jobresult"`
}

// waitForJob returns when a job has ended, nil when it succeeded. A poll that fails is
// repeated, because the job goes on meanwhile. (The SDK's own loop ignores contexts.)
func (s *session) waitForJob(command, id string) error {
	if id == "" {
		return fmt.Errorf("CloudStack %s: it was answered without a job", command)
	}
	var pollErr error
	for interval := minPollInterval; ; interval = min(interval*3/2, maxPollInterval) {
		got, err := s.queryJob(id)
		switch {
		case Permanent(err):
			return err
		case err == nil && got.Status == 1:
			return nil
		case err == nil && got.Status != 0:
			return s.describeError(command, s.jobError(got))
		}
		if s.ctx.Err() == nil {
			pollErr = err
		}
		if err := wait.Sleep(s.ctx, interval); err != nil {
			if pollErr != nil {
				return fmt.Errorf("CloudStack %s: job %s was lost sight of: %w", command, id, pollErr)
			}
			return s.describeError(command+", job "+id, err)
		}
	}
}

// queryJob returns the state of an asynchronous job.
func (s *session) queryJob(id string) (asyncJob, error) {
	const command = "queryAsyncJobResult"
	custom, ok := s.api.Custom.(*cloudstack.CustomService)
	if !ok {
		return asyncJob{}, errors.New("the CloudStack SDK has no custom requests")
	}
	params := &cloudstack.CustomServiceParams{}
	params.SetParam("jobid", id)
	return invoke(s, command, func() (got asyncJob, err error) {
		return got, custom.CustomRequest(command, params, &got)
	})
}

// jobError returns the reason of a failed job; old versions give it as plain text.
func (s *session) jobError(failed asyncJob) *apiError {
	var text string
	if err := json.Unmarshal(failed.Result, &text); err == nil {
		return &apiError{code: failed.Code, text: s.keys.redact(text)}
	}
	return s.parseError(failed.Result, failed.Code)
}
