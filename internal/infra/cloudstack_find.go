package infra

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

// anyProject lists what the account sees in every project, with listall.
const anyProject = "-1"

// providerID is what the cloud controller manager (external-cloudstack://) and
// the cluster API provider (cloudstack://) write into spec.providerID.
var providerID = regexp.MustCompile(`^(?:external-)?cloudstack://(?:.*/)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)

// vmID is the ID in a provider ID of CloudStack's form, else "".
func vmID(id string) string {
	if found := providerID.FindStringSubmatch(id); found != nil {
		return strings.ToLower(found[1])
	}
	return ""
}

// find is the VM of a machine, nil when CloudStack has it no more. What looks
// gone only because the settings look in the wrong place is an error: a machine
// that is taken for gone is neither drained nor destroyed.
func (s *session) find(m Machine) (*cloudstack.VirtualMachine, error) {
	in, err := s.scope()
	if err != nil {
		return nil, err
	}
	listed, err := s.candidates(m, in, in.members != nil)
	if err != nil {
		return nil, err
	}
	vm, err := choose(m, listed, in.members)
	if vm != nil || err != nil {
		return vm, err
	}
	return nil, s.confirmGone(m, in)
}

// candidates are the VMs that may be the machine: the one with its ID, or those
// that bear the name of its node. listAll also takes those of other accounts.
func (s *session) candidates(m Machine, in scope, listAll bool) ([]*cloudstack.VirtualMachine, error) {
	params := s.api.VirtualMachine.NewListVirtualMachinesParams()
	id := vmID(m.ProviderID)
	if id == "" {
		params.SetName(m.Node)
	} else {
		params.SetId(id)
	}
	params.SetListall(listAll || id != "")
	listed, err := s.machines(params, in)
	if id != "" && saysCode(err, badParameter) {
		return nil, nil // CloudStack has forgotten the ID, or never had it
	}
	return listed, err
}

const notMember = "VM %s (%s) is not one of the machines of infrastructure.kubernetesCluster"

// choose picks the VM of a machine among the candidates; nil = none of them. By
// name alone is never enough: another cluster's machine may bear it.
func choose(m Machine, listed []*cloudstack.VirtualMachine, members map[string]bool) (*cloudstack.VirtualMachine, error) {
	if id := vmID(m.ProviderID); id != "" {
		at := slices.IndexFunc(listed, func(vm *cloudstack.VirtualMachine) bool { return vm.Id == id })
		switch {
		case at < 0:
			return nil, nil
		case members != nil && !members[id] && stateOf(listed[at].State) != Gone:
			return nil, refuse(notMember, listed[at].Name, id)
		}
		return listed[at], nil
	}
	var same, outside, strangers []*cloudstack.VirtualMachine
	for _, vm := range listed {
		member, alike := members == nil || members[vm.Id], agree(m.Addresses, addresses(vm))
		switch {
		// Node names are in lower case, whatever the VM is called.
		case !strings.EqualFold(vm.Name, m.Node), stateOf(vm.State) == Gone:
		case member && alike:
			same = append(same, vm)
		case alike:
			outside = append(outside, vm)
		case member:
			strangers = append(strangers, vm)
		}
	}
	switch {
	case len(same) == 1:
		return same[0], nil
	case len(same) > 1:
		return nil, refuse("VMs %s and %s are both called %s and have an address of the node: set infrastructure.project, zone or kubernetesCluster",
			same[0].Id, same[1].Id, m.Node)
	case len(outside) > 0:
		return nil, refuse(notMember, outside[0].Name, outside[0].Id)
	case len(strangers) > 0:
		return nil, refuse("VM %s is called %s and has the addresses %s, but the node has %s: it is another machine",
			strangers[0].Id, strangers[0].Name, list(addresses(strangers[0])), list(m.Addresses))
	}
	return nil, nil
}

func list(addresses []string) string {
	if len(addresses) == 0 {
		return "none"
	}
	return strings.Join(addresses, ", ")
}

// addresses are all the private addresses of a VM.
func addresses(vm *cloudstack.VirtualMachine) []string {
	var all []string
	for _, nic := range vm.Nic {
		all = append(all, nic.Ipaddress, nic.Ip6address)
		for _, second := range nic.Secondaryip {
			all = append(all, second.Ipaddress)
		}
	}
	return slices.DeleteFunc(all, func(address string) bool { return address == "" })
}

// agree says whether two lists have an address in common, however it is written.
func agree(a, b []string) bool {
	return slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return sameAddress(one, other) })
	})
}

func sameAddress(a, b string) bool {
	one, err := netip.ParseAddr(a)
	if err != nil {
		return false
	}
	other, err := netip.ParseAddr(b)
	return err == nil && one.Unmap() == other.Unmap()
}

// confirmGone makes sure that a machine that was not found in the scope is not
// somewhere else, and that the scope is one where machines can be seen at all.
func (s *session) confirmGone(m Machine, in scope) error {
	listed, err := s.candidates(m, scope{project: anyProject}, true)
	if err != nil {
		return err
	}
	// What cannot be told apart out there is no reason to refuse: it is not acted on.
	if vm, err := choose(m, listed, nil); err == nil && vm != nil && stateOf(vm.State) != Gone {
		return refuse("VM %s (%s) is not in %s but in project %q, zone %q, of account %q: correct infrastructure.project or zone, or name the kubernetesCluster",
			vm.Name, vm.Id, s.where(), vm.Project, vm.Zonename, vm.Account)
	}
	if in.members != nil {
		return nil // the Kubernetes cluster was seen
	}
	seen, err := s.sees(in, vmID(m.ProviderID) != "")
	if err == nil && !seen {
		return refuse("CloudStack shows no machine at all in %s: it cannot be told whether this one is gone; "+
			"correct infrastructure.project, zone or credentialsFile", s.where())
	}
	return err
}

// sees says whether there is any machine to be seen in a scope.
func (s *session) sees(in scope, listAll bool) (bool, error) {
	params := s.api.VirtualMachine.NewListVirtualMachinesParams()
	params.SetListall(listAll)
	in.limit(params)
	params.SetPage(1)
	params.SetPagesize(1)
	got, err := ask(s, "listVirtualMachines", func() (*cloudstack.ListVirtualMachinesResponse, error) {
		return s.api.VirtualMachine.ListVirtualMachines(params)
	})
	return err == nil && got.Count > 0, err
}

// byID is the VM with an ID, nil when CloudStack does not show it.
func (s *session) byID(id string) (*cloudstack.VirtualMachine, error) {
	m := Machine{ProviderID: "cloudstack:///" + id}
	listed, err := s.candidates(m, scope{project: anyProject}, true)
	if err != nil {
		return nil, err
	}
	return choose(m, listed, nil)
}

// machines lists VMs in a scope, page by page.
func (s *session) machines(params *cloudstack.ListVirtualMachinesParams, in scope) ([]*cloudstack.VirtualMachine, error) {
	params.SetDetails([]string{"nics", "iso"})
	in.limit(params)
	return pages(s, "listVirtualMachines", params, func() ([]*cloudstack.VirtualMachine, int, error) {
		got, err := s.api.VirtualMachine.ListVirtualMachines(params)
		if err != nil {
			return nil, 0, err
		}
		return got.VirtualMachines, got.Count, nil
	})
}
