//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/policy"
)

// tty is a terminal on which a person reads and types.
type tty struct {
	keyboard, screen *os.File
	width, height    int

	mu      sync.Mutex
	printed strings.Builder
	ended   chan struct{}
}

// newTTY returns a terminal of 80 columns.
func newTTY(t *testing.T, height int) *tty {
	t.Helper()
	const width = 80
	t.Setenv("TERM", "xterm")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)}))
	s := &tty{keyboard: master, screen: slave, width: width, height: height, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_, _ = io.Copy(s, master) // its end is an error: EIO
	}()
	return s
}

// Write takes what the terminal shows.
func (s *tty) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.Write(text)
}

// types has a person type something, and waits until the terminal shows it.
func (s *tty) types(t *testing.T, keys string) {
	_, err := s.keyboard.WriteString(keys)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.printed.String(), keys)
	}, time.Minute, time.Millisecond)
}

// follow runs ebb watch on the terminal, and returns what a person can read there when it is
// over, what has scrolled away included.
func (s *tty) follow(ctx context.Context, t *testing.T, f ops.Client) string {
	t.Helper()
	run(ctx, &app{out: s.screen, errs: s.screen, ops: f}, []string{"watch", "drain-1"})
	require.NoError(t, s.screen.Close())
	<-s.ended
	paper := terminalPaper{width: s.width, height: s.height}
	paper.print(s.printed.String())
	return strings.TrimRight(strings.Join(paper.lines(), "\n"), "\n")
}

// terminalPaper is what a terminal makes of what is printed on it, as far as Ebb makes use
// of one. Lines that scroll away at the top stay, and can no longer be changed.
type terminalPaper struct {
	width, height int
	cells         [][]rune
	row, column   int
}

func (p *terminalPaper) print(text string) {
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' })
			p.control(rest[:end], rest[end])
			text = rest[end+1:]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		p.put(r)
	}
}

func (p *terminalPaper) put(r rune) {
	switch r {
	case '\r':
		p.column = 0
		return
	case '\n':
		p.row++
		p.line()
		return
	}
	if p.column == p.width {
		p.row, p.column = p.row+1, 0
	}
	line := p.line()
	for len(*line) <= p.column {
		*line = append(*line, ' ')
	}
	(*line)[p.column] = r
	p.column++
}

// line is the one that the cursor is on.
func (p *terminalPaper) line() *[]rune {
	for len(p.cells) <= p.row {
		p.cells = append(p.cells, nil)
	}
	return &p.cells[p.row]
}

func (p *terminalPaper) control(parameter string, command byte) {
	line := p.line()
	switch command {
	case 'A':
		up := 1
		_, _ = fmt.Sscan(parameter, &up)
		p.row = max(p.row-up, len(p.cells)-p.height, 0)
	case 'K':
		*line = (*line)[:min(len(*line), p.column)]
	case 'J':
		*line = (*line)[:min(len(*line), p.column)]
		for i := p.row + 1; i < len(p.cells); i++ {
			p.cells[i] = nil
		}
	}
}

func (p *terminalPaper) lines() (lines []string) {
	for _, cells := range p.cells {
		lines = append(lines, strings.TrimRight(string(cells), " "))
	}
	return lines
}

// draining is a drain of so many nodes, all in one phase.
func draining(nodes int, state ops.State, phase operation.Phase) ops.Operation {
	op := ops.Operation{
		Request: ops.Request{ID: "drain-1", Kind: operation.KindDrain, Cluster: "prod"}, State: state, Started: began, Ended: began.Add(9e9),
		Status: &operation.Status{Step: "drained them all"},
	}
	for i := range nodes {
		op.Status.Nodes = append(op.Status.Nodes, operation.NodeStatus{Node: fmt.Sprintf("w%d", i+1), Role: policy.Worker, Phase: phase})
	}
	return op
}

func TestFinalStateStaysOnTheTerminal(t *testing.T) {
	f := &fakeOps{looks: []ops.Operation{draining(2, ops.Running, operation.PhaseDraining), draining(2, ops.Done, operation.PhaseDrained)}}
	require.Equal(t, `drain of prod   (drain-1)
done after 9s

   NODE  ROLE    PHASE
✓  w1    worker  drained
✓  w2    worker  drained
done in 9s: drained them all`, newTTY(t, 24).follow(t.Context(), t, f))
}

func TestFinalStateHasEveryNodeHoweverLowTheTerminal(t *testing.T) {
	f := &fakeOps{looks: []ops.Operation{draining(30, ops.Running, operation.PhaseDraining), draining(30, ops.Done, operation.PhaseDrained)}}
	shown := newTTY(t, 10).follow(t.Context(), t, f)
	require.Len(t, strings.Split(shown, "\n"), 2+1+1+30+1, shown)
	require.Regexp(t, `^drain of prod   \(drain-1\)\n`, shown)
	require.Contains(t, shown, "\n✓  w30   worker  drained\ndone in 9s")
}

func TestFinalStateWithoutAWorkerHasTheNodesAsSeenLast(t *testing.T) {
	over := draining(0, ops.Failed, "")
	over.Status, over.Message = nil, "its lock is gone"
	f := &fakeOps{looks: []ops.Operation{draining(2, ops.Running, operation.PhaseDrained), over}}
	require.Equal(t, `drain of prod   (drain-1)
failed after 9s

   NODE  ROLE    PHASE
✓  w1    worker  drained
✓  w2    worker  drained
   the nodes are as they were seen last
ebb: failed: its lock is gone
  next: `+"`ebb status prod` shows in which state the cluster and its nodes are", newTTY(t, 24).follow(t.Context(), t, f))
}

func TestFinalStateStaysWhenFollowingIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeOps{looks: []ops.Operation{draining(1, ops.Running, operation.PhaseDraining)}}
	s := newTTY(t, 24)
	shown := s.follow(ctx, t, watched{f, func() { s.types(t, "~C"); cancel() }})
	require.Regexp(t, `^drain of prod   \(drain-1\)\nrunning for .*\n\n   NODE  ROLE    PHASE\n●  w1    worker  draining\nebb: stopped following; operation drain-1 goes on`, shown)
}

// watched calls then when it has told how the operation is.
type watched struct {
	*fakeOps
	then func()
}

func (w watched) Watch(ctx context.Context, id string, changed func(ops.Operation)) error {
	return w.fakeOps.Watch(ctx, id, func(op ops.Operation) { changed(op); w.then() })
}
