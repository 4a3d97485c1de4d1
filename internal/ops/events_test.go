package ops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"ebb/internal/operation"
	"ebb/internal/version"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
)

// printer plays the scripts of an operation's nodes.
type printer struct {
	*lab
	id      string
	offsets map[string]int64
}

// signal waits until the workflow is there; the operation may be about to start it.
func (p *printer) signal(node, name string, value any) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		err := p.client.SignalWorkflow(p.t.Context(), p.id+"/"+node, "", name, value)
		var missing *serviceerror.NotFound
		if !errors.As(err, &missing) {
			require.NoError(p.t, err)
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
}

func (p *printer) prints(node, text string) {
	p.t.Helper()
	p.signal(node, operation.SignalOutput, operation.Output{
		Node: node, Phase: "upgrade", Attempt: 1, Offset: p.offsets[node], Size: int64(len(text)), Text: text,
	})
	p.offsets[node] += int64(len(text))
}

// again sends the last bytes once more, as a worker does that took over.
func (p *printer) again(node, text string) {
	p.t.Helper()
	p.offsets[node] -= int64(len(text))
	p.prints(node, text)
}

// pair is a running operation on two nodes, and later on a third.
func pair(t *testing.T, id string) *printer {
	t.Helper()
	l := newLab(t)
	l.worker()
	l.run(Request{ID: id, Kind: operation.KindUpgrade, Cluster: "prod", Route: version.Route{Target: pairTarget}})
	return &printer{lab: l, id: id, offsets: map[string]int64{}}
}

// play prints on all nodes: pieces with many lines, identical lines, lines in two
// pieces, pieces that come twice, and ends without a newline.
func (p *printer) play() {
	p.t.Helper()
	p.prints("w1", "one\ntwo\n")
	p.prints("w2", "same\nsame\nsame\n")
	p.prints("w1", "thr")
	p.again("w1", "two\nthr")
	p.prints("w2", "same\n")
	p.prints("w1", "ee\nno end")
	p.signal("w1", "stop", nil)
	p.prints("w2", "last of w2\n")
	p.signal("w2", "stop", nil)
	p.prints("w3", "only\n")
	p.signal("w3", "stop", nil)
}

var played = map[string][]string{
	"w1": {"one", "two", "three", "no end"}, "w2": {"same", "same", "same", "same", "last of w2"}, "w3": {"only"},
}

func (p *printer) events(f EventFilter) []Event {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	var all []Event
	require.NoError(p.t, p.ops.Events(ctx, p.id, f, func(e Event) error {
		all = append(all, e)
		return nil
	}), "after %d events: %v", len(all), all)
	return all
}

// linesOf are the lines of each node, in the order of the events.
func linesOf(events []Event) map[string][]string {
	lines := map[string][]string{}
	for _, e := range events {
		if e.Type == LogEvent {
			lines[e.Node] = append(lines[e.Node], e.Text)
		}
	}
	return lines
}

// key is an event without its place.
func key(e Event) string { return fmt.Sprint(e.Type, e.Node, e.Time.UnixNano(), e.Text) }

func keys(events []Event) (all []string) {
	for _, e := range events {
		all = append(all, key(e))
	}
	slices.Sort(all)
	return all
}

func TestEventsFollowedWhileTheyHappen(t *testing.T) {
	t.Parallel()
	p := pair(t, "followed")
	var followed []Event
	done := make(chan error, 1)
	go func() {
		done <- p.ops.Events(t.Context(), p.id, EventFilter{Follow: true}, func(e Event) error { followed = append(followed, e); return nil })
	}()
	p.play()
	require.NoError(t, <-done, "it ends with the operation")

	require.Equal(t, played, linesOf(followed))
	require.Equal(t, Event{Seq: "1.1", Type: StateEvent, State: Running, Time: followed[0].Time, Text: "upgrade of prod to 1.37.9"}, followed[0])
	last := followed[len(followed)-1]
	require.Equal(t, StateEvent, last.Type)
	require.Equal(t, Done, last.State)
	read := p.events(EventFilter{})
	require.Equal(t, keys(followed), keys(read), "who comes later is told the same")
	require.Equal(t, played, linesOf(read))
	for _, events := range [][]Event{followed, read} {
		p.resumesFromEverywhere(events)
	}
}

// resumesFromEverywhere goes on from every place in a list of events.
func (p *printer) resumesFromEverywhere(events []Event) {
	p.t.Helper()
	for i, e := range events {
		for _, follow := range []bool{false, true} {
			rest := p.events(EventFilter{After: e.Seq, Follow: follow})
			all := append(slices.Clone(events[:i+1]), rest...)
			require.Equal(p.t, keys(events), keys(all), "after %q (event %d), followed %v: no gap and no repeat", e.Seq, i, follow)
			require.Equal(p.t, played, linesOf(all), "each node's lines in order")
			if len(rest) > 0 {
				require.Equal(p.t, events[len(events)-1].Text, rest[len(rest)-1].Text, "the end is the end")
			}
		}
	}
}

// A reader that is interrupted again and again, while the operation goes on.
func TestEventsResumedWhileTheyHappen(t *testing.T) {
	t.Parallel()
	p := pair(t, "resumed")
	var all []Event
	done := make(chan error, 1)
	cut := errors.New("cut")
	go func() {
		for after := ""; ; {
			err := p.ops.Events(t.Context(), p.id, EventFilter{After: after, Follow: true}, func(e Event) error {
				all, after = append(all, e), e.Seq
				return cut // after every event
			})
			if !errors.Is(err, cut) {
				done <- err
				return
			}
		}
	}()
	p.play()
	require.NoError(t, <-done)
	require.Equal(t, played, linesOf(all))
	require.Equal(t, keys(p.events(EventFilter{})), keys(all))
}

func TestEventsChosen(t *testing.T) {
	t.Parallel()
	p := pair(t, "chosen")
	p.play()
	p.follow(p.id, nil)
	logs := []EventType{LogEvent}
	all := p.events(EventFilter{Types: logs})
	for _, e := range all {
		require.Equal(t, LogEvent, e.Type)
	}
	require.Equal(t, all[len(all)-3:], p.events(EventFilter{Types: logs, Tail: 3}))
	require.Equal(t, all, p.events(EventFilter{Types: logs, Tail: 100, Follow: true}))
	require.Equal(t, map[string][]string{"w2": {"same", "last of w2"}}, linesOf(p.events(EventFilter{Types: logs, Node: "w2", Tail: 2})), "of those that are asked for")
	require.Empty(t, p.events(EventFilter{After: p.events(EventFilter{Tail: 1})[0].Seq}))
}

func TestEventsOfNoPlace(t *testing.T) {
	t.Parallel()
	p := pair(t, "placeless")
	p.play()
	p.follow(p.id, nil)
	for _, after := range []string{"99999", "here", "4;3:1", "2;77:1"} {
		err := p.ops.Events(t.Context(), p.id, EventFilter{After: after, Follow: true}, func(Event) error { return nil })
		var fault *RequestError
		require.ErrorAs(t, err, &fault, after)
	}
	for _, e := range p.events(EventFilter{Types: []EventType{LogEvent}, Node: "w1"}) {
		open := placeOf(t, e)
		for began := range open.nodes {
			open.nodes[began] = mark{event: 99999}
		}
		require.NotEmpty(t, open.nodes)
		var fault *RequestError
		err := p.ops.Events(t.Context(), p.id, EventFilter{After: open.String()}, func(Event) error { return nil })
		require.ErrorAs(t, err, &fault, "%q: a node that has ended has no such event", open)
	}
	for what, f := range map[string]EventFilter{
		"there is no type of event": {Types: []EventType{"rumour"}}, "tail and after": {Tail: 1, After: "1.1"}, "tail -1": {Tail: -1},
	} {
		require.ErrorContains(t, p.ops.Events(t.Context(), p.id, f, func(Event) error { return nil }), what)
	}
	var unknown *UnknownError
	require.ErrorAs(t, p.ops.Events(t.Context(), "nobody", EventFilter{}, func(Event) error { return nil }), &unknown)
}

func placeOf(t *testing.T, e Event) place {
	t.Helper()
	at, err := parsePlace(e.Seq)
	require.NoError(t, err)
	return at
}

// What there was may have been read when the operation's own history had the end of
// a node already, and the pages of the node's history, asked for before, had not.
func TestEventsGoOnWithAnEndThatWaits(t *testing.T) {
	t.Parallel()
	p := pair(t, "waits")
	p.play()
	p.follow(p.id, nil)
	d, err := p.ops.describe(t.Context(), p.id)
	require.NoError(t, err)
	var told []Event
	n := &narrator{Temporal: p.ops, told: place{nodes: map[int64]mark{}}, open: map[int64]*history{},
		each: func(e Event) error { told = append(told, e); return nil }}
	n.own = n.newHistory(p.id, d.run(), 0, newTeller(summary(d.info()), ""))
	for n.own.head == nil {
		event, err := n.own.next(t.Context())
		require.NoError(t, err)
		if leaves(event) > 0 {
			n.own.head = event
			break
		}
		require.NoError(t, n.take(n.own, event))
	}

	require.NoError(t, n.follow(t.Context()))
	require.Equal(t, played, linesOf(told))
	require.Equal(t, keys(p.events(EventFilter{})), keys(told))
	require.Empty(t, placeOf(t, told[len(told)-1]).nodes, "no node is under way at the end")
}

func TestEventsRideOutTheEngine(t *testing.T) {
	t.Parallel()
	p := pair(t, "ridden")
	_, port, err := net.SplitHostPort(p.server.Address())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	lines, done := make(chan string, 100), make(chan error, 1)
	go func() {
		done <- p.ops.Events(t.Context(), p.id, EventFilter{Follow: true, Types: []EventType{LogEvent}}, func(e Event) error { lines <- e.Text; return nil })
	}()
	p.prints("w1", "before\n")
	require.Equal(t, "before", <-lines)
	p.stop()
	p.start(number)
	p.prints("w1", "after\n")
	require.Equal(t, "after", <-lines)
	for _, node := range []string{"w1", "w2", "w3"} {
		p.signal(node, "stop", nil)
	}
	require.NoError(t, <-done)
	require.Empty(t, lines)
}

func TestSteeringWithAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	p := pair(t, "steered")
	p.prints("w1", "it is there\n")
	for _, c := range []struct{ key, said string }{{"k1", "retried 1 times"}, {"k1", "retried 1 times"}, {"k2", "retried 2 times"}, {"", "retried 3 times"}, {"", "retried 4 times"}} {
		said, err := p.ops.Steer(t.Context(), p.id, Steering{Action: RetryNow, Node: "w1", Key: c.key})
		require.NoError(t, err)
		require.Equal(t, c.said, said)
	}
	for _, node := range []string{"w1", "w2", "w3"} {
		p.signal(node, "stop", nil)
	}
	p.follow(p.id, nil)
	said, err := p.ops.Steer(t.Context(), p.id, Steering{Action: RetryNow, Node: "w1", Key: "k2"})
	require.NoError(t, err, "it is over, and the key's answer still there")
	require.Equal(t, "retried 2 times", said)
	for _, key := range []string{"k3", ""} {
		_, err := p.ops.Steer(t.Context(), p.id, Steering{Action: RetryNow, Node: "w1", Key: key})
		require.ErrorContains(t, err, "it is over, there is nothing to retry-now")
	}
	var told []string
	for _, e := range p.events(EventFilter{Types: []EventType{ProgressEvent}, Node: "w1"}) {
		told = append(told, e.Text)
	}
	require.Equal(t, []string{"retry-now: retried 1 times", "retry-now: retried 2 times", "retry-now: retried 3 times", "retry-now: retried 4 times", "done"}, told)
}
