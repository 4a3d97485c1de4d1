package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints columns as wide as they need to be, two blanks apart.
type table struct {
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	_, err := fmt.Fprintln(w, strings.Join(t.lines(), "\n"))
	return err
}

// lines are the head, if there is one, and the rows.
func (t *table) lines() []string {
	rows := t.rows
	if len(t.head) > 0 {
		rows = append([][]string{t.head}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+2))
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// fit cuts a line to a width, in characters.
func fit(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(0, width-1)]) + "…"
}

// wrap breaks a line between words so that it fits a width; all but the first
// line begin with indent. A width that is not positive is no limit.
func wrap(line string, width int, indent string) []string {
	if width <= utf8.RuneCountInString(indent) || utf8.RuneCountInString(line) <= width {
		return []string{line}
	}
	start := len(line) - len(strings.TrimLeft(line, " "))
	var lines []string
	current := line[:start]
	for i, word := range strings.Fields(line) {
		switch {
		case i == 0:
			current += word
		case utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, current)
			current = indent + word
		default:
			current += " " + word
		}
	}
	return append(lines, current)
}
