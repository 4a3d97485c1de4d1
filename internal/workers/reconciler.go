package workers

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"ebb/internal/config"
	"ebb/internal/engine"
	"ebb/internal/operation"
)

const (
	// reconcileEvery is how often a cluster in Alert is looked at (SPEC §2).
	reconcileEvery = time.Minute
	// reconcileCatchUp is how far back an engine that was away makes up for missed
	// runs: the next one does as well.
	reconcileCatchUp = 10 * time.Second
	// reconcileSetUp bounds the set-up of all schedules at the start of a worker.
	reconcileSetUp = time.Minute
)

// ReconcilerID returns the ID of the Temporal Schedule that looks after a cluster.
func ReconcilerID(cluster string) string { return "reconcile-" + cluster }

// Reconcile implements activities.Engine.
func (e *temporalEngine) Reconcile(ctx context.Context, cluster string, on bool) error {
	schedule := e.client.ScheduleClient().GetHandle(ctx, ReconcilerID(cluster))
	if !on {
		err := schedule.Pause(ctx, client.SchedulePauseOptions{Note: "the cluster is not in Alert; an operation that ends there resumes this"})
		return ignoreNotFound(err)
	}
	err := schedule.Unpause(ctx, client.ScheduleUnpauseOptions{Note: "the cluster is in Alert"})
	if isNotFound(err) {
		return e.createReconciler(ctx, cluster)
	}
	return err
}

// createReconciler makes the schedule of a cluster; one that exists is left as it is.
func (e *temporalEngine) createReconciler(ctx context.Context, cluster string) error {
	_, err := e.client.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID:            ReconcilerID(cluster),
		Spec:          client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: reconcileEvery}}},
		Overlap:       enumspb.SCHEDULE_OVERLAP_POLICY_SKIP,
		CatchupWindow: reconcileCatchUp,
		Action: &client.ScheduleWorkflowAction{
			ID: ReconcilerID(cluster), TaskQueue: engine.TaskQueue, Workflow: operation.WorkflowReconcile,
			Args:          []any{operation.ReconcileInput{Cluster: cluster}},
			StaticSummary: fmt.Sprintf("is cluster %s still in Alert for a reason?", cluster),
		},
	})
	if errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		return nil
	}
	return err
}

// createReconcilers makes the schedule of every configured cluster that has none. Its
// first run finds out whether there is anything to do.
func (e *temporalEngine) createReconcilers(ctx context.Context, file *config.File, log *zap.Logger) {
	current, err := file.Current()
	if err != nil {
		return // every use of the configuration says so
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileSetUp)
	defer cancel()
	for _, c := range current.Clusters {
		if err := e.createReconciler(ctx, c.Name); err != nil && ctx.Err() == nil {
			log.Warn("no reconciler: this cluster leaves Alert only by a retry", zap.String("cluster", c.Name), zap.Error(err))
		}
	}
}

func isNotFound(err error) bool {
	var unknown *serviceerror.NotFound
	return errors.As(err, &unknown)
}

func ignoreNotFound(err error) error {
	if isNotFound(err) {
		return nil
	}
	return err
}
