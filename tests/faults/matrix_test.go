package faults

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// matrix is points × faults with what came out.
type matrix struct {
	points   []point
	selected map[run]bool

	mu          sync.Mutex
	differences map[run]string // how the end state differs; "" = not at all
	order       []run
}

func newMatrix(points []point, runs []run) *matrix {
	m := &matrix{points: points, selected: map[run]bool{}, differences: map[run]string{}}
	for _, r := range runs {
		m.selected[r] = true
	}
	return m
}

// record keeps what came out of a run, and says so at once.
func (m *matrix) record(r run, diff string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.differences[r] = diff
	m.order = append(m.order, r)
	word := "same"
	if diff != "" {
		word = "DIFFERS"
	}
	fmt.Printf("%4d/%d  %s  %s in %.1f s\n", len(m.order), len(m.selected), r, word, took.Seconds())
	if diff != "" {
		fmt.Println(diff)
	}
}

func (m *matrix) done() int { return len(m.order) }

func (m *matrix) differing() []run {
	var list []run
	for _, r := range m.order {
		if m.differences[r] != "" {
			list = append(list, r)
		}
	}
	return list
}

// cell is one run: "same", "DIFFERS", "·" when this selection leaves it out, or
// "-" when the fault makes no sense there.
func (m *matrix) cell(r run) string {
	diff, made := m.differences[r]
	switch {
	case made && diff == "":
		return "same"
	case made:
		return "DIFFERS"
	case !r.allows(r.fault):
		return "-"
	}
	return "·"
}

// print writes the matrix, the counts of each fault, and the sum.
func (m *matrix) print(w io.Writer) {
	out := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // nobody has to read it
	out("\n%-10s %-17s %-5s %-6s %-10s", "operation", "step", "node", "when", "at")
	for _, f := range faults {
		out(" %-9s", f)
	}
	out("\n")
	for _, p := range m.points {
		at := p.Node
		if p.When == inside {
			at = strings.TrimSpace(p.Node + " " + string(p.Effect))
		}
		out("%s %-10s", p, at)
		for _, f := range faults {
			out(" %-9s", m.cell(run{p, f}))
		}
		out("\n")
	}
	out("%-53s", "runs that end the same")
	for _, f := range faults {
		same, made := 0, 0
		for r, diff := range m.differences {
			if r.fault == f {
				made++
				if diff == "" {
					same++
				}
			}
		}
		out(" %-9s", fmt.Sprintf("%d/%d", same, made))
	}
	out("\nfaults: %d runs, %d differ\n", m.done(), len(m.differing()))
}
