package ops

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/activities"
)

func piece(offset int64, text string) activities.Output {
	return activities.Output{Node: "w1", Phase: "upgrade", Attempt: 1, Offset: offset, Size: int64(len(text)), Text: text}
}

func texts(lines []LogLine) (all []string) {
	for _, l := range lines {
		all = append(all, l.Text)
	}
	return all
}

func TestPiecesBecomeLines(t *testing.T) {
	at := time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	a := assembly{}
	require.Equal(t, []string{"one", "two"}, texts(a.add(at, piece(0, "one\ntwo\nthr"))))
	require.Empty(t, a.add(at, piece(0, "one\ntwo\n")), "sent twice by a worker that died in between")
	require.Equal(t, []string{"three", "four"}, texts(a.add(at, piece(8, "three\nfour\n"))), "it overlaps what was there")
	require.Equal(t, []string{"", "six"}, texts(a.add(at, piece(19, "\nsix\r\n"))))
	require.Empty(t, a.add(at, piece(25, "the end")))

	other := piece(0, "another run\n")
	other.Attempt = 2
	require.Equal(t, []LogLine{{Time: at, Node: "w1", Phase: "upgrade", Attempt: 2, Text: "another run"}}, a.add(at, other))
	require.Equal(t, []string{"the end"}, texts(a.rest()))
	require.Empty(t, a.rest())
}
