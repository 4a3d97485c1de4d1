package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/auth"
	"ebb/internal/freeport"
	"ebb/internal/testbed"
	"ebb/internal/tunnel/dialer"
)

// patience is how long a test waits for what processes do on a busy machine.
const patience = time.Minute

// gateway is a process of ebb-gateway.
type gateway struct {
	t       *testing.T
	name    string
	api     string // its HTTP API
	tunnel  string
	config  string
	token   string // of a viewer
	process *testbed.Process
}

// gatewaySettings is the ebb.yaml of a gateway.
const gatewaySettings = `clusters:
  - name: %s
    kubeconfig: gateway.kubeconfig
    tunnel:
      allow: [{networks: [%s]}]
      offers: {networks: [%s], hosts: ["*"]}
      serviceAccount: ebb-system/ebb-agent
      socket: %s.sock
gateway:
  listen: %s
  tls: {certificateFile: gateway.crt, keyFile: gateway.key}
  tokensFile: %s.tokens
  gracePeriod: 10s
  lameDuck: 1s
  tunnel:
    listen: %s
    clientCAFile: ca.crt
    agents: [{commonName: agent, cluster: %s}]
    clients: [{commonName: worker, clusters: ["*"]}, {commonName: apiserver, clusters: [%s]}]
    servers: %d
    keepAlive: 1s
    settle: %s
`

// atOnce lets dials fail without an agent; patiently is the default.
const (
	atOnce    = "1ms"
	patiently = "15s"
)

// newGateway starts a gateway, one of so many, behind the relay.
func newGateway(t *testing.T, name string, servers int, settle string) *gateway {
	t.Helper()
	ports, err := freeport.Find(t.Context(), "127.0.0.1", 2)
	require.NoError(t, err)
	address := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	g := &gateway{t: t, name: name, api: address(0), tunnel: address(1), config: shared.path(name + ".yaml")}
	token, hash, err := auth.NewToken()
	require.NoError(t, err)
	g.token = token
	line, err := auth.TokenFileEntry("ops", hash, auth.Viewer, []string{"*"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(shared.path(name+".tokens"), []byte("tokens:\n"+line+"\n"), 0o600))
	text := fmt.Sprintf(gatewaySettings, cluster, inside(), inside(), name, g.api, name, g.tunnel, cluster, cluster, servers, settle)
	require.NoError(t, os.WriteFile(g.config, []byte(text), 0o600))
	g.start()
	shared.addGateway(g.tunnel)
	t.Cleanup(func() {
		shared.removeGateway(g.tunnel)
		_ = g.process.Kill()
		g.log()
	})
	return g
}

func (b *bed) addGateway(address string) {
	all := append([]string{address}, *b.toGateways.targets.Load()...)
	b.toGateways.targets.Store(&all)
}

func (b *bed) removeGateway(address string) {
	var rest []string
	for _, a := range *b.toGateways.targets.Load() {
		if a != address {
			rest = append(rest, a)
		}
	}
	b.toGateways.targets.Store(&rest)
}

// start starts the process and returns when its tunnel listens.
func (g *gateway) start() {
	g.t.Helper()
	binary, err := testbed.Binary("ebb-gateway")
	require.NoError(g.t, err)
	g.process, err = testbed.StartProcess(g.t.Context(), shared.path(g.name+".log"), append(os.Environ(), shared.Env()...), binary, "--config", g.config)
	require.NoError(g.t, err)
	eventually(g.t, g.name+" listens", func() bool {
		select {
		case <-g.process.Done():
			g.t.Fatalf("%s has ended with code %d", g.name, g.process.ExitCode())
		default:
		}
		c, err := new(net.Dialer).DialContext(g.t.Context(), "tcp", g.tunnel)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// log shows the end of its log when the test has failed.
func (g *gateway) log() { showLog(g.t, g.name) }

func showLog(t *testing.T, name string) {
	if !t.Failed() {
		return
	}
	text, _ := os.ReadFile(shared.path(name + ".log"))
	t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
}

// dialer dials through this gateway and no other.
func (g *gateway) dialer() *dialer.Dialer { return dialerAt(g.tunnel, "worker") }

func dialerAt(address, name string) *dialer.Dialer {
	return dialer.New(dialer.Options{
		Cluster: cluster, Address: address, CAFile: shared.authority.CAFile(), CertificateFile: shared.path(name + ".crt"), KeyFile: shared.path(name + ".key"),
	})
}

// agents returns those that are connected to this gateway.
func (g *gateway) agents() []dialer.Agent {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	all, err := g.dialer().Agents(ctx)
	if err != nil {
		return nil
	}
	return all
}

// states returns the states of the agents, by ID; an agent with two connections has the last one's.
func (g *gateway) states() map[string]string {
	states := map[string]string{}
	for _, a := range g.agents() {
		states[a.ID] = a.State
	}
	return states
}

// streams returns what each agent carries.
func (g *gateway) streams() map[string]int {
	n := map[string]int{}
	for _, a := range g.agents() {
		n[a.ID] += a.Streams
	}
	return n
}

// agentNumber makes the names of logs differ.
var agentNumber atomic.Int64

// agent is a process of ebb-agent in the private network.
type agent struct {
	t       *testing.T
	id      string
	name    string // of its log
	process *testbed.Process
}

// newAgent starts an agent in the network.
func newAgent(t *testing.T, id string, args ...string) *agent {
	t.Helper()
	if len(args) == 0 {
		args = certified()
	}
	binary, err := testbed.Binary("ebb-agent")
	require.NoError(t, err)
	a := &agent{t: t, id: id, name: fmt.Sprintf("agent-%s-%d", id, agentNumber.Add(1))}
	args = append([]string{"--server", shared.inner, "--server-name", certName, "--ca-file", shared.authority.CAFile(), "--id", id, "--listen", "127.0.0.1:0", "--drain-timeout", "30s"}, args...)
	command, args := shared.network.command(binary, args...)
	a.process, err = testbed.StartProcess(t.Context(), shared.path(a.name+".log"), os.Environ(), command, args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = a.process.Kill()
		showLog(t, a.name)
	})
	return a
}

func certified() []string {
	return []string{"--certificate-file", shared.path("agent.crt"), "--key-file", shared.path("agent.key")}
}

func (a *agent) signal(s syscall.Signal) {
	a.t.Helper()
	require.NoError(a.t, syscall.Kill(a.process.PID(), s))
}

// connected starts agents and returns when the gateways have all of them.
func connected(t *testing.T, gateways []*gateway, ids ...string) map[string]*agent {
	t.Helper()
	all := map[string]*agent{}
	for _, id := range ids {
		all[id] = newAgent(t, id)
	}
	for _, g := range gateways {
		eventually(t, "the agents are connected to "+g.name, func() bool {
			states := g.states()
			for _, id := range ids {
				if states[id] != "Ready" {
					return false
				}
			}
			return true
		})
	}
	return all
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 10*time.Millisecond, what)
}

// echoes listens in the private network and sends back what it gets; its address is one of the
// network's.
func echoes(t *testing.T) string {
	t.Helper()
	l, err := shared.network.listen(t.Context(), nodeAddress(0)+":0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// exchange writes to a connection and reads the same back.
func exchange(c net.Conn, text string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("got %q for %q", got, text)
	}
	return nil
}

// metrics returns the lines of a gateway's metrics that begin with a name.
func (g *gateway) metrics(prefix string) (lines []string) {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "https://"+g.api+"/metrics", nil)
	require.NoError(g.t, err)
	r.Header.Set("Authorization", "Bearer "+g.token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: shared.roots(g.t)}}
	answer, err := client.Do(r)
	require.NoError(g.t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(g.t, err)
	for line := range strings.SplitSeq(string(body), "\n") {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}

func logOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shared.dir, name+".log"))
	require.NoError(t, err)
	return string(text)
}

// roots is what trusts the gateways.
func (b *bed) roots(t *testing.T) *tls.Config {
	t.Helper()
	data, err := os.ReadFile(b.authority.CAFile())
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(data))
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
