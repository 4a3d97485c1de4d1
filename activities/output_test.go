package activities

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ebb/internal/operation"

	"github.com/stretchr/testify/require"
)

// logOf records into memory; while broken nothing arrives.
type logOf struct {
	pieces []operation.Output
	broken error
}

func (l *logOf) send(_ context.Context, o operation.Output) error {
	if l.broken != nil {
		return l.broken
	}
	l.pieces = append(l.pieces, o)
	return nil
}

func (l *logOf) text() string {
	var all strings.Builder
	for _, p := range l.pieces {
		all.WriteString(p.Text)
	}
	return all.String()
}

func TestRecorderSendsWholeLinesAndAtTheEndTheRest(t *testing.T) {
	l := &logOf{}
	r := &recorder{send: l.send, run: operation.Output{Node: "w1", Phase: PhaseUpgrade, Attempt: 1}}
	require.NoError(t, r.write(t.Context(), []byte("one\ntwo\nthr")))
	require.Empty(t, l.pieces, "sent once a second, not chunk by chunk")
	require.NoError(t, r.flush(t.Context(), false))
	require.Equal(t, []operation.Output{{Node: "w1", Phase: PhaseUpgrade, Attempt: 1, Offset: 0, Size: 8, Text: "one\ntwo\n"}}, l.pieces)
	require.Equal(t, operation.ScriptProgress{Offset: 8, Output: "one\ntwo\n"}, r.progress())
	require.NoError(t, r.write(t.Context(), []byte("ee")))
	require.NoError(t, r.flush(t.Context(), true))
	require.Equal(t, operation.Output{Node: "w1", Phase: PhaseUpgrade, Attempt: 1, Offset: 8, Size: 5, Text: "three"}, l.pieces[1])
}

func TestRecorderLosesNothingWhenTheLogIsAway(t *testing.T) {
	l := &logOf{broken: errors.New("engine away")}
	r := &recorder{send: l.send}
	require.NoError(t, r.write(t.Context(), []byte("one\n")))
	require.ErrorContains(t, r.flush(t.Context(), false), "engine away")
	require.Zero(t, r.progress().Offset, "a heartbeat promises only what has arrived")
	l.broken = nil
	require.NoError(t, r.write(t.Context(), []byte("two\n")))
	require.NoError(t, r.flush(t.Context(), false))
	require.Equal(t, "one\ntwo\n", l.text())
}

func TestRecorderReadsAgainAfterACut(t *testing.T) {
	l := &logOf{}
	r := &recorder{send: l.send}
	require.NoError(t, r.write(t.Context(), []byte("one\ntw")))
	require.NoError(t, r.flush(t.Context(), false))
	r.begin() // the connection was cut, the next one reads from offset 4
	require.NoError(t, r.write(t.Context(), []byte("two\n")))
	require.NoError(t, r.flush(t.Context(), true))
	require.Equal(t, "one\ntwo\n", l.text())
}

func TestRecorderSendsMuchAtOnceInPieces(t *testing.T) {
	l := &logOf{}
	r := &recorder{send: l.send}
	line := strings.Repeat("x", 99) + "\n"
	require.NoError(t, r.write(t.Context(), []byte(strings.Repeat(line, 2000))))
	require.NoError(t, r.flush(t.Context(), true))
	require.Equal(t, strings.Repeat(line, 2000), l.text())
	for _, p := range l.pieces {
		require.LessOrEqual(t, len(p.Text), outputPiece)
		require.True(t, strings.HasSuffix(p.Text, "\n"), "cut between lines")
	}
}

func TestRecorderStopsAtTheLimitOfTheLogAndSaysWhereTheRestIs(t *testing.T) {
	l := &logOf{}
	r := &recorder{send: l.send, rest: "/var/lib/ebb/runs/up-1/output"}
	block := []byte(strings.Repeat("y", outputPiece-1) + "\n")
	for range outputMost/outputPiece + 10 {
		require.NoError(t, r.write(t.Context(), block))
	}
	require.NoError(t, r.flush(t.Context(), true))
	require.Equal(t, 1, strings.Count(l.text(), "all of its output is in /var/lib/ebb/runs/up-1/output on the node"))
	require.Less(t, len(l.text()), outputMost+2*outputPiece)
	require.Equal(t, int64(outputMost+10*outputPiece), r.progress().Offset, "what is not sent counts as read")
}

func TestRecorderSendsWhatIsNoText(t *testing.T) {
	l := &logOf{}
	r := &recorder{send: l.send}
	require.NoError(t, r.write(t.Context(), []byte("a\xffb\n")))
	require.NoError(t, r.flush(t.Context(), true))
	require.Equal(t, "a�b\n", l.text())
	require.Equal(t, int64(4), l.pieces[0].Size)
}
