package infra

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

func TestVMID(t *testing.T) {
	for providerID, want := range map[string]string{
		"cloudstack:///" + idW1:                              idW1,
		"cloudstack://" + idW1:                               idW1,
		"cloudstack:///zone-a/" + idW1:                       idW1,
		"external-cloudstack:///" + idW1:                     idW1,
		"external-cloudstack://" + idW1:                      idW1,
		"cloudstack:///AAAAAAAA-0000-4000-8000-000000000001": idP1,
		"":                                     "",
		"cloudstack:///w1":                     "",
		"aws:///eu-1a/" + idW1:                 "",
		"xcloudstack:///" + idW1:               "",
		"cloudstack:///" + idW1 + "/disk":      "",
		"external-cloudstack:///" + idW1 + "0": "",
		"cloudstack:///11111111-1111-4111-8111-11111111111g/" + idW1: idW1,
	} {
		require.Equal(t, want, vmIDFromProviderID(providerID), providerID)
	}
}

func named(name string, addresses ...string) func(*cloudstacktest.VM) {
	return func(vm *cloudstacktest.VM) { vm.Name, vm.Addresses = name, addresses }
}

func of(account string) func(*cloudstacktest.VM) {
	return func(vm *cloudstacktest.VM) { vm.Account = account }
}

func inProject(vm *cloudstacktest.VM) { vm.Project, vm.Zone = idP1, idZ1 }

func third(vm *cloudstacktest.VM) { vm.ID = idW3 }

// In each case the machine is asked for and then ordered to be destroyed: an
// error must come from both, and nothing be destroyed.
func TestCloudStackFindsTheMachine(t *testing.T) {
	inP1 := func(cfg *config.Infrastructure) { cfg.Project = "prod nodes" }
	inK1 := func(cfg *config.Infrastructure) { cfg.KubernetesCluster = "k1" }
	for name, c := range map[string]struct {
		m      Machine
		change func(*config.Infrastructure)
		vms    []cloudstacktest.VM
		vm     string // the one that is found; "" = none, it is gone
		err    string
	}{
		"by name, IPv4":          {byName, nil, []cloudstacktest.VM{vmW1(), vmW2}, idW1, ""},
		"by name, IPv6 only":     {byName, nil, []cloudstacktest.VM{vmW1(named("w1", "FD00:0::4")), vmW2}, idW1, ""},
		"by name, secondary":     {byName, nil, []cloudstacktest.VM{vmW1(named("w1", "192.168.7.1", "10.0.0.4")), vmW2}, idW1, ""},
		"by name, in capitals":   {byName, nil, []cloudstacktest.VM{vmW1(named("W1", "10.0.0.4")), vmW2}, idW1, ""},
		"another name":           {byName, nil, []cloudstacktest.VM{vmW1(named("w10", "10.0.0.4")), vmW2}, "", ""},
		"by ID, whatever it is":  {byIDOf(idW1), nil, []cloudstacktest.VM{vmW1(named("x", "10.9.9.9")), vmW2}, idW1, ""},
		"by ID, name is another": {byIDOf(idW3), nil, []cloudstacktest.VM{vmW1(), vmW2}, "", ""},
		"by name, other address": {byName, nil, []cloudstacktest.VM{vmW1(named("w1", "10.0.0.44")), vmW2}, "",
			"VM " + idW1 + " is called w1 and has the addresses 10.0.0.44, but the node has 10.0.0.4, fd00::4: it is another machine"},
		"by name, no address": {byName, nil, []cloudstacktest.VM{vmW1(named("w1")), vmW2}, "",
			"VM " + idW1 + " is called w1 and has the addresses none, but the node has 10.0.0.4, fd00::4: it is another machine"},
		"by name, node has no address": {Machine{Node: "w1"}, nil, []cloudstacktest.VM{vmW1(), vmW2}, "",
			"VM " + idW1 + " is called w1 and has the addresses 10.0.0.4, but the node has none: it is another machine"},
		"two of one name": {byName, nil, []cloudstacktest.VM{vmW1(), vmW1(third), vmW2}, "",
			"VMs " + idW1 + " and " + idW3 + " are both called w1 and have an address of the node: set infrastructure.project, zone or kubernetesCluster"},
		"two of one name, one with the address": {byName, nil, []cloudstacktest.VM{vmW1(), vmW1(third, named("w1", "10.0.0.99")), vmW2}, idW1, ""},
		"two of one name, one in a project":     {byName, nil, []cloudstacktest.VM{vmW1(third, inProject), vmW1(), vmW2}, idW1, ""},
		"in the project":                        {byName, inP1, []cloudstacktest.VM{vmW1(third), vmW1(inProject)}, idW1, ""},
		"in the project, by its ID":             {byName, func(cfg *config.Infrastructure) { cfg.Project = idP1 }, []cloudstacktest.VM{vmW1(third), vmW1(inProject)}, idW1, ""},
		"in the zone":                           {byName, func(cfg *config.Infrastructure) { cfg.Project, cfg.Zone = idP1, "zone one" }, []cloudstacktest.VM{vmW1(inProject), vmW2}, idW1, ""},
		"no such project": {byName, func(cfg *config.Infrastructure) { cfg.Project = "prod" }, []cloudstacktest.VM{vmW1(), vmW2}, "",
			"infrastructure.project: these keys show none that is called prod"},
		"no such zone": {byName, func(cfg *config.Infrastructure) { cfg.Zone = "zone" }, []cloudstacktest.VM{vmW1(), vmW2}, "",
			"infrastructure.zone: these keys show none that is called zone"},
		"two projects of one name": {byName, func(cfg *config.Infrastructure) { cfg.Project = "twice" }, []cloudstacktest.VM{vmW1(), vmW2}, "",
			"infrastructure.project: these keys show 2 that are called twice: use the ID"},
		// Taken for gone, it would be neither drained nor destroyed.
		"in a project that the settings do not name": {byName, nil, []cloudstacktest.VM{vmW1(inProject), vmW2}, "",
			"VM w1 (" + idW1 + ") is not in the account of these keys but in project \"prod nodes\", zone \"zone one\", of account \"\": " +
				"correct infrastructure.project or zone, or name the kubernetesCluster"},
		"by ID, in a project that the settings do not name": {byIDOf(idW1), nil, []cloudstacktest.VM{vmW1(inProject), vmW2}, "",
			"VM w1 (" + idW1 + ") is not in the account of these keys but in project \"prod nodes\", zone \"zone one\", of account \"\": " +
				"correct infrastructure.project or zone, or name the kubernetesCluster"},
		"not in the project of the settings": {byIDOf(idW1), inP1, []cloudstacktest.VM{vmW1(), vmW2}, "",
			"VM w1 (" + idW1 + ") is not in project prod nodes but in project \"\", zone \"\", of account \"\": " +
				"correct infrastructure.project or zone, or name the kubernetesCluster"},
		"of another account, by name": {byName, nil, []cloudstacktest.VM{vmW1(of("other")), vmW2}, "",
			"VM w1 (" + idW1 + ") is not in the account of these keys but in project \"\", zone \"\", of account \"other\": " +
				"correct infrastructure.project or zone, or name the kubernetesCluster"},
		"another's of that name elsewhere": {byName, nil, []cloudstacktest.VM{vmW1(of("other"), named("w1", "10.7.7.7")), vmW2}, "", ""},
		"nothing to be seen": {byName, nil, []cloudstacktest.VM{vmW1(of("other"), named("w8", "10.7.7.7"))}, "",
			"CloudStack shows no machine at all in the account of these keys: it cannot be told whether this one is gone; " +
				"correct infrastructure.project, zone or credentialsFile"},
		"nothing to be seen, by ID": {byIDOf(idW1), inP1, nil, "",
			"CloudStack shows no machine at all in project prod nodes: it cannot be told whether this one is gone; " +
				"correct infrastructure.project, zone or credentialsFile"},
		"in the cluster":                       {byName, inK1, []cloudstacktest.VM{vmW1(third), vmW1(), vmW2}, idW1, ""},
		"in the cluster, by ID":                {byIDOf(idW1), inK1, []cloudstacktest.VM{vmW1()}, idW1, ""},
		"gone from the cluster":                {byName, inK1, []cloudstacktest.VM{vmW1(in("Destroyed"))}, "", ""},
		"not in the cluster":                   {byName, inK1, []cloudstacktest.VM{vmW1(third, named("w1", "10.3.3.3"))}, "", ""},
		"not in the cluster, with the address": {byName, inK1, []cloudstacktest.VM{vmW1(third)}, "", "VM w1 (" + idW3 + ") is not one of the machines of infrastructure.kubernetesCluster"},
		"ID is not of a member":                {byIDOf(idW3), inK1, []cloudstacktest.VM{vmW1(), vmW1(third)}, "", "VM w1 (" + idW3 + ") is not one of the machines of infrastructure.kubernetesCluster"},
		"cluster is not seen":                  {byName, func(cfg *config.Infrastructure) { cfg.KubernetesCluster = "k" }, []cloudstacktest.VM{vmW1()}, "", "infrastructure.kubernetesCluster: these keys show none that is called k"},
		"cluster by ID":                        {byName, func(cfg *config.Infrastructure) { cfg.KubernetesCluster = idK1 }, []cloudstacktest.VM{vmW1()}, idW1, ""},
		"zone where it is not":                 {byName, func(cfg *config.Infrastructure) { cfg.Project, cfg.Zone = idP1, "zone two" }, []cloudstacktest.VM{vmW1(inProject)}, "", "VM w1 (" + idW1 + ") is not in project " + idP1 + ", zone zone two but in project \"prod nodes\", zone \"zone one\", of account \"\": correct infrastructure.project or zone, or name the kubernetesCluster"},
		"a dead one of that name":              {byName, nil, []cloudstacktest.VM{vmW1(third, in("Expunging")), vmW1()}, idW1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, p := cloud(t, c.change, c.vms...)
			server.Projects = []cloudstacktest.NamedResource{{ID: idP1, Name: "prod nodes"}, {ID: "p-2", Name: "prod nodes 2"}, {ID: "p-3", Name: "twice"}, {ID: "p-4", Name: "twice"}}
			server.Zones = []cloudstacktest.NamedResource{{ID: idZ1, Name: "zone one"}, {ID: "z-2", Name: "zone two"}}
			server.Clusters = []cloudstacktest.KubernetesCluster{{ID: idK1, Name: "k1", VMs: []string{idW1, idW2}}, {ID: "k-2", Name: "k1b"}}
			state, err := p.State(t.Context(), c.m)
			destroyErr := p.Destroy(t.Context(), c.m)
			if c.err != "" {
				require.EqualError(t, err, "state of the machine of node w1: "+c.err)
				require.EqualError(t, destroyErr, "destroy of the machine of node w1: "+c.err)
				require.True(t, Permanent(err))
				require.True(t, Permanent(destroyErr))
			} else {
				require.NoError(t, err)
				require.NoError(t, destroyErr)
			}
			calls := server.Calls("destroyVirtualMachine")
			if c.vm == "" {
				require.Empty(t, calls)
				require.NotEqual(t, Running, state)
				return
			}
			require.Equal(t, Running, state)
			require.Len(t, calls, 1)
			require.Equal(t, c.vm, calls[0].Get("id"))
		})
	}
}

func TestCloudStackReadsEveryPage(t *testing.T) {
	var vms []cloudstacktest.VM
	for i := range 2*pageSize + 1 { // each name holds "w1"
		vms = append(vms, cloudstacktest.VM{ID: fmt.Sprintf("id-%d", i), Name: fmt.Sprintf("w1-%d", i), State: "Running", Addresses: []string{"10.1.1.1"}})
	}
	vms = append(vms, vmW1())
	server, p := cloud(t, nil, vms...)
	s, err := p.State(t.Context(), byName)
	require.NoError(t, err)
	require.Equal(t, Running, s)
	require.Len(t, server.Calls("listVirtualMachines"), 3)
}
