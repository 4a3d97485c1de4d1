package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"ebb/internal/cluster"
	"ebb/internal/config"
)

// requestLog records the requests of one client to the API server, and can let its
// watches expire.
type requestLog struct {
	mu      sync.Mutex
	asked   []request
	streams map[*io.PipeWriter]bool
	expired int // watches to be answered with 410
	gone    int // watches that were
}

// request is one request and its answer.
type request struct {
	at     time.Time
	method string
	path   string
	pod    types.UID // of an eviction
	code   int       // 0 = no answer
	watch  bool

	// Of an eviction that was answered with 429:
	retryAfter string // the header, in seconds
	level      string // UID of the priority level that the request was put into
	message    string // the body
}

func (r request) eviction() bool {
	return r.method == http.MethodPost && strings.HasSuffix(r.path, "/eviction")
}

// list reports whether it lists pods.
func (r request) list() bool {
	return r.method == http.MethodGet && !r.watch && strings.HasSuffix(r.path, "/pods")
}

func newRequestLog() *requestLog { return &requestLog{streams: map[*io.PipeWriter]bool{}} }

// record gives the fixture a client and watches of its own, whose requests it records.
func (b *fixture) record() *requestLog { return b.recordAs(b.box.Kubeconfig()) }

// recordAs is record with the user of a kubeconfig.
func (b *fixture) recordAs(kubeconfig string) *requestLog {
	b.t.Helper()
	r := newRequestLog()
	client, err := cluster.NewClient(config.Cluster{Name: "sandbox", Kubeconfig: kubeconfig},
		func(next http.RoundTripper) http.RoundTripper { return recordingTransport{requestLog: r, next: next} })
	require.NoError(b.t, err)
	b.cluster = cluster.New("sandbox", client, nil, zap.NewNop())
	b.t.Cleanup(b.cluster.Close)
	return r
}

// requests returns those since the log was last cleared.
func (r *requestLog) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.asked...)
}

func (r *requestLog) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = nil
}

// unanswered returns the number of requests that got no answer, watches included.
func (r *requestLog) unanswered() (n int) {
	for _, asked := range r.requests() {
		if asked.code == 0 {
			n++
		}
	}
	return n
}

func (r *requestLog) evictions() (found []request) {
	for _, e := range r.requests() {
		if e.eviction() {
			found = append(found, e)
		}
	}
	return found
}

// requireOnce requires that each of these pods was evicted, that no other pod was, and
// that no further eviction of a pod was requested once one had been accepted, or may
// have been because it got no answer.
func (r *requestLog) requireOnce(t *testing.T, pods []core.Pod) {
	t.Helper()
	type tally struct{ accepted, unanswered int }
	count := map[string]*tally{}
	for _, uid := range uids(pods) {
		count[uid] = &tally{}
	}
	for _, e := range r.evictions() {
		c := count[string(e.pod)]
		require.NotNil(t, c, "%s is not one of the node's pods", e.path)
		require.Zero(t, c.accepted, "%s was evicted already", e.path)
		switch e.code {
		case http.StatusCreated:
			c.accepted++
		case 0:
			c.unanswered++
		}
	}
	for uid, c := range count {
		require.Positive(t, c.accepted+c.unanswered, "pod %s was evicted", uid)
	}
}

func uids(pods []core.Pod) (list []string) {
	for i := range pods {
		list = append(list, string(pods[i].UID))
	}
	return list
}

// expire closes the watches, as an API server does after a while, and answers the next
// watch from where each stopped with 410: that version has been compacted.
func (r *requestLog) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for stream := range r.streams {
		r.expired++
		_ = stream.Close() // always nil
	}
	clear(r.streams)
}

func (r *requestLog) takeExpired() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expired == 0 {
		return false
	}
	r.expired--
	r.gone++
	return true
}

// recordingTransport is the transport of a client with a log.
type recordingTransport struct {
	*requestLog
	next http.RoundTripper
}

func (r recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	asked := request{at: time.Now(), method: req.Method, path: req.URL.Path, watch: query.Get("watch") == "true" || query.Get("watch") == "1"}
	if asked.eviction() {
		req = req.WithContext(req.Context()) // a copy, for its body is replaced
		uid, err := evicted(req)
		if err != nil {
			return nil, err
		}
		asked.pod = uid
	}
	resumed := asked.watch && query.Get("resourceVersion") != "" && query.Get("sendInitialEvents") == ""
	if resumed && r.takeExpired() {
		return goneAnswer(req)
	}
	resp, err := r.next.RoundTrip(req)
	if err == nil {
		asked.code = resp.StatusCode
		if asked.eviction() && asked.code == http.StatusTooManyRequests {
			err = asked.refused(resp)
		}
	}
	r.mu.Lock()
	r.asked = append(r.asked, asked)
	r.mu.Unlock()
	if err == nil && asked.watch && resp.StatusCode == http.StatusOK {
		r.tap(resp)
	}
	return resp, err
}

// refused records what a 429 says.
func (r *request) refused(resp *http.Response) error {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	r.retryAfter, r.level, r.message = resp.Header.Get("Retry-After"), resp.Header.Get(flowcontrol.ResponseHeaderMatchedPriorityLevelConfigurationUID), string(body)
	return nil
}

// tap makes a watch one that expire can close.
func (r recordingTransport) tap(resp *http.Response) {
	body := resp.Body
	out, in := io.Pipe()
	r.mu.Lock()
	r.streams[in] = true
	r.mu.Unlock()
	go func() {
		_, err := io.Copy(in, body)
		_ = in.CloseWithError(err) // always nil
		r.mu.Lock()
		delete(r.streams, in)
		r.mu.Unlock()
	}()
	resp.Body = tapped{PipeReader: out, body: body}
}

type tapped struct {
	*io.PipeReader
	body io.Closer
}

func (t tapped) Close() error {
	_ = t.PipeReader.Close() // always nil
	return t.body.Close()
}

// evicted returns the UID that an eviction has as its precondition.
func evicted(req *http.Request) (types.UID, error) {
	if req.Body == nil { // names none
		return "", nil
	}
	data, err := io.ReadAll(req.Body)
	if err != nil {
		return "", err
	}
	if err := req.Body.Close(); err != nil {
		return "", err
	}
	req.Body = io.NopCloser(bytes.NewReader(data))
	var eviction policy.Eviction
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, &eviction); err != nil {
		return "", err
	}
	if eviction.DeleteOptions == nil || eviction.DeleteOptions.Preconditions == nil || eviction.DeleteOptions.Preconditions.UID == nil {
		return "", nil
	}
	return *eviction.DeleteOptions.Preconditions.UID, nil
}

func goneAnswer(req *http.Request) (*http.Response, error) {
	status := apierrors.NewResourceExpired("too old resource version").Status()
	status.APIVersion, status.Kind = "v1", "Status"
	data, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		Status: "410 Gone", StatusCode: http.StatusGone, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), ContentLength: int64(len(data)),
	}, nil
}
