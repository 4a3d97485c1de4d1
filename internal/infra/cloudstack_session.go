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
)

// maxBody bounds an answer, in bytes: a page of 100 machines is some 500 KB.
const maxBody = 32 << 20

// apiError is what was answered instead of a result, or what failed a job.
type apiError struct {
	code    int    // errorcode, which is the HTTP status too
	text    string // errortext, without the keys
	foreign bool   // it comes from something that stands before CloudStack
}

func (e *apiError) Error() string { return fmt.Sprintf("error %d: %s", e.code, e.text) }

// Codes of CloudStack. The others tell of its own state (530 and 532 to 537) and
// of its limits (429): asking again may help.
const (
	badKeys      = 401 // keys, signature, or a clock that is wrong by 15 minutes
	noCommand    = 405
	malformed    = 430
	badParameter = 431 // also: an ID that it has never given out
	unsupported  = 432 // no such command, or not for this role
	noFactor     = 511 // a second factor is missing
	noAccess     = 531 // another account's

	internalError = 530
)

// hopeless are the codes that the same request would get again.
var hopeless = []int{badKeys, noCommand, malformed, badParameter, unsupported, noFactor, noAccess}

// saysCode reports that CloudStack itself refused with one of the codes.
func saysCode(err error, codes ...int) bool {
	var refused *apiError
	return errors.As(err, &refused) && !refused.foreign && slices.Contains(codes, refused.code)
}

// session is the client for one call of the provider. The SDK knows neither
// contexts nor typed errors; both are added under it, in its transport.
type session struct {
	*cloudStack
	caller context.Context // of the provider's caller
	ctx    context.Context // the same, bounded by the timeout: every request ends with it
	api    *cloudstack.CloudStackClient

	managed bool // CloudStack itself manages the Kubernetes cluster; known once the scope is
}

// open begins a call; close gives its connections back.
func (c *cloudStack) open(ctx context.Context) (s *session, closeSession func()) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	base := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: true}
	s = &session{cloudStack: c, caller: ctx, ctx: limited}
	client := &http.Client{Transport: &wire{session: s, base: base}}
	s.api = cloudstack.NewClient(c.endpoint, c.keys.apiKey, c.keys.secretKey, true, cloudstack.WithHTTPClient(client))
	return s, func() {
		cancel()
		base.CloseIdleConnections()
	}
}

// wire carries the requests of a session. It judges the answer itself, against
// the custom of round trippers: the SDK would flatten a refusal to a text,
// follow a redirect with the signed request, and panic on some odd bodies.
type wire struct {
	session *session
	base    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.base.RoundTrip(req.WithContext(w.session.ctx))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxBody)
	case resp.StatusCode != http.StatusOK:
		return nil, w.session.refusal(resp.StatusCode, body)
	}
	if _, err := envelope(body); err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// envelope is the content of an answer: one object with one key, "<command>response".
func envelope(body []byte) (json.RawMessage, error) {
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

// refusal is the error of an answer with another status than 200.
func (s *session) refusal(status int, body []byte) error {
	content, err := envelope(body)
	if err != nil {
		return &apiError{code: status, text: "no reason given: it does not come from CloudStack itself", foreign: true}
	}
	return s.reason(content, status)
}

// reason reads errorcode and errortext; code stands in for one that is missing.
func (s *session) reason(content json.RawMessage, code int) *apiError {
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
	return &apiError{code: got.Code, text: strings.TrimSpace(string(text[:min(len(text), errorTail)]))}
}

// ask makes one call of the SDK and tells its error properly.
func ask[T any](s *session, command string, call func() (T, error)) (T, error) {
	out, err := call()
	if err != nil {
		return out, s.explain(command, err)
	}
	return out, nil
}

// explain turns the error of a request into one that says what to do, and holds
// no URL: the API key and the signature are part of it.
func (s *session) explain(command string, err error) error {
	var (
		refused *apiError
		at      *url.Error
	)
	switch {
	case errors.As(err, &refused):
		if saysCode(refused, hopeless...) {
			return refuse("CloudStack %s: %w", command, refused)
		}
		err = refused
	case s.caller.Err() != nil:
		return fmt.Errorf("CloudStack %s: stopped: %w", command, s.caller.Err())
	case s.ctx.Err() != nil:
		return fmt.Errorf("CloudStack %s: no answer within %s (infrastructure.timeout): %w", command, s.timeout, s.ctx.Err())
	case errors.As(err, &at):
		err = at.Err
	}
	return fmt.Errorf("CloudStack %s: %w", command, err)
}

// How often a job is asked for: detaching an ISO takes a second, destroying a
// machine half a minute.
const (
	firstPoll = 200 * time.Millisecond
	lastPoll  = 3 * time.Second
)

// job is the answer to queryAsyncJobResult.
type job struct {
	Status int             `json:"jobstatus"` // 0 = it runs, 1 = done, 2 = failed
	Code   int             `json:"jobresultcode"`
	Result json.RawMessage `json:"jobresult"`
}

// wait is for the end of a job. A poll that gets no answer is repeated: the job
// goes on meanwhile. The SDK's own loop sleeps without looking at a context.
func (s *session) wait(command, id string) error {
	if id == "" {
		return fmt.Errorf("CloudStack %s: it was answered without a job", command)
	}
	var lost error
	for pause := firstPoll; ; pause = min(pause*3/2, lastPoll) {
		got, err := s.query(id)
		switch {
		case Permanent(err):
			return err
		case err == nil && got.Status == 1:
			return nil
		case err == nil && got.Status != 0:
			return s.explain(command, s.failure(got))
		}
		if s.ctx.Err() == nil {
			lost = err
		}
		select {
		case <-s.ctx.Done():
			if lost != nil {
				return fmt.Errorf("CloudStack %s: job %s was lost sight of: %w", command, id, lost)
			}
			return s.explain(command+", job "+id, s.ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (s *session) query(id string) (job, error) {
	const command = "queryAsyncJobResult"
	custom, ok := s.api.Custom.(*cloudstack.CustomService)
	if !ok {
		return job{}, errors.New("the CloudStack SDK has no custom requests")
	}
	params := &cloudstack.CustomServiceParams{}
	params.SetParam("jobid", id)
	return ask(s, command, func() (got job, err error) {
		return got, custom.CustomRequest(command, params, &got)
	})
}

// failure is the reason of a failed job; old versions give it as plain text.
func (s *session) failure(failed job) *apiError {
	var text string
	if err := json.Unmarshal(failed.Result, &text); err == nil {
		return &apiError{code: failed.Code, text: s.keys.redact(text)}
	}
	return s.reason(failed.Result, failed.Code)
}
