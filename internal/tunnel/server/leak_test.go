package server

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ten thousand dials, of which every other one is refused by its destination or given up by
// whoever dialled in the middle of a line, leave nothing: no goroutine, no entry of a table,
// no memory.
func TestTenThousandDialsLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	b := newBed(t, nil)
	a := b.agent("w1", "")
	address := echo(t)
	dial := func(n int) {
		var all sync.WaitGroup
		slots := make(chan struct{}, 50)
		for i := range n {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				to := address
				if i%2 == 1 {
					to = "127.0.0.1:1"
				}
				c, err := b.Dial(t.Context(), prod, "tcp", to)
				if (err == nil) != (i%2 == 0) {
					t.Error(err)
				}
				if err != nil {
					return
				}
				if i%4 == 0 {
					_, err = c.Write([]byte("half a li"))
				} else {
					err = exchange(c, "a line")
				}
				if err != nil {
					t.Error(err)
				}
				_ = c.Close()
			})
		}
		all.Wait()
		b.eventually("the tables are empty", func() bool { return b.Streams()+a.Streams() == 0 })
	}
	dial(500) // what is made once is there
	goroutines, memory := runtime.NumGoroutine(), heap()
	dial(10_000)
	b.eventually("no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines+2 }) // of the runtime, now and then
	require.Less(t, heap()-memory, int64(4<<20), "bytes; one connection's window alone is a quarter of it")
}

// heap returns the bytes that are in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // #nosec G115 -- less than 2^63
}
