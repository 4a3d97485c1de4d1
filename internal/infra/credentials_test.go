package infra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
)

func TestParseCredentials(t *testing.T) {
	for _, text := range []string{
		`{"apiKey": "A", "secretKey": "S=/+ x"}`,
		"apiKey=A\nsecretKey=S=/+ x\n",
		"# of the account\r\n\r\n api-key = A \r\nsecret-key = S=/+ x\r\n",
		"api_key=A\nSECRET_KEY=S=/+ x",
	} {
		keys, err := parseCredentials([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, credentials{apiKey: "A", secretKey: "S=/+ x"}, keys)
	}
	for text, want := range map[string]string{ // #nosec G101 -- there are none in it
		"":                            "apiKey and secretKey are both required",
		"apiKey=hunter2":              "apiKey and secretKey are both required",
		"secretKey=hunter2":           "apiKey and secretKey are both required",
		"apiKey=hunter2\nsecretKey=":  "apiKey and secretKey are both required",
		"apiKey=hunter2\nhunter2":     "line 2 must be apiKey=… or secretKey=…",
		"apiKey=a\napiKey=hunter2":    "line 2 names its key a second time",
		"apiKey=a\nhunter2=b":         "it must hold apiKey and secretKey, and nothing else",
		"[Global]\napi-key=hunter2":   "line 1 must be apiKey=… or secretKey=…",
		`{"apiKey": "hunter2", "x":1`: `it must be a JSON object of two texts: {"apiKey": "…", "secretKey": "…"}`,
		`{"apiKey": 1}`:               `it must be a JSON object of two texts: {"apiKey": "…", "secretKey": "…"}`,
		`{"hunter2": ""}`:             "it must hold apiKey and secretKey, and nothing else",
	} {
		_, err := parseCredentials([]byte(text))
		require.EqualError(t, err, want, text)
	}
}

func TestCredentialsAreReadOnlyFromAPrivateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte("apiKey=a\nsecretKey=hunter2\n"), 0o600))
	for _, mode := range []os.FileMode{0o600, 0o400} {
		require.NoError(t, os.Chmod(path, mode))
		keys, err := readCredentials(path)
		require.NoError(t, err)
		require.Equal(t, "hunter2", keys.secretKey)
	}
	for mode, text := range map[os.FileMode]string{0o640: "0640", 0o604: "0604", 0o644: "0644", 0o660: "0660", 0o601: "0601"} {
		require.NoError(t, os.Chmod(path, mode))
		_, err := readCredentials(path)
		require.EqualError(t, err, "infrastructure.credentialsFile "+path+": its mode "+text+" lets others read it: chmod 600 it")
		require.NotContains(t, err.Error(), "hunter2")
	}
	if os.Getuid() == 0 { // a secret that is mounted for a group
		require.NoError(t, os.Chown(path, 65532, -1))
		for mode, private := range map[os.FileMode]bool{0o440: true, 0o640: true, 0o444: false, 0o444 | 0o200: false} {
			require.NoError(t, os.Chmod(path, mode))
			_, err := readCredentials(path)
			require.Equal(t, private, err == nil, "%#o: %v", mode, err)
		}
	}
}

func TestCredentialsFile(t *testing.T) {
	dir := t.TempDir()
	_, err := readCredentials(filepath.Join(dir, "none"))
	require.EqualError(t, err, "infrastructure.credentialsFile "+dir+"/none: no such file or directory")
	_, err = readCredentials(dir)
	require.EqualError(t, err, "infrastructure.credentialsFile "+dir+": it is not a file")
	big := filepath.Join(dir, "big")
	require.NoError(t, os.WriteFile(big, []byte(strings.Repeat("#", maxCredentialsSize+1)), 0o600))
	_, err = readCredentials(big)
	require.EqualError(t, err, "infrastructure.credentialsFile "+big+": it is larger than 65536 bytes")
}

func TestNewCloudStack(t *testing.T) {
	keys := keyFile(t, "hunter2")
	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(noPEM, []byte("hunter2"), 0o600))
	for _, c := range []struct {
		cfg config.Infrastructure
		err string
	}{
		{config.Infrastructure{}, "infrastructure.endpoint: must be a URL such as https://cloud.example.com/client/api"},
		{config.Infrastructure{Endpoint: "http://cloud.example.com/client/api", CredentialsFile: keys},
			"infrastructure.endpoint: must begin with https:// (http only to this machine itself)"},
		{config.Infrastructure{Endpoint: "https://cloud.example.com/client/api", CredentialsFile: "/nowhere"},
			"infrastructure.credentialsFile /nowhere: no such file or directory"},
		{config.Infrastructure{Endpoint: "https://cloud.example.com/client/api", CredentialsFile: keys, CAFile: "/nowhere"},
			"infrastructure.caFile: open /nowhere: no such file or directory"},
		{config.Infrastructure{Endpoint: "https://cloud.example.com/client/api", CredentialsFile: keys, CAFile: noPEM},
			"infrastructure.caFile: " + noPEM + " holds no certificate in PEM form"},
	} {
		c.cfg.Provider = config.InfraCloudStack
		_, err := New(c.cfg)
		require.EqualError(t, err, c.err)
	}
}
