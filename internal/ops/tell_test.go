package ops

import (
	"testing"

	"ebb/internal/operation"

	"github.com/stretchr/testify/require"
)

func piece(offset int64, text string) operation.Output {
	return operation.Output{Node: "w1", Phase: "upgrade", Attempt: 1, Offset: offset, Size: int64(len(text)), Text: text}
}

func texts(events []Event) (all []string) {
	for _, e := range events {
		all = append(all, e.Text)
	}
	return all
}

func TestPiecesBecomeLines(t *testing.T) {
	a := assembly{}
	require.Equal(t, []string{"one", "two"}, texts(a.add(piece(0, "one\ntwo\nthr"))))
	require.Empty(t, a.add(piece(0, "one\ntwo\n")), "sent twice by a worker that died in between")
	require.Equal(t, []string{"three", "four"}, texts(a.add(piece(8, "three\nfour\n"))), "it overlaps what was there")
	require.Equal(t, []string{"", "six"}, texts(a.add(piece(19, "\nsix\r\n"))))
	require.Empty(t, a.add(piece(25, "the end")))

	other := piece(0, "another run\nof it")
	other.Attempt = 2
	require.Equal(t, []Event{{Type: LogEvent, Node: "w1", Phase: "upgrade", Attempt: 2, Text: "another run"}}, a.add(other))
	require.Equal(t, []string{"the end", "of it"}, texts(a.rest()), "in the order of the runs")
	require.Empty(t, a.rest())
}

func TestPlaces(t *testing.T) {
	for text, want := range map[string]place{
		"":                     {nodes: map[int64]mark{}},
		"88":                   {own: mark{88, 0}, nodes: map[int64]mark{}},
		"88.1;61:14.3,70:5":    {own: mark{88, 1}, nodes: map[int64]mark{61: {14, 3}, 70: {5, 0}}},
		"999999999999999999.7": {own: mark{999999999999999999, 7}, nodes: map[int64]mark{}},
	} {
		got, err := parsePlace(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		if text != "" {
			require.Equal(t, text, got.String())
		}
	}
	for _, text := range []string{"x", "-1", "1.", ".1", "1;", "1;2", "1;2:", "1;2:3,", "1 ", "1;2:3;4:5", "1e3", "9999999999999999999", "\n1"} {
		_, err := parsePlace(text)
		var fault *RequestError
		require.ErrorAs(t, err, &fault, "%q", text)
		require.ErrorContains(t, err, "give the seq of an event")
	}
	open := place{own: mark{event: 9}, nodes: map[int64]mark{5: {}, 7: {event: 2}}}
	require.Equal(t, "9;7:2", open.String(), "a node of which nothing was told is not worth a word")
}

func TestMarks(t *testing.T) {
	m := mark{event: 7, part: 2}
	for _, c := range []struct {
		event  int64
		part   int
		passed bool
	}{{6, 9, true}, {7, 1, true}, {7, 2, true}, {7, 3, false}, {8, 1, false}} {
		require.Equal(t, c.passed, m.passed(c.event, c.part), "%+v", c)
	}
	require.False(t, mark{event: 7}.passed(7, 1), "nothing of it was told")
}
