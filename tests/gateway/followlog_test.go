package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cuttingProxy is a TCP proxy between a client and its gateway that can close the
// connection in the middle of a log line.
type cuttingProxy struct {
	listener net.Listener
	to       string

	mu  sync.Mutex
	cut chan struct{} // closed when it has cut; nil = it is not to
}

func newCuttingProxy(t *testing.T, to string) *cuttingProxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	c := &cuttingProxy{listener: l, to: to}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			go c.proxyConn(from)
		}
	}()
	return c
}

func (c *cuttingProxy) url() string { return "http://" + c.listener.Addr().String() }

// cutNextLine has the next line of a log cut in two, and returns when that is done.
func (c *cuttingProxy) cutNextLine(t *testing.T, provoke func()) {
	t.Helper()
	done := make(chan struct{})
	c.mu.Lock()
	c.cut = done
	c.mu.Unlock()
	provoke()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.FailNow(t, "nothing was cut")
	}
}

func (c *cuttingProxy) proxyConn(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := new(net.Dialer).DialContext(context.Background(), "tcp", c.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() {
		copyUntil(to, from, nil)
		_ = to.Close()
	}()
	copyUntil(from, to, c.untilCut)
}

// copyUntil copies; with half set, as far as that says.
func copyUntil(to, from net.Conn, half func([]byte) (int, bool)) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		last := false
		if n > 0 && half != nil {
			n, last = half(buffer[:n])
		}
		if _, writeErr := to.Write(buffer[:n]); writeErr != nil || err != nil || last {
			return
		}
	}
}

// untilCut ends in the middle of the text of a line, when that is wanted.
func (c *cuttingProxy) untilCut(data []byte) (n int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := strings.LastIndex(string(data), `"text":"line`)
	if c.cut == nil || at < 0 {
		return len(data), false
	}
	close(c.cut)
	c.cut = nil
	return at + len(`"text":"line`), true
}

// Two followed logs and a wait, over three restarts of the gateway: an orderly one,
// one in which the connection is cut in the middle of a line and the gateway
// killed, and an orderly one without a pause.
func TestLogIsFollowedOverRestarts(t *testing.T) {
	s := newEnvironment(t)
	p := s.startLoggingOperation("upgrade-1")
	g := s.newGateway("gateway", "")
	g.start()
	between := newCuttingProxy(t, g.address())

	number := 0
	some := func(pieces int) {
		for range pieces {
			number++
			switch number % 4 {
			case 0:
				p.writeOutput(fmt.Sprintf("line %d\nsame\nsame\nline %d, which has no", number, number))
			case 1:
				p.writeOutput(fmt.Sprintf(" end until now (%d)\n", number))
			default:
				p.writeOutput(fmt.Sprintf("line %d\n", number))
			}
		}
	}
	some(40)
	all := s.startCLI("vera", between.url(), "logs", p.id, "-f")
	some(20)
	before := len(p.printed)
	last := s.startCLI("vera", g.url(), "logs", p.id, "-f", "--tail", "5")
	s.eventually("both read", func() bool {
		return len(logLines(all.out.String())) == before && len(logLines(last.out.String())) == 5
	})
	waited := make(chan string, 1)
	go func() { waited <- s.waitForEnd(g, p.id) }()
	s.eventually("three streams and waits", func() bool { _, _, streams := g.lifecycle(); return streams == 3 })

	some(10)
	g.signal(syscall.SIGTERM)
	some(10)
	require.Zero(t, g.process.ExitCode())
	some(10)
	g.start()

	some(7)
	between.cutNextLine(t, func() { some(10) })
	require.NoError(t, g.process.Kill())
	some(10)
	g.start()

	some(10)
	g.signal(syscall.SIGTERM)
	<-g.process.Done()
	g.start()
	some(10)
	p.writeOutput("\nthe end, without a newline")
	p.printed = append(p.printed, p.partialLine)
	p.terminate()

	require.Zero(t, all.waitForExit(t, time.Minute), "%s", all.errs)
	require.Zero(t, last.waitForExit(t, time.Minute), "%s", last.errs)
	require.Equal(t, p.printed, logLines(all.out.String()), "no gap, no repeat, in order")
	require.Equal(t, p.printed[before-5:], logLines(last.out.String()))
	for _, c := range []*cliProcess{all, last} {
		require.Contains(t, c.errs.String(), "log stream interrupted by a server restart, resuming…")
		require.Contains(t, c.errs.String(), "recovered after ")
	}
	select {
	case end := <-waited:
		require.Contains(t, end, `"state":"Terminated"`)
	case <-time.After(time.Minute):
		require.FailNow(t, "the wait goes on")
	}
}

// waitForEnd asks for the end of an operation until it is told, as a script would.
func (s *environment) waitForEnd(g *gateway, id string) string {
	for {
		a, err := send(s.t.Context(), http.DefaultClient, http.MethodGet, g.url()+"/v1/operations/"+id+"/wait?timeout=9m", "", s.header("vera"))
		var said struct{ Type string }
		if err == nil && a.status == http.StatusOK && json.Unmarshal(a.body, &said) == nil && said.Type == "end" {
			return string(a.body)
		}
		select {
		case <-s.t.Context().Done():
			return ""
		case <-time.After(200 * time.Millisecond):
		}
	}
}
