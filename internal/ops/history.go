package ops

import (
	"context"
	"errors"
	"fmt"

	"ebb/internal/wait"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
)

// history is one history as it is read.
type history struct {
	*teller
	client        client.Client
	workflow, run string
	began         int64 // the event in the operation's history with which it began; 0 = that is this one
	follow        bool
	events        client.HistoryEventIterator
	read          int64                   // the event that was read last
	head          *historypb.HistoryEvent // one that was read and not told
	dry           bool                    // there was no more when it was last asked
	closed        bool                    // the last event was told, or there is nothing to read any more
}

func (n *narrator) newHistory(workflow, run string, began int64, t *teller) *history {
	return &history{teller: t, client: n.client, workflow: workflow, run: run, began: began}
}

// errForgotten is returned for the history of a node that the engine keeps no longer.
var errForgotten = errors.New("the engine does not have this history any more")

// next reads an event, nil = there is none (yet). It rides out an engine that is
// away, and begins at the start then: the engine has no other way.
func (h *history) next(ctx context.Context) (*historypb.HistoryEvent, error) {
	for {
		if h.events == nil {
			h.events = h.client.GetWorkflowHistory(ctx, h.workflow, h.run, h.follow, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		}
		if !h.events.HasNext() {
			h.events = nil
			return nil, ctx.Err()
		}
		event, err := h.events.Next()
		var missing *serviceerror.NotFound
		switch {
		case err == nil && event.GetEventId() <= h.read:
			continue
		case err == nil:
			h.read = event.GetEventId()
			return event, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &missing) && h.began > 0:
			return nil, errForgotten
		case !passing(ctx, err):
			return nil, fmt.Errorf("read the history of %s: %w", h.workflow, named(h.workflow, err))
		}
		h.events = nil
		if err := wait.Sleep(ctx, awayInterval); err != nil {
			return nil, err
		}
	}
}

// arrival is an event that was added to a history; none = there is nothing to read
// any more.
type arrival struct {
	h     *history
	event *historypb.HistoryEvent
}

// watch hands on the events of a history as they come, until its last.
func (h *history) watch(ctx context.Context, arrivals chan<- arrival) error {
	for {
		event, err := h.next(ctx)
		gone := errors.Is(err, errForgotten)
		if err != nil && !gone {
			return err
		}
		if event == nil && !gone {
			continue // the long poll has ended before the history
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case arrivals <- arrival{h, event}:
		}
		if gone || closes(event) {
			return nil
		}
	}
}
