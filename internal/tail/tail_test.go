package tail

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	require.Equal(t, "short", Of("short", 5))
	require.Equal(t, "end", Of("the end", 3))
	require.Equal(t, "ä", Of("ää", 3), "no half of a character")
}

func TestLines(t *testing.T) {
	require.Equal(t, "one", Lines("\none\n", 3))
	require.Equal(t, "b\nc", Lines("a\nb\nc\n", 2))
}

func TestWriter(t *testing.T) {
	w := Writer{Limit: 4}
	for _, part := range []string{"", "ab", "cd", strings.Repeat("x", 100), "yz"} {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.Equal(t, "xxyz", w.String())
}
