package engine

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
)

// clearTemporalEnv keeps a developer's own Temporal settings out of the test.
func clearTemporalEnv(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, name := range []string{"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "TEMPORAL_API_KEY"} {
		t.Setenv(name, "")
	}
}

func TestLoadClientOptions(t *testing.T) {
	clearTemporalEnv(t)
	o, err := LoadClientOptions(Options{})
	require.NoError(t, err)
	require.Equal(t, "localhost:7233", o.HostPort)
	require.Equal(t, "default", o.Namespace)

	t.Setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
	t.Setenv("TEMPORAL_NAMESPACE", "ops")
	o, err = LoadClientOptions(Options{})
	require.NoError(t, err)
	require.Equal(t, "temporal.example:7233", o.HostPort)
	require.Equal(t, "ops", o.Namespace)

	o, err = LoadClientOptions(Options{Address: "127.0.0.1:1", Namespace: "mine"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", o.HostPort)
	require.Equal(t, "mine", o.Namespace)

	t.Setenv("TEMPORAL_PROFILE", "nowhere")
	_, err = LoadClientOptions(Options{})
	require.ErrorContains(t, err, "nowhere")
}

func TestDialWhereNothingAnswers(t *testing.T) {
	clearTemporalEnv(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	began := time.Now()
	_, err = Dial(t.Context(), zap.NewNop(), Options{Address: address})

	require.ErrorContains(t, err, address)
	require.ErrorContains(t, err, "ebb dev")
	require.ErrorContains(t, err, "TEMPORAL_ADDRESS")
	require.Less(t, time.Since(began), 15*time.Second)
	t.Logf("after %v: %v", time.Since(began), err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Dial(ctx, zap.NewNop(), Options{Address: address})
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "ebb dev")
}

func TestRefusedCredentialsAreNotAMissingEngine(t *testing.T) {
	err := dialError(t.Context(), client.Options{HostPort: "temporal.example:7233"},
		errors.Join(errors.New("failed reaching server"), serviceerror.NewPermissionDenied("no", "")))
	require.ErrorContains(t, err, "TEMPORAL_API_KEY")
	require.NotContains(t, err.Error(), "ebb dev")
}
