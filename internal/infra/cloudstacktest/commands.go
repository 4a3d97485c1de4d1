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
	badParameter = 431
	internal     = 530
	noAccess     = 531
)

func (s *Server) serve(command string, p url.Values) (any, *refusal) {
	switch command {
	case "listVirtualMachines":
		return s.listVMs(p)
	case "destroyVirtualMachine":
		return s.start(p.Get("id"), "Stopping", func(vm *VM) {
			vm.State = "Destroyed"
			if p.Get("expunge") == "true" {
				vm.State = "Expunging"
			}
		})
	case "detachIso":
		if vm := s.vm(p.Get("virtualmachineid")); vm != nil && vm.ISO == "" {
			return nil, &refusal{internal, "The specified VM has no ISO attached to it."}
		}
		return s.start(p.Get("virtualmachineid"), "", func(vm *VM) { vm.ISO = "" })
	case "queryAsyncJobResult":
		return s.query(p.Get("jobid"))
	case "listProjects":
		return list(p, "project", named(s.Projects, p))
	case "listZones":
		return list(p, "zone", named(s.Zones, p))
	case "listKubernetesClusters":
		return s.listClusters(p)
	case "listPublicIpAddresses":
		return s.listAddresses(p)
	case "listPortForwardingRules":
		return s.listRules(p)
	}
	return nil, &refusal{http.StatusMethodNotAllowed, "The given command does not exist or it is not available for user"}
}

// list is one page of what was found.
func list(p url.Values, name string, all []object) (any, *refusal) {
	page, pageErr := strconv.Atoi(p.Get("page"))
	size, sizeErr := strconv.Atoi(p.Get("pagesize"))
	switch {
	case pageErr != nil || sizeErr != nil || page < 1 || size < 1:
		return nil, &refusal{badParameter, "page and pagesize go together"}
	case size > maxPageSize:
		return nil, &refusal{badParameter, "Page size can't exceed max allowed page size value: 500"}
	}
	from := min((page-1)*size, len(all))
	found := all[from:min(from+size, len(all))]
	if len(found) == 0 {
		return object{}, nil // CloudStack leaves out even the count
	}
	return object{"count": len(all), name: found}, nil
}

func named(things []Named, p url.Values) []object {
	var found []object
	for _, one := range things {
		if strings.Contains(one.Name, p.Get("name")) {
			found = append(found, object{"id": one.ID, "name": one.Name})
		}
	}
	return found
}

// sees says whether a call shows what belongs to a project and an account.
func sees(p url.Values, project, account string) bool {
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

func (s *Server) listVMs(p url.Values) (any, *refusal) {
	id := p.Get("id")
	if id != "" && s.vm(id) == nil {
		return nil, &refusal{badParameter, fmt.Sprintf("Invalid parameter id value=%s due to incorrect long value format, or entity does not exist", id)}
	}
	var found []object
	for _, vm := range s.vms {
		hidden := vm.State == "Expunged" || s.HideDestroyed && (vm.State == "Destroyed" || vm.State == "Expunging")
		zone := p.Get("zoneid")
		if hidden || id != "" && vm.ID != id || zone != "" && vm.Zone != zone ||
			!strings.Contains(strings.ToLower(vm.Name), strings.ToLower(p.Get("name"))) || !sees(p, vm.Project, vm.Account) {
			continue
		}
		found = append(found, s.show(vm, strings.Split(p.Get("details"), ",")))
	}
	return list(p, "virtualmachine", found)
}

// show is a machine as the API shows it, with the details that were asked for.
func (s *Server) show(vm *VM, details []string) object {
	project, zone := nameOf(s.Projects, vm.Project), nameOf(s.Zones, vm.Zone)
	o := object{"id": vm.ID, "name": vm.Name, "displayname": vm.Name, "state": vm.State, "account": vm.Account,
		"project": project, "projectid": vm.Project, "zoneid": vm.Zone, "zonename": zone}
	if slices.Contains(details, "iso") && vm.ISO != "" {
		o["isoid"] = vm.ISO
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

func nameOf(things []Named, id string) string {
	for _, one := range things {
		if one.ID == id {
			return one.Name
		}
	}
	return ""
}

func (s *Server) listClusters(p url.Values) (any, *refusal) {
	var found []object
	for _, c := range s.Clusters {
		if p.Get("id") != "" && p.Get("id") != c.ID || !strings.Contains(c.Name, p.Get("name")) || !sees(p, c.Project, "") {
			continue
		}
		members := []object{}
		for _, id := range c.Members {
			members = append(members, object{"id": id})
		}
		found = append(found, object{"id": c.ID, "name": c.Name, "clustertype": c.Type, "virtualmachines": members})
	}
	return list(p, "kubernetescluster", found)
}

func (s *Server) listAddresses(p url.Values) (any, *refusal) {
	var found []object
	for _, a := range s.Addresses {
		if a.IP == p.Get("ipaddress") && sees(p, a.Project, "") && (p.Get("zoneid") == "" || p.Get("zoneid") == a.Zone) {
			found = append(found, object{"id": a.ID, "ipaddress": a.IP})
		}
	}
	return list(p, "publicipaddress", found)
}

func (s *Server) listRules(p url.Values) (any, *refusal) {
	var found []object
	for _, a := range s.Addresses {
		if a.ID != p.Get("ipaddressid") || !sees(p, a.Project, "") {
			continue
		}
		for i, rule := range a.Rules {
			o := object{"id": fmt.Sprintf("%s-%d", a.ID, i), "ipaddress": a.IP, "state": rule.State, "protocol": rule.Protocol,
				"virtualmachineid": rule.VM, "publicport": strconv.Itoa(rule.Public), "privateport": strconv.Itoa(rule.Private)}
			if vm := s.vm(rule.VM); vm != nil {
				o["virtualmachinename"] = vm.Name
			}
			if rule.EndsAt != 0 {
				o["publicendport"], o["privateendport"] = strconv.Itoa(rule.PublicEnd), strconv.Itoa(rule.EndsAt)
			}
			found = append(found, o)
		}
	}
	return list(p, "portforwardingrule", found)
}

// task is an asynchronous job. Its clock are the requests to the server.
type task struct {
	left   int // requests until it ends; negative = it never does
	ended  bool
	vm     *VM
	before VM
	do     func(*VM)
}

// tick lets the jobs go on by one request.
func (s *Server) tick() {
	for _, job := range s.jobs {
		switch {
		case job.ended || job.left < 0:
		case job.left > 0:
			job.left--
		case s.JobError != "":
			job.ended, *job.vm = true, job.before
		default:
			job.ended = true
			job.do(job.vm)
		}
	}
}

// start begins a job on a machine of the caller's; meanwhile is its state until the end.
func (s *Server) start(id, meanwhile string, do func(*VM)) (any, *refusal) {
	vm := s.vm(id)
	switch {
	case vm == nil || vm.State == "Expunged":
		return nil, &refusal{badParameter, "Unable to find a virtual machine with specified vmId"}
	case vm.Account != "":
		return nil, &refusal{noAccess, "Acct does not have permission to operate with resource"}
	}
	job := fmt.Sprintf("job-%d", len(s.jobs)+1)
	s.jobs[job] = &task{left: s.JobPolls, vm: vm, before: *vm, do: do}
	if meanwhile != "" {
		vm.State = meanwhile
	}
	return object{"jobid": job}, nil
}

func (s *Server) query(id string) (any, *refusal) {
	job := s.jobs[id]
	switch {
	case job == nil:
		return nil, &refusal{badParameter, "there is no such job"}
	case !job.ended:
		return object{"jobid": id, "jobstatus": 0}, nil
	case s.JobError != "" && s.JobText:
		return object{"jobid": id, "jobstatus": 2, "jobresultcode": internal, "jobresulttype": "text", "jobresult": s.JobError}, nil
	case s.JobError != "":
		return object{"jobid": id, "jobstatus": 2, "jobresultcode": internal, "jobresulttype": "object",
			"jobresult": object{"errorcode": internal, "errortext": s.JobError}}, nil
	}
	return object{"jobid": id, "jobstatus": 1, "jobresult": object{"virtualmachine": object{"id": job.vm.ID}}}, nil
}
