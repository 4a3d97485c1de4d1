package operations

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"ebb/internal/clusterstate"
	"ebb/internal/lease"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/testbed"
)

// An API server takes no object with more than 256 KiB of annotations: what an
// operation has to say must not keep the lock.
func TestLongMessageDoesNotKeepTheLock(t *testing.T) {
	alone(t)
	_, err := lock().Acquire(t.Context(), claimOf("long", clusterstate.Scaling, ""))
	require.NoError(t, err)
	state, err := lock().Release(t.Context(), lease.Outcome{
		Operation: "long", To: clusterstate.Alert, Message: strings.Repeat("node w1 could not be uncordoned; ", 12_000),
	})
	require.NoError(t, err)
	require.Equal(t, clusterstate.Alert, state)
	settle(t)
	untouched(t)
}

// An engine forgets an operation some time after its end; its ID may be used again then.
func TestOperationIDIsUsedAgainAfterRetention(t *testing.T) {
	request := ops.Request{ID: "drain-again", Kind: operation.KindDrain, Nodes: []string{"w2"}}
	for range 2 {
		require.Equal(t, ops.Done, finish(t, begin(t, request)).State)
		operatorCordons(t, "w2", false)
		untouched(t)
		forget(t, request.ID)
	}
}

// forget has the engine delete an operation that is over.
func forget(t *testing.T, id string) {
	t.Helper()
	_, err := shared.Client.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: client.DefaultNamespace, WorkflowExecution: &common.WorkflowExecution{WorkflowId: id},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		_, err := shared.Ops.Get(ctx, id)
		var unknown *ops.UnknownError
		return errors.As(err, &unknown), nil
	}))
}
