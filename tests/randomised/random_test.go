package randomised

import (
	"fmt"
	"time"
)

// random is a small random number generator (splitmix64). What is drawn for a call
// depends on the seed and the name of the call only, never on the order of calls,
// so that a seed stays the same scenario when something unrelated is added to a
// workflow.
type random struct{ state uint64 }

// newRandom returns the generator of a seed for one purpose, which of names.
func newRandom(seed uint64, of ...any) *random {
	name := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(fmt.Sprint(of...)) {
		name = (name ^ uint64(b)) * 1099511628211
	}
	return &random{state: seed*0x9e3779b97f4a7c15 ^ name}
}

func (rnd *random) next() uint64 {
	rnd.state += 0x9e3779b97f4a7c15
	z := rnd.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// intn returns a number from 0 to below-1.
func (rnd *random) intn(below int) int { return int(rnd.next() % uint64(below)) }

// chance returns true with a probability in percent.
func (rnd *random) chance(percent float64) bool {
	return float64(rnd.next()>>11)/(1<<53)*100 < percent
}

// between returns a duration in the interval, to the nanosecond, so that hardly
// ever two things happen at the same instant.
func (rnd *random) between(from, to time.Duration) time.Duration {
	return from + time.Duration(rnd.next()%uint64(to-from))
}

// draw returns one of the values.
func draw[T any](rnd *random, from ...T) T { return from[rnd.intn(len(from))] }
