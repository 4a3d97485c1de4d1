package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/version"
)

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// node is a Ready node at 1.36.3 that is so many days old as its age says.
func node(name string, role Role, age int, change ...func(*Node)) Node {
	n := Node{Name: name, Role: role, Version: "1.36.3", Ready: true, Created: day.AddDate(0, 0, -age)}
	for _, c := range change {
		c(&n)
	}
	return n
}

func at(v string) func(*Node)       { return func(n *Node) { n.Version = version.Of(v) } }
func recorded(v string) func(*Node) { return func(n *Node) { n.Recorded = version.Of(v) } }
func notReady(n *Node)              { n.Ready = false }
func cordoned(n *Node)              { n.Unschedulable = true }
func manual(n *Node)                { n.Manual = true }
func machine(id string) func(*Node) { return func(n *Node) { n.MachineID = id } }

func TestSort(t *testing.T) {
	sorted := Sort([]Node{
		node("w2", Worker, 1), node("cp2", ControlPlane, 5), node("w1", Worker, 1), node("cp1", ControlPlane, 9), node("w0", Worker, 3),
	})
	require.Equal(t, []string{"cp1", "cp2", "w0", "w1", "w2"}, Names(sorted))
	require.Equal(t, FirstControlPlane, sorted[0].Role)
	require.Equal(t, ControlPlane, sorted[1].Role)
	require.Equal(t, 4, sorted[4].Index)
}

func TestNodesAreInTheOrderThatPeopleCount(t *testing.T) {
	twins := []Node{node("w10", Worker, 1), node("w2", Worker, 1), node("w1", Worker, 0), node("cp10", ControlPlane, 5), node("cp9", ControlPlane, 5)}
	require.Equal(t, []string{"cp9", "cp10", "w2", "w10", "w1"}, Names(Sort(twins)), "of one age")
	require.Equal(t, "cp9", Sort(twins)[0].Name, "and so the first control plane")
	require.Equal(t, []string{"cp9", "cp10", "w1", "w2", "w10"}, Names(ByName(twins)), "whatever their age")

	newest, err := SelectScaleDown(twins[:2], ScaleDownRequest{Count: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"w10"}, Names(newest))
	newest, err = SelectScaleDown(twins[:2], ScaleDownRequest{Count: 1, TextOrder: true})
	require.NoError(t, err)
	require.Equal(t, []string{"w2"}, Names(newest), "as in executions that began before")

	_, err = Named(twins, []string{"w7"})
	require.ErrorContains(t, err, "(it has cp9, cp10, w1, w2, w10)")
	_, err = AcceptUpgrade(UpgradeFacts{
		Record: clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2"}, Nodes: Sort(twins),
		Route: version.Route{Target: "1.37.2"}, Down: []string{"w10", "w2"},
	})
	require.ErrorContains(t, err, "the machine of w2, w10 is down")
	require.Equal(t, []string{"node w2 is not Ready", "node w10 is not Ready"}, Unrecovered(clusterstate.Record{},
		[]Node{node("w10", Worker, 2, notReady), node("w2", Worker, 1, notReady)}))
}

func TestSortIsLastingWhateverTheRoleSaidBefore(t *testing.T) {
	sorted := Sort([]Node{node("cp2", FirstControlPlane, 1), node("cp1", ControlPlane, 9)})
	require.Equal(t, []string{"cp1", "cp2"}, Names(sorted))
	require.Equal(t, FirstControlPlane, sorted[0].Role)
	require.Equal(t, ControlPlane, sorted[1].Role)
}

func TestFinished(t *testing.T) {
	for _, c := range []struct {
		name string
		node Node
		want bool
	}{
		{"recorded, reported and Ready", node("w", Worker, 1, at("v1.37.2"), recorded("1.37.2")), true},
		{"cordoned afterwards", node("w", Worker, 1, at("v1.37.2"), recorded("1.37.2"), cordoned), true},
		{"other build", node("w", Worker, 1, at("v1.37.2+vendor.1"), recorded("1.37.2")), true},
		{"only recorded", node("w", Worker, 1, recorded("1.37.2")), false},
		{"only reported", node("w", Worker, 1, at("v1.37.2")), false},
		{"not Ready", node("w", Worker, 1, at("v1.37.2"), recorded("1.37.2"), notReady), false},
		{"record is older", node("w", Worker, 1, at("v1.37.2"), recorded("1.36.3")), false},
		{"only a common prefix", node("w", Worker, 1, at("v1.37.20"), recorded("1.37.20")), false},
	} {
		require.Equal(t, c.want, Finished(c.node, "1.37.2"), c.name)
	}
}

func TestAcceptUpgrade(t *testing.T) {
	running := clusterstate.Record{State: clusterstate.Running}
	alert := func(target version.Version) clusterstate.Record {
		return clusterstate.Record{State: clusterstate.Alert, Target: target, Version: "1.36.3"}
	}
	whole := []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2)}
	half := []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2")), node("w1", Worker, 2)}
	byHand := []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2, at("v1.37.2"), manual)}
	firstByHand := []Node{node("cp1", FirstControlPlane, 9, manual), node("cp2", ControlPlane, 8), node("w1", Worker, 2)}
	firstDoneByHand := []Node{node("cp1", FirstControlPlane, 9, manual, at("v1.37.2")), node("cp2", ControlPlane, 8), node("w1", Worker, 2)}
	twins := []Node{node("cp1", FirstControlPlane, 9, machine("a")), node("w1", Worker, 2, machine("b")), node("w2", Worker, 2, machine("b"), manual)}
	const twinFault = "nodes w1 and w2 have the same machine ID b"
	for _, c := range []struct {
		name    string
		facts   UpgradeFacts
		retry   bool
		refusal string
	}{
		{"running", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Target: "1.37.2"}}, false, ""},
		{"running, a node joined late", UpgradeFacts{Record: running, Nodes: half, Route: version.Route{Target: "1.37.2"}}, false, ""},
		{"running, already there", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Target: version.Of("1.36.3+x")}}, false, "already"},
		{"running, a node is ahead", UpgradeFacts{Record: running, Nodes: half, Route: version.Route{Target: "1.37.1"}}, false, "older than what cp1 runs (1.37.2)"},
		{"running, two minors", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Target: "1.38.0"}}, false, "skips a minor"},
		{"no version", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Target: "1.37"}}, false, "MAJOR.MINOR.PATCH"},
		{"no control plane", UpgradeFacts{Record: running, Nodes: whole[1:], Route: version.Route{Target: "1.37.2"}}, false, "not a cluster kubeadm can upgrade"},
		{"nobody would run apply", UpgradeFacts{Record: running, Nodes: firstByHand, Route: version.Route{Target: "1.37.2"}}, false, "cp1 is the control plane that runs kubeadm upgrade apply"},
		{"nobody would run apply, retry", UpgradeFacts{Record: alert("1.37.2"), Nodes: firstByHand, Route: version.Route{Target: "1.37.2"}}, true, "bring it to 1.37.2 by hand first"},
		{"somebody has run apply", UpgradeFacts{Record: running, Nodes: firstDoneByHand, Route: version.Route{Target: "1.37.2"}}, false, ""},
		{"two nodes, one machine ID", UpgradeFacts{Record: running, Nodes: twins, Route: version.Route{Target: "1.37.2"}}, false, twinFault},
		{"two nodes, one machine ID, retry", UpgradeFacts{Record: alert("1.37.2"), Nodes: twins, Route: version.Route{Target: "1.37.2"}}, true, twinFault},
		{"upgrading", UpgradeFacts{Record: clusterstate.Record{State: clusterstate.Recovering}, Nodes: whole, Route: version.Route{Target: "1.37.2"}}, false, "state Recovering"},
		{"retry, recorded, no node there yet", UpgradeFacts{Record: alert("1.37.2"), Nodes: whole, Route: version.Route{Target: version.Of("v1.37.2")}}, true, ""},
		{"retry, same semantic version", UpgradeFacts{Record: alert("1.37.2"), Nodes: half, Route: version.Route{Target: version.Of("1.37.2+fixed.1")}}, true, ""},
		{"retry, a newer patch", UpgradeFacts{Record: alert("1.37.2"), Nodes: half, Route: version.Route{Target: "1.37.3"}}, true, ""},
		{"retry, a newer patch, where all nodes are already", UpgradeFacts{Record: clusterstate.Record{State: clusterstate.Alert, Target: "1.36.2"}, Nodes: whole, Route: version.Route{Target: "1.36.3"}}, true, ""},
		{"retry, an older patch", UpgradeFacts{Record: alert("1.37.2"), Nodes: half, Route: version.Route{Target: "1.37.1"}}, true, "from an upgrade to 1.37.2: retry that version or a newer patch"},
		{"retry, another minor", UpgradeFacts{Record: alert("1.37.2"), Nodes: half, Route: version.Route{Target: "1.38.0"}}, true, "from an upgrade to 1.37.2"},
		{"retry, a node joined late", UpgradeFacts{Record: clusterstate.Record{State: clusterstate.Alert, Target: "1.37.2", Version: "1.37.2"}, Nodes: half, Route: version.Route{Target: "1.37.2"}}, true, ""},
		{"retry, machine down", UpgradeFacts{Record: alert("1.37.2"), Nodes: half, Route: version.Route{Target: "1.37.2"}, Down: []string{"w1"}}, true, "machine of w1 is down"},
		{"alert, no record, a node is there", UpgradeFacts{Record: alert(""), Nodes: half, Route: version.Route{Target: "1.37.2"}}, true, ""},
		{"alert, no record, no node there", UpgradeFacts{Record: alert(""), Nodes: whole, Route: version.Route{Target: "1.37.2"}}, true, "nothing to retry"},
		{"alert, no record, only a manual node", UpgradeFacts{Record: alert(""), Nodes: byHand, Route: version.Route{Target: "1.37.2"}}, true, "nothing to retry"},
		{"alert, no record, the laggard's version", UpgradeFacts{Record: clusterstate.Record{State: clusterstate.Alert, Version: "1.37.2"}, Nodes: half, Route: version.Route{Target: "1.36.3"}}, true, "nothing to retry"},
		{"workers two minors behind their control plane", UpgradeFacts{Record: running, Nodes: []Node{node("cp1", FirstControlPlane, 9, at("v1.38.1")), node("w1", Worker, 2)}, Route: version.Route{Target: "1.39.0"}}, false, ""},
		{"a worker four minors behind", UpgradeFacts{Record: running, Nodes: []Node{node("cp1", FirstControlPlane, 9, at("v1.39.1")), node("w1", Worker, 2)}, Route: version.Route{Target: "1.40.0"}}, false, "kubelet of w1 is at 1.36.3, 4 minors behind 1.40.0"},
		{"the record is behind the nodes", UpgradeFacts{Record: clusterstate.Record{State: clusterstate.Running, Version: "1.35.0"}, Nodes: whole, Route: version.Route{Target: "1.37.2"}}, false, ""},
		{"alert, the cluster's own version", UpgradeFacts{Record: alert("1.36.3"), Nodes: whole, Route: version.Route{Target: "1.36.3"}}, true, "not a retry"},
	} {
		got, err := AcceptUpgrade(c.facts)
		if c.refusal != "" {
			var refusal *Refusal
			require.ErrorAs(t, err, &refusal, c.name)
			require.ErrorContains(t, err, c.refusal, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, Acceptance{Retry: c.retry, Next: c.facts.Route.Target}, got, c.name)
	}
}

func TestAcceptUpgradeInHops(t *testing.T) {
	running := clusterstate.Record{State: clusterstate.Running}
	alert := func(target version.Version) clusterstate.Record {
		return clusterstate.Record{State: clusterstate.Alert, Target: target, Version: "1.36.3"}
	}
	whole := []Node{node("cp1", FirstControlPlane, 9), node("w1", Worker, 2)}
	onTheWay := []Node{node("cp1", FirstControlPlane, 9, at("v1.37.2")), node("w1", Worker, 2, at("v1.37.2"))}
	byHand := []Node{node("cp1", FirstControlPlane, 9, at("v1.38.2")), node("w1", Worker, 2, at("v1.38.2")), node("w2", Worker, 2, manual)}
	for _, c := range []struct {
		name    string
		facts   UpgradeFacts
		want    Acceptance
		refusal string
	}{
		{"from the start", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Next: "1.37.2"}, ""},
		{"the first hop is behind it", UpgradeFacts{Record: running, Nodes: onTheWay, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Next: "1.38.1"}, ""},
		{"a hop is left out", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.39.0"}}, Acceptance{}, "hop 1.37.2 to 1.39.0"},
		{"the first hop is too far", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Hops: []version.Version{"1.38.2"}, Target: "1.39.0"}}, Acceptance{}, "1.36.3 to 1.38.2 skips a minor"},
		{"a hop goes back", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.37.1"}}, Acceptance{}, "does not downgrade"},
		{"a hop is no version", UpgradeFacts{Record: running, Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37"}, Target: "1.38.1"}}, Acceptance{}, `version "1.37"`},
		{"everything is there", UpgradeFacts{Record: running, Nodes: onTheWay, Route: version.Route{Hops: []version.Version{"1.36.4"}, Target: "1.37.2"}}, Acceptance{}, "is at 1.37.2 already"},
		{"retry of a hop", UpgradeFacts{Record: alert("1.37.2"), Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Retry: true, Next: "1.37.2"}, ""},
		{"retry of the last hop", UpgradeFacts{Record: alert("1.38.1"), Nodes: onTheWay, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Retry: true, Next: "1.38.1"}, ""},
		{"retry of a hop without its record", UpgradeFacts{Record: alert(""), Nodes: onTheWay, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Retry: true, Next: "1.37.2"}, ""},
		{"retry of another way", UpgradeFacts{Record: alert("1.37.3"), Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{}, "from an upgrade to 1.37.3"},
		{"retry with a newer patch of the hop", UpgradeFacts{Record: alert("1.37.1"), Nodes: whole, Route: version.Route{Hops: []version.Version{"1.37.2"}, Target: "1.38.1"}}, Acceptance{Retry: true, Next: "1.37.2"}, ""},
		{"a node by hand falls behind at the end", UpgradeFacts{Record: running, Nodes: byHand, Route: version.Route{Hops: []version.Version{"1.39.0"}, Target: "1.40.0"}}, Acceptance{}, "kubelet of w2 is at 1.36.3, 4 minors behind 1.40.0"},
	} {
		got, err := AcceptUpgrade(c.facts)
		if c.refusal != "" {
			var refusal *Refusal
			require.ErrorAs(t, err, &refusal, c.name)
			require.ErrorContains(t, err, c.refusal, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}

func TestUpgradeOrderLeavesOutWhatIsUpgradedByHand(t *testing.T) {
	controlPlanes, workers := UpgradeOrder(Sort([]Node{
		node("w1", Worker, 3), node("w2", Worker, 2, manual), node("cp2", ControlPlane, 4), node("cp1", ControlPlane, 9),
	}))
	require.Equal(t, []string{"cp1", "cp2"}, Names(controlPlanes))
	require.Equal(t, []string{"w1"}, Names(workers))
}

func TestSelectScaleDown(t *testing.T) {
	nodes := Sort([]Node{
		node("cp1", ControlPlane, 9), node("cp2", ControlPlane, 8), node("w1", Worker, 5), node("w2", Worker, 3), node("w3", Worker, 1),
	})
	sickPeer := Sort([]Node{node("cp1", ControlPlane, 9, notReady), node("cp2", ControlPlane, 8), node("w1", Worker, 5)})
	twins := Sort([]Node{node("cp1", ControlPlane, 9), node("w1", Worker, 5, machine("b")), node("w2", Worker, 3), node("w3", Worker, 1, machine("b"))})
	sick := Sort([]Node{
		node("cp1", ControlPlane, 9), node("w1", Worker, 5, notReady), node("w2", Worker, 3), node("w3", Worker, 1), node("w4", Worker, 0, cordoned),
	})
	single := Sort([]Node{node("cp1", ControlPlane, 9), node("w1", Worker, 5)})
	for _, c := range []struct {
		name    string
		nodes   []Node
		req     ScaleDownRequest
		want    []string
		refusal string
	}{
		{"newest workers by count", nodes, ScaleDownRequest{Count: 2}, []string{"w3", "w2"}, ""},
		{"by name, in the order named", nodes, ScaleDownRequest{Names: []string{"w3", "w1"}}, []string{"w3", "w1"}, ""},
		{"one that is not Ready goes first", sick, ScaleDownRequest{Count: 2}, []string{"w1", "w4"}, ""},
		{"as it was", sick, ScaleDownRequest{Count: 1, AnyState: true}, []string{"w4"}, ""},
		{"who takes no pods does not count", sick, ScaleDownRequest{Names: []string{"w2"}, MinWorkers: 2}, nil,
			"leave 1 workers that take pods (2 are not Ready or cordoned), the minimum is 2"},
		{"nor did it", sick, ScaleDownRequest{Names: []string{"w2"}, MinWorkers: 2, AnyState: true}, []string{"w2"}, ""},
		{"never the last worker", nodes, ScaleDownRequest{Count: 3}, nil, "leave 0 workers, the minimum is 1"},
		{"more than there are", nodes, ScaleDownRequest{Count: 7}, nil, "leave 0 workers"},
		{"a configured minimum", nodes, ScaleDownRequest{Count: 2, MinWorkers: 2}, nil, "leave 1 workers, the minimum is 2"},
		{"by name too", nodes, ScaleDownRequest{Names: []string{"w1", "w2", "w3"}}, nil, "leave 0 workers"},
		{"nothing", nodes, ScaleDownRequest{}, nil, "a count of at least 1"},
		{"both", nodes, ScaleDownRequest{Names: []string{"w1"}, Count: 1}, nil, "not both"},
		{"every fault at once", nodes, ScaleDownRequest{Names: []string{"w1", "w1", "w9"}}, nil, "w1 is named twice; node w9 is not in the cluster"},
		{"two nodes, one machine ID", twins, ScaleDownRequest{Names: []string{"w2"}}, nil, "nodes w1 and w3 have the same machine ID b"},
		{"a control plane by name", nodes, ScaleDownRequest{Names: []string{"cp2"}}, []string{"cp2"}, ""},
		{"the last control plane", single, ScaleDownRequest{Names: []string{"cp1"}}, nil, "last control plane"},
		{"both control planes", nodes, ScaleDownRequest{Names: []string{"cp1", "cp2"}}, nil, "last control plane"},
		{"a control plane beside a sick one", sickPeer, ScaleDownRequest{Names: []string{"cp2"}}, nil, "control plane cp1 is not Ready"},
	} {
		got, err := SelectScaleDown(c.nodes, c.req)
		if c.refusal != "" {
			require.ErrorContains(t, err, c.refusal, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, Names(got), c.name)
	}
}

func TestUnfitControlPlanes(t *testing.T) {
	nodes := []Node{
		{Name: "cp1", Role: FirstControlPlane, Unschedulable: true, Ready: true},
		{Name: "cp2", Role: ControlPlane},
		{Name: "w1", Role: Worker, Unschedulable: true},
	}
	require.Equal(t, []string{"control plane cp1 is cordoned", "control plane cp2 is not Ready"}, UnfitControlPlanes(nodes, "", ""))
	require.Equal(t, []string{"control plane cp1 is cordoned"}, UnfitControlPlanes(nodes, "cp2", "down-1"), "the one whose turn it is does not count")
	nodes[0].CordonedBy = "down-1"
	require.Empty(t, UnfitControlPlanes(nodes, "cp2", "down-1"), "those that leave with it are cordoned by the same operation")
}

func TestNextControlPlane(t *testing.T) {
	require.Equal(t, "cp2", NextControlPlane([]Node{node("cp2", ControlPlane, 5), node("w1", Worker, 2)}))
	require.Empty(t, NextControlPlane([]Node{node("w1", Worker, 2)}))
}

func TestWorkersThatAreNotReadyGoFirstAndCount(t *testing.T) {
	workers := []Node{node("w1", Worker, 5), node("w2", Worker, 4, notReady), node("w3", Worker, 3), node("w4", Worker, 2, notReady)}
	require.Equal(t, []string{"w2", "w4", "w1", "w3"}, Names(NotReadyFirst(workers)))
	require.Equal(t, 3, WorkersAtOnce(workers, 3), "their own turn counts them")

	byHand := append(slices.Clone(workers), node("w5", Worker, 1, manual, notReady), node("w6", Worker, 1, manual))
	require.Equal(t, 2, WorkersAtOnce(byHand, 3))
	require.Equal(t, 1, WorkersAtOnce(byHand, 1))
}
