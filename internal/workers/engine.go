package workers

import (
	"context"
	"errors"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"ebb/activities"
	"ebb/internal/engine"
)

var _ activities.Engine = (*temporalEngine)(nil)

// temporalEngine tells activities about the Temporal that runs them.
type temporalEngine struct {
	client    client.Client
	namespace string
}

// NewEngine returns what activities are told of a Temporal, for others who ask the same.
func NewEngine(c client.Client, namespace string) activities.Engine {
	return &temporalEngine{client: c, namespace: namespace}
}

// Identity implements activities.Engine.
func (e *temporalEngine) Identity(ctx context.Context) (string, error) {
	return engine.ID(ctx, e.client, e.namespace)
}

// Closed implements activities.Engine.
func (e *temporalEngine) Closed(ctx context.Context, operation string) (bool, error) {
	described, err := e.client.DescribeWorkflowExecution(ctx, operation, "")
	var unknown *serviceerror.NotFound
	if errors.As(err, &unknown) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("describe workflow %s: %w", operation, err)
	}
	switch described.GetWorkflowExecutionInfo().GetStatus() {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED:
		return false, nil
	default:
		return true, nil
	}
}

// Signal implements activities.Engine.
func (e *temporalEngine) Signal(ctx context.Context, workflow, run, name string, value any) error {
	return e.client.SignalWorkflow(ctx, workflow, run, name, value)
}
