package natural

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b string
		want int
	}{
		{"a number by its value", "w2", "w10", -1},
		{"the other way round", "w10", "w2", 1},
		{"equal", "w2", "w2", 0},
		{"in the middle of a name", "pool-2-worker-10", "pool-10-worker-2", -1},
		{"the second number decides", "rack1-w9", "rack1-w10", -1},
		{"a beginning of the other", "w", "w1", -1},
		{"nothing before everything", "", "0", -1},
		{"digits before letters", "w1", "wa", -1},
		{"other text first", "cp10", "w2", -1},
		{"leading zeros do not count", "w02", "w10", -1},
		{"only leading zeros differ", "w02", "w2", -1},
		{"zeros differ, what follows decides", "w02b", "w2a", 1},
		{"larger than any integer", "w99999999999999999999", "w100000000000000000000", -1},
		{"no ASCII", "wé2", "wé10", -1},
		{"addresses", "ip-10-0-0-9", "ip-10-0-0-17", -1},
	} {
		require.Equal(t, c.want, Compare(c.a, c.b), c.name)
		require.Equal(t, -c.want, Compare(c.b, c.a), c.name)
	}
}

func TestCompareIsAnOrder(t *testing.T) {
	names := []string{"", "0", "00", "1", "01", "a", "a0", "a00", "a1", "a01b", "a1a", "a10", "a2", "b", "1a", "10a", "2a"}
	for _, a := range names {
		for _, b := range names {
			require.Equal(t, a == b, Compare(a, b) == 0, "%q %q", a, b)
			for _, c := range names {
				require.False(t, Compare(a, b) < 0 && Compare(b, c) < 0 && Compare(a, c) >= 0, "%q %q %q", a, b, c)
			}
		}
	}
}

func TestSorted(t *testing.T) {
	given := []string{"w10", "w1", "cp1", "w2"}
	require.Equal(t, []string{"cp1", "w1", "w2", "w10"}, Sorted(given))
	require.True(t, slices.Equal([]string{"w10", "w1", "cp1", "w2"}, given))
}
