package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/wait"
)

// screen redraws a table in place.
type screen struct {
	out, errs io.Writer
	stop      func()

	mu    sync.Mutex
	op    *ops.Operation
	seen  *operation.Status // the last that the operation said of itself
	drawn int               // lines of the table that is on the screen
	err   error
}

// newScreen is a screen that redraws itself once a second, for the clocks on it.
func newScreen(out, errs io.Writer) *screen {
	s := &screen{out: out, errs: errs}
	s.stop = wait.Every(time.Second, func() { s.draw(nil) })
	return s
}

func (s *screen) show(op ops.Operation) { s.draw(&op) }

// draw replaces the table; a nil operation is the last one again.
func (s *screen) draw(op *ops.Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op != nil {
		s.op = op
	}
	if op != nil && op.Status != nil {
		s.seen = op.Status
	}
	if s.op == nil || s.err != nil {
		return
	}
	width, height, _ := terminal(s.out)
	lines := frame(*s.op, time.Now(), width-1, height-1)
	s.put(lines)
}

// put writes lines over those that are there, in one write so that nothing flickers.
func (s *screen) put(lines []string) {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn) // up
	}
	for _, line := range lines {
		b.WriteString("\r" + line + "\x1b[K\n") // and clear the rest of the line
	}
	b.WriteString("\x1b[J") // clear what is below
	_, s.err = io.WriteString(s.out, b.String())
	s.drawn = len(lines)
}

// notice prints above the table.
func (s *screen) notice(text string) {
	s.mu.Lock()
	if s.err == nil {
		s.put(nil)
	}
	say(s.errs, text)
	s.mu.Unlock()
	s.draw(nil)
}

// close leaves the whole table, however high, and what was typed meanwhile (such as ^C) is
// wiped; the outcome is below if it is a good one.
func (s *screen) close() error {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.op == nil {
		return s.err
	}
	width, _, _ := terminal(s.out)
	lines := s.last(width - 1)
	if s.op.State == ops.Done {
		lines = append(lines, verdict(*s.op))
	}
	s.put(lines)
	return s.err
}

// last is the table that stays. Of an operation that has ended and can no longer be asked, as
// without a worker, it has the nodes as they were seen last.
func (s *screen) last(width int) []string {
	op := *s.op
	if op.Status != nil || s.seen == nil {
		return frame(op, time.Now(), width, 0)
	}
	op.Status = s.seen
	return append(frame(op, time.Now(), width, 0), fit("   the nodes are as they were seen last", width))
}
