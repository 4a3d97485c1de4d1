package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

const none = "-"

// report prints the table. Counts are kubectl's / Ebb's.
func report(out io.Writer, outcomes []result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(t, "work\tkubectl\tEbb\tratio\tbound\tEbb÷bound\trefused\trequests\tdrains\torchestration\t"); err != nil {
		return err
	}
	for _, o := range outcomes {
		ratio, toBound := none, none
		if o.Kubectl != nil {
			ratio = fmt.Sprintf("%.1f×", *o.Kubectl/o.Ebb)
		}
		if o.Bound != nil {
			toBound = fmt.Sprintf("%.2f", o.Ebb / *o.Bound)
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%.1f s\t%s\t%s\t%s\t%s / %d\t%s / %d\t%.1f s\t%.2f s\t\n", o.Work, formatSeconds(o.Kubectl), o.Ebb, ratio, formatSeconds(o.Bound), toBound,
			formatCount(o.KubectlRefused), o.Refused, formatCount(o.KubectlRequests), o.Requests, o.Drain, o.Orchestration); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, `
kubectl, Ebb: wall time of the commands, and of the operation through Temporal from its start to its end.
bound: what the budgets allow, see tests/bench/bound.go. refused, requests: kubectl / Ebb, watches included.
drains: the part of Ebb's time in which a drain ran. orchestration: per node, Ebb's time without drains, scripts and the wait for Ready.
scale down: kubectl drains the nodes in three processes and deletes them; Ebb destroys their machines, too.
`)
	return err
}

func formatSeconds(v *float64) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%.1f s", *v)
}

func formatCount(v *int) string {
	if v == nil {
		return none
	}
	return fmt.Sprint(*v)
}
