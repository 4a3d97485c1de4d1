package auth

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// openTokens is a tokens file of that text, looked at by a clock of the test's own.
func openTokens(t *testing.T, text string, mode os.FileMode) (tokens *TokenFile, path string, logs *observer.ObservedLogs, clock *time.Time, err error) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	path = t.TempDir() + "/tokens.yaml"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Chmod(path, mode))
	now := time.Unix(1000, 0)
	tokens, err = OpenTokenFile(path, zap.New(core))
	if err == nil {
		tokens.now = func() time.Time { return now }
		tokens.checkedAt = now
	}
	return tokens, path, logs, &now, err
}

func TestTokensFileIsReadAgain(t *testing.T) {
	first, firstHash, err := NewToken()
	require.NoError(t, err)
	second, secondHash, err := NewToken()
	require.NoError(t, err)
	line := func(name, hash string) string {
		text, err := TokenFileEntry(name, hash, Operator, []string{"prod", "dev"})
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
	*clock = clock.Add(reloadInterval)
	var bad *TokenError
	_, err = tokens.Authenticate(t.Context(), first)
	require.ErrorAs(t, err, &bad)
	p, err = tokens.Authenticate(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, "new", p.Name)

	require.NoError(t, os.WriteFile(path, []byte("tokens: [{name: x}]\n"), 0o600))
	for range 3 {
		*clock = clock.Add(reloadInterval)
		_, err = tokens.Authenticate(t.Context(), second)
		require.NoError(t, err, "the last good version stays")
	}
	require.Equal(t, 1, logs.FilterMessageSnippet("broken").Len())
	require.NoError(t, os.Chmod(path, 0o622)) // #nosec G302 -- that is what has to be refused
	*clock = clock.Add(reloadInterval)
	_, err = tokens.Authenticate(t.Context(), second)
	require.NoError(t, err)
	require.Contains(t, logs.All()[logs.Len()-1].ContextMap()["error"], "may be written by others")
	_, err = tokens.Authenticate(t.Context(), "not-ours")
	require.ErrorIs(t, err, errNotRecognized)
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
