package policy

import "strings"

// SelectUncordon returns the named nodes of a cluster that an operation may uncordon: those
// that bear a cordon of Ebb, and those that are schedulable already. The error is a *Refusal
// that lists everything that is wrong with the request.
func SelectUncordon(nodes []Node, names []string) ([]Node, error) {
	chosen, err := Named(nodes, names)
	if err != nil {
		return nil, err
	}
	foreign := filter(chosen, func(n Node) bool { return n.Unschedulable && n.CordonedBy == "" })
	if len(foreign) > 0 {
		return nil, refuse("%s: cordoned by somebody else, not by Ebb; ask them, then use kubectl uncordon %s, or leave out what they need",
			list(foreign), strings.Join(Names(ByName(foreign)), " "))
	}
	return chosen, nil
}
