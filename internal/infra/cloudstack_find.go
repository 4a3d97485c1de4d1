package infra

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

// allProjects is the project ID that, with listall, stands for every project that the
// account may see.
const allProjects = "-1"

// providerIDPattern matches spec.providerID as the cloud controller manager
// (external-cloudstack://) and the Cluster API provider (cloudstack://) write it.
var providerIDPattern = regexp.MustCompile(`^(?:external-)?cloudstack://(?:.*/)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)

// vmIDFromProviderID returns the VM ID in a provider ID of CloudStack's form, else "".
func vmIDFromProviderID(id string) string {
	if found := providerIDPattern.FindStringSubmatch(id); found != nil {
		return strings.ToLower(found[1])
	}
	return ""
}

// findVM returns the VM of a machine, nil when CloudStack does not have it any more. A
// VM that is only outside the configured project, zone or cluster is a permanent error:
// a machine that is taken for gone is neither drained nor destroyed.
func (s *session) findVM(m Machine) (*cloudstack.VirtualMachine, error) {
	in, err := s.resolveScope()
	if err != nil {
		return nil, err
	}
	listed, err := s.listCandidates(m, in, in.members != nil)
	if err != nil {
		return nil, err
	}
	vm, err := selectVM(m, listed, in.members)
	if vm != nil || err != nil {
		return vm, err
	}
	return nil, s.confirmNotFound(m, in)
}

// listCandidates returns the VMs that may be the machine: the one with its ID or, for a
// node without a provider ID, those with the node's name. listAll includes the VMs of
// other accounts.
func (s *session) listCandidates(m Machine, in scope, listAll bool) ([]*cloudstack.VirtualMachine, error) {
	params := s.api.VirtualMachine.NewListVirtualMachinesParams()
	id := vmIDFromProviderID(m.ProviderID)
	if id == "" {
		params.SetName(m.Node)
	} else {
		params.SetId(id)
	}
	params.SetListall(listAll || id != "")
	listed, err := s.listVMs(params, in)
	if id != "" && hasCode(err, codeParam) {
		return nil, nil // CloudStack does not have the ID, or not any more
	}
	return listed, err
}

const notMember = "VM %s (%s) is not one of the machines of infrastructure.kubernetesCluster"

// selectVM returns the VM of a machine among the candidates, nil when it is none of
// them. A name must come with an address of the node, because a VM of another cluster
// may have the same name. members limits the VMs to those of the Kubernetes cluster;
// nil = no limit. A VM that must not be touched is a permanent error.
func selectVM(m Machine, listed []*cloudstack.VirtualMachine, members map[string]bool) (*cloudstack.VirtualMachine, error) {
	if id := vmIDFromProviderID(m.ProviderID); id != "" {
		at := slices.IndexFunc(listed, func(vm *cloudstack.VirtualMachine) bool { return vm.Id == id })
		switch {
		case at < 0:
			return nil, nil
		case members != nil && !members[id] && machineState(listed[at].State) != Gone:
			return nil, permanentf(notMember, listed[at].Name, id)
		}
		return listed[at], nil
	}
	var matches, nonMembers, mismatched []*cloudstack.VirtualMachine
	for _, vm := range listed {
		member, sameAddress := members == nil || members[vm.Id], shareAddress(m.Addresses, vmAddresses(vm))
		switch {
		// Node names are in lower case, names of VMs need not be.
		case !strings.EqualFold(vm.Name, m.Node), machineState(vm.State) == Gone:
		case member && sameAddress:
			matches = append(matches, vm)
		case sameAddress:
			nonMembers = append(nonMembers, vm)
		case member:
			mismatched = append(mismatched, vm)
		}
	}
	switch {
	case len(matches) == 1:
		return matches[0], nil
	case len(matches) > 1:
		return nil, permanentf("VMs %s and %s are both called %s and have an address of the node: set infrastructure.project, zone or kubernetesCluster",
			matches[0].Id, matches[1].Id, m.Node)
	case len(nonMembers) > 0:
		return nil, permanentf(notMember, nonMembers[0].Name, nonMembers[0].Id)
	case len(mismatched) > 0:
		return nil, permanentf("VM %s is called %s and has the addresses %s, but the node has %s: it is another machine",
			mismatched[0].Id, mismatched[0].Name, joinAddresses(vmAddresses(mismatched[0])), joinAddresses(m.Addresses))
	}
	return nil, nil
}

// joinAddresses returns addresses for an error message.
func joinAddresses(addresses []string) string {
	if len(addresses) == 0 {
		return "none"
	}
	return strings.Join(addresses, ", ")
}

// vmAddresses returns all the private addresses of a VM.
func vmAddresses(vm *cloudstack.VirtualMachine) []string {
	var all []string
	for _, nic := range vm.Nic {
		all = append(all, nic.Ipaddress, nic.Ip6address)
		for _, second := range nic.Secondaryip {
			all = append(all, second.Ipaddress)
		}
	}
	return slices.DeleteFunc(all, func(address string) bool { return address == "" })
}

// shareAddress reports whether two lists have an IP address in common.
func shareAddress(a, b []string) bool {
	return slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return equalAddresses(one, other) })
	})
}

// equalAddresses reports whether two texts are the same IP address.
func equalAddresses(a, b string) bool {
	one, err := netip.ParseAddr(a)
	if err != nil {
		return false
	}
	other, err := netip.ParseAddr(b)
	return err == nil && one.Unmap() == other.Unmap()
}

// confirmNotFound returns nil when a machine that was not found in the scope does not
// exist elsewhere either, and the scope is one in which this account sees VMs at all.
// Else it returns a permanent error that says which setting is wrong.
func (s *session) confirmNotFound(m Machine, in scope) error {
	listed, err := s.listCandidates(m, scope{project: allProjects}, true)
	if err != nil {
		return err
	}
	// An ambiguous match outside the scope is ignored: nothing is done to those VMs.
	if vm, err := selectVM(m, listed, nil); err == nil && vm != nil && machineState(vm.State) != Gone {
		return permanentf("VM %s (%s) is not in %s but in project %q, zone %q, of account %q: correct infrastructure.project or zone, or name the kubernetesCluster",
			vm.Name, vm.Id, s.describeScope(), vm.Project, vm.Zonename, vm.Account)
	}
	if in.members != nil {
		return nil // the Kubernetes cluster was seen
	}
	seen, err := s.anyVMVisible(in, vmIDFromProviderID(m.ProviderID) != "")
	if err == nil && !seen {
		return permanentf("CloudStack shows no machine at all in %s: it cannot be told whether this one is gone; "+
			"correct infrastructure.project, zone or credentialsFile", s.describeScope())
	}
	return err
}

// anyVMVisible reports whether the account sees any VM in a scope.
func (s *session) anyVMVisible(in scope, listAll bool) (bool, error) {
	params := s.api.VirtualMachine.NewListVirtualMachinesParams()
	params.SetListall(listAll)
	in.applyTo(params)
	params.SetPage(1)
	params.SetPagesize(1)
	got, err := invoke(s, "listVirtualMachines", func() (*cloudstack.ListVirtualMachinesResponse, error) {
		return s.api.VirtualMachine.ListVirtualMachines(params)
	})
	return err == nil && got.Count > 0, err
}

// findVMByID returns the VM with an ID, nil when CloudStack does not show it.
func (s *session) findVMByID(id string) (*cloudstack.VirtualMachine, error) {
	m := Machine{ProviderID: "cloudstack:///" + id}
	listed, err := s.listCandidates(m, scope{project: allProjects}, true)
	if err != nil {
		return nil, err
	}
	return selectVM(m, listed, nil)
}

// listVMs returns the VMs that params ask for in a scope.
func (s *session) listVMs(params *cloudstack.ListVirtualMachinesParams, in scope) ([]*cloudstack.VirtualMachine, error) {
	params.SetDetails([]string{"nics", "iso"})
	in.applyTo(params)
	return listPages(s, "listVirtualMachines", params, func() ([]*cloudstack.VirtualMachine, int, error) {
		got, err := s.api.VirtualMachine.ListVirtualMachines(params)
		if err != nil {
			return nil, 0, err
		}
		return got.VirtualMachines, got.Count, nil
	})
}
