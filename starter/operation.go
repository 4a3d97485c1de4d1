package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"ebb/internal/operation"
	"ebb/internal/ops"
)

// operate is what the commands that start an operation have in common.
type operate struct {
	*app
	request ops.Request
	detach  bool
}

func newOperate(a *app, kind operation.Kind) *operate {
	return &operate{app: a, request: ops.Request{Kind: kind}}
}

// flags adds the flags that all of them have.
func (o *operate) flags(cmd *cobra.Command) {
	if o.request.Kind != operation.KindUncordon {
		cmd.Flags().BoolVar(&o.request.Strict, "strict", false, "refuse, before anything is touched, what is otherwise a warning: pods without room, lost or down")
	}
	cmd.Flags().StringVar(&o.request.ID, "id", "", "operation ID (default: made up); starting twice with one ID runs once")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "print the ID when it is started, do not follow it")
}

// start starts the operation and follows it, unless it is to be left alone.
func (o *operate) start(ctx context.Context) error {
	if o.request.ID == "" {
		id, err := ops.NewID(o.request.Kind, o.request.Cluster, time.Now())
		if err != nil {
			return err
		}
		o.request.ID = id
	}
	if err := o.request.Validate(); err != nil {
		return err
	}
	operations, err := o.connect(ctx)
	if err != nil {
		return err
	}
	op, started, err := operations.Start(ctx, o.request)
	if err != nil {
		return err
	}
	if !started {
		o.notice(fmt.Sprintf("operation %s exists already (%s, since %s); this is that one", op.ID, op.State, op.Started.Local().Format(time.DateTime)))
	}
	if o.detach {
		return o.announce(op)
	}
	return o.follow(ctx, operations, op.ID)
}

// announce prints what was started, for a script: the ID, or the operation as JSON.
func (o *operate) announce(op ops.Operation) error {
	if o.json() {
		return json.NewEncoder(o.out).Encode(op)
	}
	_, err := fmt.Fprintln(o.out, op.ID)
	return err
}
