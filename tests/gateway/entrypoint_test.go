package gateway

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"ebb/internal/testbed"
)

// composeService is how docker-compose.yml runs the gateway.
type composeService struct {
	Init       bool          `yaml:"init"`
	Entrypoint []string      `yaml:"entrypoint"` // a list is no shell
	Command    []string      `yaml:"command"`
	Grace      time.Duration `yaml:"stop_grace_period"`
}

func readComposeService(t *testing.T) composeService {
	t.Helper()
	data, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var file struct {
		Services struct {
			Gateway composeService `yaml:"gateway"`
		} `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal(data, &file))
	return file.Services.Gateway
}

// One service builds the image, with the Go of go.mod, and the others never fetch it;
// the gateway, which is open to the network, has nothing of the worker's.
func TestComposeFile(t *testing.T) {
	data, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	type service struct {
		Build       any               `yaml:"build"`
		Image       string            `yaml:"image"`
		Pull        string            `yaml:"pull_policy"`
		Environment map[string]string `yaml:"environment"`
		Volumes     []string          `yaml:"volumes"`
		Ports       []string          `yaml:"ports"`
		Health      struct {
			Test []string `yaml:"test"`
		} `yaml:"healthcheck"`
	}
	var file struct {
		Services map[string]service `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal(data, &file))
	require.Len(t, file.Services, 3)
	for name, s := range file.Services {
		require.Equal(t, "ebb:local", s.Image, name)
		require.Equal(t, name == "engine", s.Build != nil, name)
		if name == "engine" {
			continue
		}
		require.Equal(t, "never", s.Pull, name)
		for _, setting := range []string{"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "TEMPORAL_TLS", "TEMPORAL_TLS_CLIENT_CERT_PATH",
			"TEMPORAL_TLS_CLIENT_KEY_PATH", "TEMPORAL_TLS_SERVER_CA_CERT_PATH", "TEMPORAL_TLS_SERVER_NAME"} {
			require.Contains(t, s.Environment, setting, name)
		}
	}
	require.Equal(t, []string{"${EBB_CONFIG_DIR:-/etc/ebb}:/etc/ebb:ro"}, file.Services["worker"].Volumes)
	require.Equal(t, []string{"${EBB_GATEWAY_CONFIG_DIR:-/etc/ebb-gateway}:/etc/ebb:ro"}, file.Services["gateway"].Volumes)
	require.Equal(t, []string{"8470:8470", "8471:8471"}, file.Services["gateway"].Ports)
	require.Equal(t, []string{"CMD", "ebb-gateway", "health", "--url", "https://127.0.0.1:8470"}, file.Services["gateway"].Health.Test)

	module, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(module)
	require.NotNil(t, version)
	dockerfile, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	require.Contains(t, string(dockerfile), "FROM golang:"+string(version[1])+"-")
}

// startUnderInit starts the packaged command line under a real init, as a container
// has it, but for the address: this one has no TLS and is for this host alone.
func startUnderInit(t *testing.T, g *gateway) {
	t.Helper()
	p := readComposeService(t)
	require.True(t, p.Init)
	require.Equal(t, []string{"ebb-gateway"}, p.Entrypoint, "the program itself gets the signals")
	binary, err := testbed.Binary("ebb-gateway")
	require.NoError(t, err)
	args := []string{"--", binary}
	for _, arg := range p.Command {
		args = append(args, strings.ReplaceAll(arg, "0.0.0.0:8470", g.address()))
	}
	require.Contains(t, args, g.address())
	g.run(debianProgram(t, "tini", "tini"), args...)
}

// The packaged entrypoint under an init gets the SIGTERM, lets what runs finish,
// and ends in an orderly way.
func TestEntrypointGetsTheSignal(t *testing.T) {
	s := newEnvironment(t)
	g := s.newGateway("gateway", "")
	startUnderInit(t, g)
	slow := g.startSlowRequest()
	s.eventually("it runs", func() bool {
		_, running, _ := g.lifecycle()
		return running == 1
	})
	g.signal(syscall.SIGTERM) // the init's process, as a container's runtime would
	g.waitReady(http.StatusServiceUnavailable)
	slow.finish()
	require.Equal(t, http.StatusAccepted, (<-slow.answer).status)
	require.Zero(t, g.process.ExitCode())
	require.EqualValues(t, 1, s.executionCount("slow"))
}

// A second SIGTERM ends it at once, whatever still runs.
func TestSecondSignalEndsItAtOnce(t *testing.T) {
	s := newEnvironment(t)
	g := s.newGateway("gateway", "")
	startUnderInit(t, g)
	slow := g.startSlowRequest()
	s.eventually("it runs", func() bool {
		_, running, _ := g.lifecycle()
		return running == 1
	})
	g.signal(syscall.SIGTERM)
	g.waitReady(http.StatusServiceUnavailable)
	began := time.Now()
	g.signal(syscall.SIGTERM)
	require.Equal(t, 128+int(syscall.SIGTERM), g.process.ExitCode(), "as a process that a signal has ended")
	require.Less(t, time.Since(began), 20*time.Second, "the grace is a minute")
	require.Zero(t, (<-slow.answer).status, "nobody answered it")
}

// Who kills waits longer than the gateway needs, and nothing stands between a
// signal and the program.
func TestPackagesLeaveTheGraceItsTime(t *testing.T) {
	require.Greater(t, readComposeService(t).Grace, time.Minute)
	manifest, err := os.ReadFile("../../deployments/gateway.yaml")
	require.NoError(t, err)
	grace := regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindSubmatch(manifest)
	require.NotNil(t, grace)
	seconds, err := time.ParseDuration(string(grace[1]) + "s")
	require.NoError(t, err)
	require.Greater(t, seconds, time.Minute)
	require.Contains(t, string(manifest), "command: [ebb-gateway]")
	dockerfile, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	require.NoError(t, err)
	require.NotRegexp(t, `(?m)^(ENTRYPOINT|CMD) [^\[]`, string(dockerfile), "a shell would not pass signals on")
}
