package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"ebb/internal/ops"
)

// completeTimeout bounds what a person waits for after TAB.
const completeTimeout = 2 * time.Second

// nothing is no completion, also none of file names.
const nothing = cobra.ShellCompDirectiveNoFileComp

func (a *app) completeClusters(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, nothing
	}
	if a.gateway.url != "" { // it would look at all of them
		return nil, nothing
	}
	names, err := a.configured()
	if err != nil {
		return nil, nothing
	}
	return names, nothing
}

func (a *app) completeNodes(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeClusters(cmd, args, part)
	}
	clusters, err := a.clusters()
	if err != nil {
		return nil, nothing
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	a.listener = func(string) {} // nothing is said after TAB
	view, err := clusters.Look(ctx, args[0])
	if err != nil {
		return nil, nothing
	}
	var nodes []cobra.Completion
	for _, n := range view.Nodes {
		nodes = append(nodes, cobra.CompletionWithDesc(n.Name, string(n.Role)))
	}
	return nodes, nothing
}

func (a *app) completeOperations(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, nothing
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	a.listener = func(string) {} // nothing is said after TAB
	operations, err := a.connect(ctx)
	if err != nil {
		return nil, nothing
	}
	list, err := operations.List(ctx, ops.Filter{Limit: 20})
	if err != nil {
		return nil, nothing
	}
	var ids []cobra.Completion
	for _, op := range list {
		ids = append(ids, cobra.CompletionWithDesc(op.ID, stateText(op)))
	}
	return ids, nothing
}

func (a *app) completeAnything(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	clusters, _ := a.completeClusters(cmd, args, part)
	operations, _ := a.completeOperations(cmd, args, part)
	return append(clusters, operations...), nothing
}
