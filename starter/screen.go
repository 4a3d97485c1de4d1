package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"ebb/internal/ops"
	"ebb/internal/wait"
)

// screen redraws a table in place.
type screen struct {
	out, errs io.Writer
	stop      func()

	mu    sync.Mutex
	op    *ops.Operation
	drawn int // lines of the table that is on the screen
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

// close leaves the table as it is, with the outcome below if it is a good one.
func (s *screen) close() error {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.op != nil && s.op.State == ops.Done {
		_, s.err = fmt.Fprintln(s.out, verdict(*s.op))
	}
	return s.err
}
