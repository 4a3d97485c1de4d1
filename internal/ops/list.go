package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"

	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"
)

const (
	defaultLimit  = 100
	listPage      = 200
	concludeAtOne = 8 // outcomes read at once
)

// List implements Client. Which cluster an operation is of is in its memo, which
// the engine does not index, so that it is sorted out here.
func (t *Temporal) List(ctx context.Context, f Filter) ([]Operation, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	var (
		found []Operation
		runs  []string
		page  []byte
	)
	for len(found) < limit {
		answer, err := t.page(ctx, query(f), page)
		if err != nil {
			return nil, fmt.Errorf("list operations: %w", err)
		}
		for _, info := range answer.GetExecutions() {
			if op := summary(info); f.matches(op) && len(found) < limit {
				found, runs = append(found, op), append(runs, closedRun(info))
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			break
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concludeAtOne)
	for i, run := range runs {
		if run != "" {
			group.Go(func() error { return t.conclude(ctx, &found[i], run) })
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Status = nil
	}
	return found, nil
}

func (t *Temporal) page(ctx context.Context, query string, page []byte) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.client.ListWorkflow(bounded, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: t.namespace, PageSize: listPage, NextPageToken: page, Query: query,
	})
}

// query selects operations and leaves out the nodes of upgrades.
func query(f Filter) string {
	var kinds []string
	for kind := range words {
		if f.Kind == "" || f.Kind == kind {
			kinds = append(kinds, "'"+string(kind)+"'")
		}
	}
	slices.Sort(kinds)
	q := fmt.Sprintf("WorkflowType IN (%s)", strings.Join(kinds, ", "))
	if f.Open {
		q += " AND ExecutionStatus = 'Running'"
	}
	return q
}

func (f Filter) matches(op Operation) bool {
	return (f.Cluster == "" || op.Cluster == f.Cluster) && (f.Kind == "" || op.Kind == f.Kind)
}

// closedRun is the run whose outcome has to be read, or "" for an open one.
func closedRun(info *workflowpb.WorkflowExecutionInfo) string {
	if isOpen(info.GetStatus()) {
		return ""
	}
	return info.GetExecution().GetRunId()
}
