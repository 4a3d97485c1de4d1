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
	points []point
	wanted map[run]bool

	mu       sync.Mutex
	verdicts map[run]string // how the end state differs; "" = not at all
	order    []run
}

func newMatrix(points []point, runs []run) *matrix {
	m := &matrix{points: points, wanted: map[run]bool{}, verdicts: map[run]string{}}
	for _, r := range runs {
		m.wanted[r] = true
	}
	return m
}

// record keeps what came out of a run, and says so at once.
func (m *matrix) record(r run, verdict string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verdicts[r] = verdict
	m.order = append(m.order, r)
	word := "same"
	if verdict != "" {
		word = "DIFFERS"
	}
	fmt.Printf("%4d/%d  %s  %s in %.1f s\n", len(m.order), len(m.wanted), r, word, took.Seconds())
	if verdict != "" {
		fmt.Println(verdict)
	}
}

func (m *matrix) done() int { return len(m.order) }

func (m *matrix) different() []run {
	var list []run
	for _, r := range m.order {
		if m.verdicts[r] != "" {
			list = append(list, r)
		}
	}
	return list
}

// cell is one run: "same", "DIFFERS", "·" when this selection leaves it out, or
// "-" when the fault cannot strike there.
func (m *matrix) cell(r run) string {
	verdict, made := m.verdicts[r]
	switch {
	case made && verdict == "":
		return "same"
	case made:
		return "DIFFERS"
	case !r.hits(r.fault):
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
		for r, verdict := range m.verdicts {
			if r.fault == f {
				made++
				if verdict == "" {
					same++
				}
			}
		}
		out(" %-9s", fmt.Sprintf("%d/%d", same, made))
	}
	out("\nfaults: %d runs, %d differ\n", m.done(), len(m.different()))
}
