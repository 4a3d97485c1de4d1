package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"ebb/internal/api/auth"
	"ebb/internal/api/wire"
	"ebb/internal/embedded"
	"ebb/internal/engine"
	"ebb/internal/freeport"
	"ebb/internal/ops"
	"ebb/internal/testbed"
)

// environment is a Temporal server and a worker process, for gateways that are processes.
// The clusters in ebb.yaml do not exist, so operations fail: these tests check whether
// and how often an operation runs, not its result.
type environment struct {
	t          *testing.T
	dir        string
	engine     string // its address
	client     client.Client
	ops        *ops.Temporal
	tokens     map[string]string // name -> token
	tokenLines []string          // of the tokens file
}

// newEnvironment starts the engine; the worker, when there is to be one, is started by
// startWorker.
func newEnvironment(t *testing.T) *environment {
	t.Helper()
	s := &environment{t: t, dir: t.TempDir(), tokens: map[string]string{}, tokenLines: []string{"tokens:"}}
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(s.dir, "engine"), UIPort: -1, Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	s.engine = server.Address()
	s.client, err = engine.Dial(t.Context(), zap.NewNop(), engine.Options{Address: s.engine, Namespace: server.Namespace()})
	require.NoError(t, err)
	t.Cleanup(s.client.Close)
	s.ops = ops.NewTemporal(s.client, server.Namespace())
	s.addToken("vera", auth.Viewer, "*")
	s.addToken("otto", auth.Operator, "*")
	s.addToken("ada", auth.Admin, "*")
	s.addToken("devop", auth.Operator, "dev")
	return s
}

func (s *environment) addToken(name string, role auth.Role, clusters ...string) {
	s.t.Helper()
	token, hash, err := auth.NewToken()
	require.NoError(s.t, err)
	line, err := auth.TokenFileEntry(name, hash, role, clusters)
	require.NoError(s.t, err)
	s.tokens[name], s.tokenLines = token, append(s.tokenLines, line)
	require.NoError(s.t, os.WriteFile(s.path("tokens.yaml"), []byte(strings.Join(s.tokenLines, "\n")+"\n"), 0o600))
}

func (s *environment) path(name string) string { return filepath.Join(s.dir, name) }

// processEnv returns what Ebb's processes get.
func (s *environment) processEnv(engine string, more ...string) []string {
	return append(append(os.Environ(), "TEMPORAL_ADDRESS="+engine, "TEMPORAL_NAMESPACE=default"), more...)
}

// config writes an ebb.yaml with that section gateway beside the tokens file.
func (s *environment) config(name, gateway string) string {
	s.t.Helper()
	path := s.path(name)
	if !strings.Contains(gateway, "lameDuck") {
		gateway += "  lameDuck: 0s\n"
	}
	text := fmt.Sprintf("clusters:\n  - {name: prod, kubeconfig: none}\n  - {name: dev, kubeconfig: none}\ngateway:\n  tokensFile: tokens.yaml\n%s", gateway)
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (s *environment) startWorker() {
	s.t.Helper()
	binary, err := testbed.Binary("ebb-worker")
	require.NoError(s.t, err)
	p, err := testbed.StartProcess(s.t.Context(), s.path("worker.log"), s.processEnv(s.engine), binary, "--config", s.config("worker.yaml", ""))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, p.Stop()) })
}

// gateway is one process at a port of its own, again and again.
type gateway struct {
	*environment
	name    string
	port    int
	engine  string
	config  string
	process *testbed.Process
	roots   *x509.CertPool // its certificate is checked against them; nil = it has no TLS
}

// newGateway does not start it yet. settings are lines of the section gateway.
func (s *environment) newGateway(name, settings string) *gateway {
	s.t.Helper()
	return &gateway{environment: s, name: name, port: freePort(s.t), engine: s.engine, config: s.config(name+".yaml", settings)}
}

func (g *gateway) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port)) }
func (g *gateway) url() string     { return g.scheme() + "://" + g.address() }
func (g *gateway) scheme() string {
	if g.roots != nil {
		return "https"
	}
	return "http"
}

// newSecureGateway is newGateway with TLS, and so with HTTP/2. caFile names the
// certificate for clients.
func (s *environment) newSecureGateway(name, settings string) (g *gateway, caFile string) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(s.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	data, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(s.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(s.t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: data})
	caFile = s.path(name + ".crt")
	require.NoError(s.t, os.WriteFile(caFile, certificate, 0o600))
	require.NoError(s.t, os.WriteFile(s.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	g = s.newGateway(name, fmt.Sprintf("  tls: {certificateFile: %s.crt, keyFile: %s.key}\n%s", name, name, settings))
	g.roots = x509.NewCertPool()
	require.True(s.t, g.roots.AppendCertsFromPEM(certificate))
	return g, caFile
}

// httpClient returns a client with connections of its own, which ends each after use.
func (g *gateway) httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12}}}
}

// start starts the process and returns when it serves.
func (g *gateway) start() {
	g.t.Helper()
	binary, err := testbed.Binary("ebb-gateway")
	require.NoError(g.t, err)
	g.run(binary, "--config", g.config, "--listen", g.address())
}

// run starts a command that is, or becomes, the gateway.
func (g *gateway) run(command string, args ...string) {
	g.t.Helper()
	var err error
	g.process, err = testbed.StartProcess(g.t.Context(), g.path(g.name+".log"), g.processEnv(g.engine, "EBB_CONFIG="+g.config), command, args...)
	require.NoError(g.t, err)
	process := g.process
	g.t.Cleanup(func() {
		_ = process.Kill() // whatever state the test left it in
		if g.t.Failed() {
			log, _ := os.ReadFile(g.path(g.name + ".log"))
			g.t.Logf("%s:\n%s", g.name, tail(log, 6000))
		}
	})
	g.waitReady(http.StatusOK)
}

func tail(text []byte, most int) []byte { return text[max(0, len(text)-most):] }

// signal sends a signal to the process.
func (g *gateway) signal(sig syscall.Signal) {
	g.t.Helper()
	require.NoError(g.t, syscall.Kill(g.process.PID(), sig))
}

// waitReady waits until the gateway says with that status whether it takes requests.
func (g *gateway) waitReady(status int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	err := testbed.Poll(ctx, func() (bool, error) {
		select {
		case <-g.process.Done():
			return false, fmt.Errorf("%s has ended with code %d", g.name, g.process.ExitCode())
		default:
		}
		a, err := send(ctx, g.httpClient(), http.MethodGet, g.url()+"/readyz", "", nil)
		return err == nil && a.status == status, nil
	})
	require.NoError(g.t, err, "/readyz %d", status)
}

// response is an HTTP response with its body read.
type response struct {
	status int
	header http.Header
	body   []byte
	close  bool
}

// send sends one request, once.
func send(ctx context.Context, c *http.Client, method, url, body string, header http.Header) (response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(r)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, data, resp.Close}, err
}

// header returns the header of a caller with a token of the tokens file, with more pairs of
// name and value.
func (s *environment) header(who string, more ...string) http.Header {
	h := http.Header{}
	if who != "" {
		h.Set("Authorization", "Bearer "+s.tokens[who])
	}
	for i := 0; i+1 < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

// do sends a request to the gateway, once, and expects an answer.
func (g *gateway) do(who, method, path, body string, more ...string) response {
	g.t.Helper()
	a, err := send(g.t.Context(), g.httpClient(), method, g.url()+path, body, g.header(who, more...))
	require.NoError(g.t, err, "%s %s", method, path)
	return a
}

// problem returns the response as a problem document of that code.
func (a response) problem(t *testing.T, code wire.Code) wire.Problem {
	t.Helper()
	var p wire.Problem
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), "%d %s", a.status, a.body)
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&p))
	require.Equal(t, code, p.Code, "%s", a.body)
	require.Equal(t, a.status, p.Status)
	return p
}

// drainRequest returns the body that asks for a drain of a node of a cluster.
func drainRequest(cluster, node string) string {
	return fmt.Sprintf(`{"kind":"drain","cluster":%q,"nodes":[%q]}`, cluster, node)
}

// executionCount counts the executions of a workflow ID. What the engine lists comes a little
// late, so that the first is looked up by itself.
func (s *environment) executionCount(id string) int64 {
	s.t.Helper()
	_, err := s.client.DescribeWorkflowExecution(s.t.Context(), id, "")
	var none *serviceerror.NotFound
	if errors.As(err, &none) {
		return 0
	}
	require.NoError(s.t, err)
	a, err := s.client.CountWorkflow(s.t.Context(), &workflowservice.CountWorkflowExecutionsRequest{Namespace: "default", Query: fmt.Sprintf("WorkflowId = '%s'", id)})
	require.NoError(s.t, err)
	return max(1, a.GetCount())
}

// operationCount counts all operations that the engine lists, which is a little late.
func (s *environment) operationCount() int {
	s.t.Helper()
	all, err := s.ops.List(s.t.Context(), ops.Filter{Limit: 10_000})
	require.NoError(s.t, err)
	return len(all)
}

// eventually waits for what other processes do.
func (s *environment) eventually(what string, is func() bool) {
	s.t.Helper()
	require.Eventually(s.t, is, time.Minute, 20*time.Millisecond, what)
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.One(t.Context(), "127.0.0.1")
	require.NoError(t, err)
	return port
}

// debianProgram returns the path of a program of a Debian package, which is installed when it
// is not there; where it cannot be, the test is skipped.
func debianProgram(t *testing.T, pkg, program string) string {
	t.Helper()
	for _, name := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 {
		t.Skipf("needs %s, of Debian's package %s", program, pkg)
	}
	install := exec.CommandContext(t.Context(), "apt-get", "install", "-y", "-qq", "--no-install-recommends", pkg)
	install.Env = append(os.Environ(), "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive") // no service is started
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("Debian's package %s cannot be installed: %v: %s", pkg, err, tail(out, 500))
	}
	return debianProgram(t, pkg, program)
}

// slowRequest is a POST whose body is sent in part only, so that the request is in progress
// until the test finishes it.
type slowRequest struct {
	t         *testing.T
	conn      net.Conn
	remaining string
	answer    chan response
}

// startSlowRequest begins to submit a drain with the operation ID "slow".
func (g *gateway) startSlowRequest() *slowRequest {
	g.t.Helper()
	const id = "slow"
	conn, err := new(net.Dialer).DialContext(g.t.Context(), "tcp", g.address())
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = conn.Close() })
	body := drainRequest("prod", "w1")
	_, err = fmt.Fprintf(conn, "POST /v1/operations HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nIdempotency-Key: %s\r\n\r\n%s", g.tokens["otto"], len(body), id, body[:5])
	require.NoError(g.t, err)
	s := &slowRequest{t: g.t, conn: conn, remaining: body[5:], answer: make(chan response, 1)}
	go func() { s.answer <- readResponse(conn) }()
	return s
}

func (s *slowRequest) finish() {
	s.t.Helper()
	_, err := io.WriteString(s.conn, s.remaining)
	require.NoError(s.t, err)
}

// lifecycle returns how many requests the gateway waits for.
func (g *gateway) lifecycle() (state string, running, streams int) {
	g.t.Helper()
	var l struct {
		State            string
		Running, Streams int
	}
	a := g.do("vera", http.MethodGet, "/v1/lifecycle", "")
	require.NoError(g.t, json.Unmarshal(a.body, &l), "%s", a.body)
	return l.State, l.Running, l.Streams
}

func newID(kind string) string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return kind + "-" + hex.EncodeToString(b[:])
}

// claimCount counts how often an operation has begun to touch its cluster: the worker
// schedules the first activity, Claim, once for each time the workflow runs.
func (s *environment) claimCount(ctx context.Context, id string) int {
	s.t.Helper()
	claims := 0
	err := testbed.Poll(ctx, func() (bool, error) {
		claims = 0
		history := s.client.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for history.HasNext() {
			event, err := history.Next()
			if err != nil {
				return false, err
			}
			if event.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == "Claim" {
				claims++
			}
		}
		return claims > 0, nil
	})
	require.NoError(s.t, err, id)
	return claims
}
