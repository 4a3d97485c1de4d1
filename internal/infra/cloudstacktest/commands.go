package cloudstacktest

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

type object = map[string]any

// Codes of CloudStack.
const (
	codeParam    = 431
	codeInternal = 530
	codeAccount  = 531
)

// runCommand returns the result of a command, or its error.
func (s *Server) runCommand(command string, p url.Values) (any, *apiError) {
	switch command {
	case "listVirtualMachines":
		return s.listVMs(p)
	case "destroyVirtualMachine":
		return s.startJob(p.Get("id"), "Stopping", func(vm *VM) error {
			vm.State = "Destroyed"
			if p.Get("expunge") == "true" {
				vm.State = "Expunging"
			}
			return nil
		})
	case "attachIso":
		if _, found := s.iso(p.Get("id")); !found {
			return nil, &apiError{codeParam, "Unable to execute API command attachiso due to invalid value. Invalid parameter id value=" + p.Get("id")}
		}
		return s.startISOJob(p, p.Get("id"))
	case "detachIso":
		if vm := s.vm(p.Get("virtualmachineid")); vm != nil && vm.ISO == "" {
			return nil, &apiError{codeInternal, "The specified VM has no ISO attached to it."}
		}
		return s.startISOJob(p, "")
	case "listIsos":
		return s.listISOs(p)
	case "listKubernetesSupportedVersions":
		return s.listVersions(p)
	case "queryAsyncJobResult":
		return s.queryJob(p.Get("jobid"))
	case "listProjects":
		return page(p, "project", filterByName(s.Projects, p))
	case "listZones":
		return page(p, "zone", filterByName(s.Zones, p))
	case "listKubernetesClusters":
		return s.listClusters(p)
	case "listPublicIpAddresses":
		return s.listAddresses(p)
	case "listPortForwardingRules":
		return s.listRules(p)
	}
	return nil, &apiError{http.StatusMethodNotAllowed, "The given command does not exist or it is not available for user"}
}

// page returns the page of a list that was asked for.
func page(p url.Values, name string, all []object) (any, *apiError) {
	page, pageErr := strconv.Atoi(p.Get("page"))
	size, sizeErr := strconv.Atoi(p.Get("pagesize"))
	switch {
	case pageErr != nil || sizeErr != nil || page < 1 || size < 1:
		return nil, &apiError{codeParam, "page and pagesize go together"}
	case size > maxPageSize:
		return nil, &apiError{codeParam, "Page size can't exceed max allowed page size value: 500"}
	}
	from := min((page-1)*size, len(all))
	found := all[from:min(from+size, len(all))]
	if len(found) == 0 {
		return object{}, nil // CloudStack leaves out even the count
	}
	return object{"count": len(all), name: found}, nil
}

func filterByName(things []NamedResource, p url.Values) []object {
	var found []object
	for _, one := range things {
		if strings.Contains(one.Name, p.Get("name")) {
			found = append(found, object{"id": one.ID, "name": one.Name})
		}
	}
	return found
}

// visible reports whether a list call with these parameters includes what belongs to a
// project and an account.
func visible(p url.Values, project, account string) bool {
	all := p.Get("listall") == "true"
	switch want := p.Get("projectid"); want {
	case "":
		return project == "" && (account == "" || all)
	case "-1":
		return all || project != ""
	default:
		return project == want
	}
}

func (s *Server) listVMs(p url.Values) (any, *apiError) {
	id, ids := p.Get("id"), strings.FieldsFunc(p.Get("ids"), func(r rune) bool { return r == ',' })
	for _, one := range append(slices.Clone(ids), id) {
		if one != "" && s.vm(one) == nil {
			return nil, &apiError{codeParam, fmt.Sprintf("Invalid parameter id value=%s due to incorrect long value format, or entity does not exist", one)}
		}
	}
	var found []object
	for _, vm := range s.vms {
		hidden := vm.State == "Expunged" || s.HideDestroyed && (vm.State == "Destroyed" || vm.State == "Expunging")
		zone := p.Get("zoneid")
		if hidden || id != "" && vm.ID != id || len(ids) > 0 && !slices.Contains(ids, vm.ID) || zone != "" && vm.Zone != zone ||
			!strings.Contains(strings.ToLower(vm.Name), strings.ToLower(p.Get("name"))) || !visible(p, vm.Project, vm.Account) {
			continue
		}
		found = append(found, s.vmObject(vm, strings.Split(p.Get("details"), ",")))
	}
	return page(p, "virtualmachine", found)
}

// vmObject returns a machine as the API shows it, with the details that were asked for.
func (s *Server) vmObject(vm *VM, details []string) object {
	project, zone := nameOf(s.Projects, vm.Project), nameOf(s.Zones, vm.Zone)
	o := object{"id": vm.ID, "name": vm.Name, "displayname": vm.Name, "state": vm.State, "account": vm.Account,
		"project": project, "projectid": vm.Project, "zoneid": vm.Zone, "zonename": zone}
	if vm.Arch != "" {
		o["arch"] = vm.Arch
	}
	if slices.Contains(details, "iso") && vm.ISO != "" {
		iso, _ := s.iso(vm.ISO)
		o["isoid"], o["isoname"] = vm.ISO, iso.Name
	}
	if slices.Contains(details, "nics") && len(vm.Addresses) > 0 {
		nic, second := object{"id": "nic-" + vm.ID}, []object{}
		for i, address := range vm.Addresses {
			switch parsed, err := netip.ParseAddr(address); {
			case err == nil && parsed.Is6():
				nic["ip6address"] = address
			case i == 0:
				nic["ipaddress"] = address
			default:
				second = append(second, object{"id": "second", "ipaddress": address})
			}
		}
		nic["secondaryip"] = second
		o["nic"] = []object{nic}
	}
	return o
}

func nameOf(things []NamedResource, id string) string {
	for _, one := range things {
		if one.ID == id {
			return one.Name
		}
	}
	return ""
}

func (s *Server) listClusters(p url.Values) (any, *apiError) {
	var found []object
	for _, c := range s.Clusters {
		if p.Get("id") != "" && p.Get("id") != c.ID || !strings.Contains(c.Name, p.Get("name")) || !visible(p, c.Project, "") {
			continue
		}
		members := []object{}
		for _, id := range c.VMs {
			members = append(members, object{"id": id})
		}
		found = append(found, object{"id": c.ID, "name": c.Name, "clustertype": c.Type, "virtualmachines": members})
	}
	return page(p, "kubernetescluster", found)
}

func (s *Server) listAddresses(p url.Values) (any, *apiError) {
	var found []object
	for _, a := range s.Addresses {
		if a.IP == p.Get("ipaddress") && visible(p, a.Project, "") && (p.Get("zoneid") == "" || p.Get("zoneid") == a.Zone) {
			found = append(found, object{"id": a.ID, "ipaddress": a.IP})
		}
	}
	return page(p, "publicipaddress", found)
}

func (s *Server) listRules(p url.Values) (any, *apiError) {
	var found []object
	for _, a := range s.Addresses {
		if a.ID != p.Get("ipaddressid") || !visible(p, a.Project, "") {
			continue
		}
		for i, rule := range a.Rules {
			o := object{"id": fmt.Sprintf("%s-%d", a.ID, i), "ipaddress": a.IP, "state": rule.State, "protocol": rule.Protocol,
				"virtualmachineid": rule.VM, "publicport": strconv.Itoa(rule.Public), "privateport": strconv.Itoa(rule.Private)}
			if vm := s.vm(rule.VM); vm != nil {
				o["virtualmachinename"] = vm.Name
			}
			if rule.PrivateEnd != 0 {
				o["publicendport"], o["privateendport"] = strconv.Itoa(rule.PublicEnd), strconv.Itoa(rule.PrivateEnd)
			}
			found = append(found, o)
		}
	}
	return page(p, "portforwardingrule", found)
}

// asyncJob is an asynchronous job. It ends after a number of requests to the server.
type asyncJob struct {
	left   int // requests until it ends; negative = it never does
	ended  bool
	vm     *VM
	before VM
	do     func(*VM) error
	failed error // of do
}

// advanceJobs counts one request for every job and ends those that are due.
func (s *Server) advanceJobs() {
	for _, job := range s.jobs {
		switch {
		case job.ended || job.left < 0:
		case job.left > 0:
			job.left--
		case s.JobError != "":
			job.ended, *job.vm = true, job.before
		default:
			job.ended = true
			job.failed = job.do(job.vm)
		}
	}
}

// startJob begins a job on a machine of the caller's; meanwhile is its state until the end.
func (s *Server) startJob(id, meanwhile string, do func(*VM) error) (any, *apiError) {
	vm := s.vm(id)
	switch {
	case vm == nil || vm.State == "Expunged":
		return nil, &apiError{codeParam, "Unable to find a virtual machine with specified vmId"}
	case vm.Account != "":
		return nil, &apiError{codeAccount, "Acct does not have permission to operate with resource"}
	}
	job := fmt.Sprintf("job-%d", len(s.jobs)+1)
	s.jobs[job] = &asyncJob{left: s.JobPolls, vm: vm, before: *vm, do: do}
	if meanwhile != "" {
		vm.State = meanwhile
	}
	return object{"jobid": job}, nil
}

func (s *Server) queryJob(id string) (any, *apiError) {
	job := s.jobs[id]
	switch {
	case job == nil:
		return nil, &apiError{codeParam, "there is no such job"}
	case !job.ended:
		return object{"jobid": id, "jobstatus": 0}, nil
	case s.JobError != "" && s.JobErrorAsText:
		return object{"jobid": id, "jobstatus": 2, "jobresultcode": codeInternal, "jobresulttype": "text", "jobresult": s.JobError}, nil
	case s.JobError != "":
		return failedJob(id, s.JobError), nil
	case job.failed != nil:
		return failedJob(id, job.failed.Error()), nil
	}
	return object{"jobid": id, "jobstatus": 1, "jobresult": object{"virtualmachine": object{"id": job.vm.ID}}}, nil
}

func failedJob(id, reason string) object {
	return object{"jobid": id, "jobstatus": 2, "jobresultcode": codeInternal, "jobresulttype": "object",
		"jobresult": object{"errorcode": codeInternal, "errortext": reason}}
}
