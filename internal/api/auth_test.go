package api

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestWithoutAValidTokenNothingIsTold(t *testing.T) {
	b := newBed(t)
	b.ops.add("op-1", "prod", "Running")
	for name, c := range map[string]struct{ header, challenge, detail string }{
		"none":   {"", `Bearer realm="ebb"`, "send a token"},
		"wrong":  {"Bearer ebb_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", `Bearer realm="ebb", error="invalid_token"`, "not known here"},
		"word":   {"Bearer secret", `Bearer realm="ebb", error="invalid_token"`, "not known here"},
		"basic":  {"Basic YTpi", `Bearer realm="ebb", error="invalid_request"`, "must be: Bearer"},
		"empty":  {"Bearer ", `Bearer realm="ebb", error="invalid_request"`, "must be: Bearer"},
		"longer": {"Bearer " + strings.Repeat("a", maxToken+1), `Bearer realm="ebb", error="invalid_token"`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/v1/operations", "/v1/operations/op-1", "/v1/operations/none", "/nowhere", "/metrics"} {
				a := b.do(c.header, "GET", path, "")
				p := a.problem(t)
				require.Equal(t, CodeUnauthenticated, p.Code, path)
				require.Equal(t, http.StatusUnauthorized, a.status)
				require.Equal(t, c.challenge, a.header.Get("WWW-Authenticate"))
				require.Contains(t, p.Detail, c.detail)
			}
			require.Equal(t, CodeUnauthenticated, b.do(c.header, "POST", "/v1/operations", drainW1).problem(t).Code)
		})
		b.server.strangers = newLimiters(strangersPerSecond, strangersBurst) // each case from an address of its own
	}
	require.Zero(t, b.ops.started)
	for _, path := range []string{"/healthz", "/readyz", "/v1/openapi.yaml"} {
		require.Equal(t, http.StatusOK, b.do("", "GET", path, "").status, path)
	}
}

// Somebody who guesses is slowed down, and keeps nobody out who has a token.
func TestGuessingIsLimitedByAddress(t *testing.T) {
	b := newBed(t)
	limited := 0
	for range strangersBurst + 20 {
		a := b.do("Bearer ebb_guess", "GET", "/v1/operations", "")
		if a.status == http.StatusTooManyRequests {
			require.Equal(t, CodeRate, a.problem(t).Code)
			require.Equal(t, "1", a.header.Get("Retry-After"))
			limited++
		}
	}
	require.Positive(t, limited)
	b.ok("vera", "GET", "/v1/operations", nil)
}

func TestRateOfOnePrincipalIsLimited(t *testing.T) {
	b := newBed(t, func(o *Options) { o.PerSecond, o.Burst = 1, 5 })
	clock := time.Now()
	b.server.callers.now = func() time.Time { return clock }
	for range 5 {
		b.ok("vera", "GET", "/v1/operations", nil)
	}
	a := b.do("vera", "GET", "/v1/operations", "")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Contains(t, a.problem(t).Detail, "vera sends more than 1 requests a second")
	b.ok("otto", "GET", "/v1/operations", nil)
	clock = clock.Add(time.Second)
	b.ok("vera", "GET", "/v1/operations", nil)
}

func TestLimitersForgetWhoIsIdle(t *testing.T) {
	clock := time.Unix(1, 0)
	l := newLimiters(1, 2)
	l.now = func() time.Time { return clock }
	for i := range maxKeys {
		require.True(t, l.allow(string(rune(i+1000))))
	}
	require.Len(t, l.byKey, maxKeys)
	clock = clock.Add(time.Minute)
	require.True(t, l.allow("new"))
	require.Len(t, l.byKey, 1)
}

// openTokens is a tokens file of that text, looked at by a clock of the test's own.
func openTokens(t *testing.T, text string, mode os.FileMode) (tokens *Tokens, path string, logs *observer.ObservedLogs, clock *time.Time, err error) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	path = t.TempDir() + "/tokens.yaml"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Chmod(path, mode))
	now := time.Unix(1000, 0)
	tokens, err = OpenTokens(path, zap.New(core))
	if err == nil {
		tokens.now = func() time.Time { return now }
		tokens.looked = now
	}
	return tokens, path, logs, &now, err
}

func TestTokensFileIsReadAgain(t *testing.T) {
	first, firstHash, err := NewToken()
	require.NoError(t, err)
	second, secondHash, err := NewToken()
	require.NoError(t, err)
	line := func(name, hash string) string {
		text, err := TokenLine(name, hash, Operator, []string{"prod", "dev"})
		require.NoError(t, err)
		return "tokens:\n" + text + "\n"
	}
	tokens, path, logs, clock, err := openTokens(t, line("ci", firstHash), 0o600)
	require.NoError(t, err)
	p, err := tokens.Authenticate(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, &Principal{Name: "ci", Source: SourceToken, Grants: []Grant{{Role: Operator, Clusters: []string{"prod", "dev"}}}}, p)

	require.NoError(t, os.WriteFile(path, []byte(line("new", secondHash)), 0o600))
	_, err = tokens.Authenticate(t.Context(), first)
	require.NoError(t, err, "it is not looked at for each request")
	*clock = clock.Add(recheck)
	var bad *TokenError
	_, err = tokens.Authenticate(t.Context(), first)
	require.ErrorAs(t, err, &bad)
	p, err = tokens.Authenticate(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, "new", p.Name)

	require.NoError(t, os.WriteFile(path, []byte("tokens: [{name: x}]\n"), 0o600))
	for range 3 {
		*clock = clock.Add(recheck)
		_, err = tokens.Authenticate(t.Context(), second)
		require.NoError(t, err, "the last good version stays")
	}
	require.Equal(t, 1, logs.FilterMessageSnippet("broken").Len())
	require.NoError(t, os.Chmod(path, 0o622)) // #nosec G302 -- that is what has to be refused
	*clock = clock.Add(recheck)
	_, err = tokens.Authenticate(t.Context(), second)
	require.NoError(t, err)
	require.Contains(t, logs.All()[logs.Len()-1].ContextMap()["error"], "may be written by others")
	_, err = tokens.Authenticate(t.Context(), "not-ours")
	require.ErrorIs(t, err, errNotMine)
}

func TestTokensFileFaults(t *testing.T) {
	hash := hashOf("ebb_x")
	good := `{name: a, sha256: ` + hash + `, role: viewer, clusters: ["*"]}`
	for name, c := range map[string]struct {
		text   string
		mode   os.FileMode
		faults []string
	}{
		"good":          {"tokens: [" + good + "]", 0o640, nil},
		"empty":         {"", 0o600, nil},
		"group writes":  {"", 0o620, []string{"may be written by others than its owner (mode 0620): chmod go-w"}},
		"unknown key":   {"tokns: []", 0o600, []string{"tokns"}},
		"token itself":  {"tokens: [{name: a, token: ebb_x}]", 0o600, []string{"token not found"}},
		"not YAML":      {"tokens: [", 0o600, []string{"tokens file"}},
		"twice":         {"tokens: [" + good + ", " + good + "]", 0o600, []string{`tokens[1]: the name "a" is used twice`, "the same token is there already"}},
		"all at once":   {"tokens: [{name: '', sha256: 12, role: boss, clusters: []}, {}]", 0o600, []string{"tokens[0]: a token needs a name", "64 hexadecimal digits", `not "boss"`, "clusters must name", "tokens[1]: a token"}},
		"empty cluster": {`tokens: [{name: a, sha256: ` + hash + `, role: admin, clusters: [""]}]`, 0o600, []string{"a cluster's name is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, _, err := openTokens(t, c.text, c.mode)
			if c.faults == nil {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			for _, fault := range c.faults {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}

func TestGrantsDoNotMix(t *testing.T) {
	p := &Principal{Grants: []Grant{{Viewer, []string{"*"}}, {Operator, []string{"prod"}}, {Admin, nil}}}
	require.True(t, p.May(Viewer, "dev"))
	require.False(t, p.May(Operator, "dev"), "operator of prod and viewer of all is no operator of all")
	require.True(t, p.May(Operator, "prod"))
	require.False(t, p.May(Admin, "prod"))
	require.False(t, p.has(Admin), "a role on no cluster is none")
	require.False(t, p.hasEverywhere(Operator))
	_, all := p.clusters()
	require.True(t, all)
	names, all := (&Principal{Grants: []Grant{{Viewer, []string{"b", "a"}}, {Admin, []string{"a"}}}}).clusters()
	require.False(t, all)
	require.Equal(t, []string{"a", "b"}, names)
	require.False(t, (&Principal{Grants: []Grant{{Role("boss"), []string{"*"}}}}).May(Viewer, "prod"), "a role that is none")
}
