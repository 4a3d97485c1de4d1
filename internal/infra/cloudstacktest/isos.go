package cloudstacktest

import (
	"fmt"
	"net/url"
	"slices"
)

func (s *Server) iso(id string) (ISO, bool) {
	at := slices.IndexFunc(s.ISOs, func(iso ISO) bool { return iso.ID == id })
	if at < 0 {
		return ISO{}, false
	}
	return s.ISOs[at], true
}

// startISOJob begins a job that attaches an ISO to a machine, which must be Running or
// Stopped, or detaches the one that it has.
func (s *Server) startISOJob(p url.Values, iso string) (any, *apiError) {
	vm := s.vm(p.Get("virtualmachineid"))
	if vm != nil && vm.State != "Running" && vm.State != "Stopped" {
		return nil, &apiError{codeInternal, "Please specify an instance that is either Stopped or Running."}
	}
	return s.startJob(p.Get("virtualmachineid"), "", func(vm *VM) error {
		if s.ChangeISO != nil {
			if err := s.ChangeISO(*vm, iso); err != nil {
				return err
			}
		}
		vm.ISO = iso
		return nil
	})
}

func (s *Server) listISOs(p url.Values) (any, *apiError) {
	if filter := p.Get("isofilter"); filter != "executable" {
		return nil, &apiError{codeParam, fmt.Sprintf("Invalid isofilter value: %q", filter)}
	}
	var found []object
	for _, iso := range s.ISOs {
		zone := p.Get("zoneid")
		if iso.Hidden || iso.Name != p.Get("name") || zone != "" && iso.Zone != "" && iso.Zone != zone {
			continue
		}
		found = append(found, object{"id": iso.ID, "name": iso.Name, "isready": !iso.NotReady, "zoneid": iso.Zone, "zonename": nameOf(s.Zones, iso.Zone)})
	}
	return page(p, "iso", found)
}

func (s *Server) listVersions(p url.Values) (any, *apiError) {
	var found []object
	for _, v := range s.Versions {
		o := object{"id": v.ID, "name": v.Name, "semanticversion": v.Version, "isoid": v.ISO, "isostate": "Active", "state": v.State}
		if v.Zone != "" {
			o["zoneid"], o["zonename"] = v.Zone, nameOf(s.Zones, v.Zone)
		}
		if v.Arch != "" {
			o["arch"] = v.Arch
		}
		found = append(found, o)
	}
	return page(p, "kubernetessupportedversion", found)
}
