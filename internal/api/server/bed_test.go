package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"ebb/internal/api/apitest"
	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
)

// bed is a server on a real listener with some callers.
type bed struct {
	t        *testing.T
	ops      *apitest.Operations
	clusters *apitest.Clusters
	server   *Server
	url      string
	client   *http.Client
	tokens   map[string]string // name -> token
	file     string            // the tokens file
	logs     *observer.ObservedLogs

	signal context.CancelFunc // stands for the SIGTERM
	ended  chan error
}

var _ Operations = (*apitest.Operations)(nil)

// callers of every bed: name, role, clusters.
var callers = []struct {
	name     string
	role     auth.Role
	clusters []string
}{
	{"vera", auth.Viewer, []string{"*"}},
	{"otto", auth.Operator, []string{"*"}},
	{"ada", auth.Admin, []string{"*"}},
	{"prodop", auth.Operator, []string{"prod"}},
	{"devop", auth.Operator, []string{"dev"}},
	{"prodadmin", auth.Admin, []string{"prod"}},
}

func newBed(t *testing.T, change ...func(*Options)) *bed {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	b := &bed{t: t, ops: apitest.NewOperations(), clusters: &apitest.Clusters{}, tokens: map[string]string{}, logs: logs,
		client: &http.Client{Transport: &http.Transport{}}, file: filepath.Join(t.TempDir(), "tokens.yaml"), ended: make(chan error, 1)}
	lines := []string{"tokens:"}
	for _, c := range callers {
		token, hash, err := auth.NewToken()
		require.NoError(t, err)
		line, err := auth.TokenFileEntry(c.name, hash, c.role, c.clusters)
		require.NoError(t, err)
		b.tokens[c.name], lines = token, append(lines, line)
	}
	require.NoError(t, os.WriteFile(b.file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	tokens, err := auth.OpenTokenFile(b.file, zap.New(core))
	require.NoError(t, err)
	o := Options{Operations: b.ops, Clusters: b.clusters, Auth: auth.Union{tokens}, Log: zap.New(core), Version: "test", Grace: 30 * time.Second}
	for _, f := range change {
		f(&o)
	}
	b.server = New(o)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	b.signal = cancel
	go func() { b.ended <- b.server.Run(ctx, l) }()
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		cancel()
		b.server.lifecycle.CancelInFlight()
		require.NoError(t, b.end())
	})
	return b
}

// end is the end of Run.
func (b *bed) end() error {
	err := <-b.ended
	b.ended <- err // for the cleaning up
	return err
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	closed bool // the server closes the connection
}

func (a answer) problem(t *testing.T) wire.Problem {
	t.Helper()
	var p wire.Problem
	require.Equal(t, wire.ContentTypeProblem, a.header.Get("Content-Type"), "%s", a.body)
	require.NoError(t, json.Unmarshal(a.body, &p))
	require.Equal(t, a.status, p.Status)
	require.Equal(t, a.header.Get(wire.HeaderRequestID), p.Instance)
	require.NotEmpty(t, p.Detail)
	return p
}

// do sends a request; every answer is checked against the OpenAPI document. headers
// are pairs of name and value.
func (b *bed) do(who, method, path, body string, headers ...string) answer {
	b.t.Helper()
	a, err := b.try(who, method, path, body, headers...)
	require.NoError(b.t, err)
	return a
}

func (b *bed) try(who, method, path, body string, headers ...string) (answer, error) {
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token, ok := b.tokens[who]; ok {
		r.Header.Set("Authorization", "Bearer "+token)
	} else if who != "" {
		r.Header.Set("Authorization", who)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := b.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	a := answer{status: response.StatusCode, header: response.Header, body: data, closed: response.Close}
	if err == nil {
		err = documented(b.server.router.lookup(r), a)
	}
	return a, err
}

// ok is a good answer, read into into.
func (b *bed) ok(who, method, path string, into any) answer {
	b.t.Helper()
	a := b.do(who, method, path, "")
	require.Less(b.t, a.status, 300, "%s", a.body)
	if into != nil {
		require.NoError(b.t, json.Unmarshal(a.body, into))
	}
	return a
}

// follow opens a stream of an operation's events as vera.
func (b *bed) follow(path string) *bufio.Reader {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil)
	require.NoError(b.t, err)
	r.Header.Set("Authorization", "Bearer "+b.tokens["vera"])
	response, err := b.client.Do(r)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(b.t, http.StatusOK, response.StatusCode)
	require.Equal(b.t, wire.ContentTypeEvents, response.Header.Get("Content-Type"))
	return bufio.NewReader(response.Body)
}

// linesOf decodes the lines of a stream, without those that only keep it alive.
func linesOf(data []byte) (lines []map[string]any, err error) {
	for _, line := range bytes.Split(data, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var value map[string]any
		if err := json.Unmarshal(line, &value); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		lines = append(lines, value)
	}
	return lines, nil
}

const drainW1 = `{"kind":"drain","cluster":"prod","nodes":["w1"]}`

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, 20*time.Second, 5*time.Millisecond, what)
}
