package policy

import (
	"cmp"
	"slices"
	"strings"

	"ebb/internal/natural"
)

// ScaleDownRequest names the nodes to remove, or how many.
type ScaleDownRequest struct {
	Names      []string
	Count      int // used when Names is empty
	MinWorkers int // never fewer workers than this stay; at least 1

	// TextOrder has the last of several nodes of one age be the last by the text of its
	// name, w9 after w10, as it was for executions that began before names were counted.
	TextOrder bool
	// AnyState counts and picks workers whatever state they are in, as scale-downs did
	// that have begun with an earlier version of Ebb.
	AnyState bool
}

// SelectScaleDown picks the nodes that go, in the order they are drained. By
// count only workers are taken, those that are not Ready first, then the newest. Of the
// workers that stay, those that take pods count. A control plane goes only by
// name, never the last one, and only while the ones that stay are Ready. The
// error is a *Refusal that lists everything that is wrong with the request.
func SelectScaleDown(nodes []Node, req ScaleDownRequest) ([]Node, error) {
	chosen, faults := pick(nodes, req)
	leaving := make(map[string]bool, len(chosen))
	for _, n := range chosen {
		leaving[n.Name] = true
	}
	staying := filter(nodes, func(n Node) bool { return !leaving[n.Name] })
	faults = append(faults, checkWorkers(chosen, staying, req)...)
	faults = append(faults, checkControlPlanes(chosen, staying)...)
	if len(chosen) > 0 { // their machines are to be destroyed
		faults = append(faults, checkMachineIDs(nodes)...)
	}
	if len(faults) > 0 {
		return nil, refuse("%s", strings.Join(faults, "; "))
	}
	return chosen, nil
}

// Named finds nodes by name, in the order named. The error is a *Refusal that
// lists every name that is unknown or given twice.
func Named(nodes []Node, names []string) ([]Node, error) {
	if len(names) == 0 {
		return nil, refuse("give at least one node")
	}
	chosen, faults := pick(nodes, ScaleDownRequest{Names: names})
	if len(faults) > 0 {
		return nil, refuse("%s", strings.Join(faults, "; "))
	}
	return chosen, nil
}

func pick(nodes []Node, req ScaleDownRequest) (chosen []Node, faults []string) {
	if len(req.Names) == 0 {
		return pickWorkers(nodes, req)
	}
	if req.Count > 0 {
		faults = append(faults, "give node names or a count, not both")
	}
	seen := map[string]bool{}
	for _, name := range req.Names {
		i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
		switch {
		case seen[name]:
			faults = append(faults, "node "+name+" is named twice")
		case i < 0:
			faults = append(faults, "node "+name+" is not in the cluster (it has "+list(nodes)+")")
		default:
			chosen = append(chosen, nodes[i])
		}
		seen[name] = true
	}
	return chosen, faults
}

func pickWorkers(nodes []Node, req ScaleDownRequest) (chosen []Node, faults []string) {
	if req.Count < 1 {
		return nil, []string{"give the nodes to remove, or a count of at least 1"}
	}
	workers := filter(nodes, func(n Node) bool { return n.Role == Worker })
	byName := natural.Compare
	if req.TextOrder {
		byName = strings.Compare
	}
	slices.SortFunc(workers, func(a, b Node) int {
		if a.Ready != b.Ready && !req.AnyState {
			return readyLast(a, b)
		}
		return cmp.Or(b.Created.Compare(a.Created), byName(b.Name, a.Name))
	})
	return workers[:min(req.Count, len(workers))], nil
}

func checkWorkers(chosen, staying []Node, req ScaleDownRequest) []string {
	isWorker := func(n Node) bool { return n.Role == Worker }
	if !slices.ContainsFunc(chosen, isWorker) && len(req.Names) > 0 {
		return nil
	}
	least := max(req.MinWorkers, 1)
	left := filter(staying, isWorker)
	able := filter(left, func(n Node) bool { return req.AnyState || n.Ready && !n.Unschedulable })
	switch {
	case len(able) >= least && len(chosen) >= req.Count:
		return nil
	case len(able) < len(left):
		return []string{refuse("that would leave %d workers that take pods (%d are not Ready or cordoned), the minimum is %d",
			len(able), len(left)-len(able), least).Error()}
	}
	return []string{refuse("that would leave %d workers, the minimum is %d", len(left), least).Error()}
}

func checkControlPlanes(chosen, staying []Node) (faults []string) {
	isControlPlane := func(n Node) bool { return n.Role != Worker }
	if !slices.ContainsFunc(chosen, isControlPlane) {
		return nil
	}
	left := filter(staying, isControlPlane)
	if len(left) == 0 {
		return []string{"the last control plane cannot be removed"}
	}
	for _, n := range left {
		if !n.Ready {
			faults = append(faults, "control plane "+n.Name+" is not Ready: a control plane is only removed while the others are healthy")
		}
	}
	return faults
}
