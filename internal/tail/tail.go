// Package tail keeps the end of what programs print, which is where they say what
// went wrong.
package tail

import (
	"strings"
	"sync"
)

// Of returns the end of s, at most n bytes of it, without a character that was cut
// in two.
func Of(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[len(s)-n:], "")
}

// Lines returns the last n lines of s, without the white space around s.
func Lines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Writer keeps the last Limit bytes that are written to it, for use as the output
// of a process. Writes never fail. Several goroutines may use it.
type Writer struct {
	Limit int // bytes

	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.data = append(w.data, p...)
	// Trimmed at twice the limit, so that long outputs are not copied for each write.
	if len(w.data) > 2*w.Limit {
		w.data = append([]byte(nil), w.data[len(w.data)-w.Limit:]...)
	}
	return len(p), nil
}

// String returns what is kept, byte for byte: it may begin within a character.
func (w *Writer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.data[max(0, len(w.data)-w.Limit):])
}
