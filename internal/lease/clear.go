package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ebb/internal/clusterstate"
)

// Clearance is a person's decision that a cluster is not what its record says.
type Clearance struct {
	To     clusterstate.State // Running or Alert
	By     string             // who decides
	Reason string
	// Dead tells whether the operation that holds the cluster is over.
	Dead func(ctx context.Context, holder clusterstate.Record) (bool, error)
}

// ErrClear is a cluster that has nothing to clear.
var ErrClear = errors.New("there is nothing to clear")

// Clear sets the state of a cluster that no living operation holds, and notes who did it,
// when and why. The target of a failed upgrade stays while the cluster is in Alert. The
// version is forgotten: nodes tell it. Cordons of a dead holder stay noted, for the next
// operation. The error is ErrHeld when the holder lives.
func (s *Store) Clear(ctx context.Context, c Clearance) (clusterstate.Record, error) {
	for {
		lease, err := s.get(ctx)
		if err != nil {
			return clusterstate.Record{}, err
		}
		next, err := cleared(ctx, decode(lease), c, s.now())
		if err != nil {
			return clusterstate.Record{}, err
		}
		encode(lease, next)
		err = s.put(ctx, lease)
		if err == nil || !apierrors.IsConflict(err) {
			return next, err
		}
	}
}

// cleared returns the record that takes the place of another one.
func cleared(ctx context.Context, record clusterstate.Record, c Clearance, now time.Time) (clusterstate.Record, error) {
	was := string(record.State)
	if record.Holder != "" {
		dead, err := c.Dead(ctx, record)
		if err != nil {
			return clusterstate.Record{}, err
		}
		if !dead {
			return clusterstate.Record{}, fmt.Errorf("%w: %s (state %s), which runs; wait for it (ebb watch %s) or cancel it (ebb cancel %s)",
				ErrHeld, record.Holder, record.State, record.Holder, record.Holder)
		}
		was += ", held by " + record.Holder
	}
	if record.Holder == "" && record.State == c.To {
		return clusterstate.Record{}, fmt.Errorf("the cluster is in state %s and no operation has it: %w", record.State, ErrClear)
	}
	next := clusterstate.Record{State: c.To, TakenOver: record.TakenOver, Last: record.Last}
	if record.Holder != "" && record.State != clusterstate.Recovering { // which cordons nothing
		next.TakenOver = clusterstate.AddName(record.TakenOver, record.Holder)
	}
	next.Cleared = fmt.Sprintf("%s by %s (was %s): %s", now.UTC().Format(time.RFC3339), c.By, was, strings.Join(strings.Fields(c.Reason), " "))
	if c.To == clusterstate.Alert {
		next.Target, next.Message = record.Target, "cleared "+next.Cleared
	}
	return next, nil
}
