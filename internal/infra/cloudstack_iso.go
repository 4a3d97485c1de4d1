package infra

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

// executableISOs are, for listIsos, those that an account may attach: its own, and those
// that are shared or public.
const executableISOs = "executable"

// versionEnabled is the state of a Kubernetes version that may be used.
const versionEnabled = "Enabled"

// AttachISO implements ISODrive.
func (c *cloudStack) AttachISO(ctx context.Context, m Machine, iso ISO) error {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	vm, err := s.findVM(m)
	switch {
	case err != nil:
	case vm == nil || machineState(vm.State) == Gone:
		err = permanentf("it does not exist any more")
	default:
		err = s.insert(vm, iso)
	}
	return wrapMachineError("attach the ISO of "+iso.Version, m, err)
}

// insert puts an ISO into the drive of a VM, in place of that of another version.
func (s *session) insert(vm *cloudstack.VirtualMachine, iso ISO) error {
	drive, err := s.newDrive(vm, iso)
	if err != nil {
		return err
	}
	wanted, err := drive.wanted()
	if err != nil || vm.Isoid == wanted {
		return err
	}
	if err := requireSteady(vm); err != nil {
		return err
	}
	if vm.Isoid != "" {
		if !drive.ours() {
			return permanentf("VM %s has another ISO attached, %s (%s), which is of no Kubernetes version: detach it first", vm.Name, vm.Isoname, vm.Isoid)
		}
		if err := s.eject(vm); err != nil {
			return err
		}
	}
	return s.recheck(vm.Id, s.attachISO(wanted, vm.Id), func(now *cloudstack.VirtualMachine) bool {
		return now != nil && now.Isoid == wanted
	})
}

// DetachISO implements ISODrive.
func (c *cloudStack) DetachISO(ctx context.Context, m Machine, iso ISO) error {
	s, closeSession := c.newSession(ctx)
	defer closeSession()
	vm, err := s.findVM(m)
	if err == nil && vm != nil && machineState(vm.State) != Gone && vm.Isoid != "" {
		err = s.takeOut(vm, iso)
	}
	return wrapMachineError("detach the ISO", m, err)
}

// takeOut empties the drive of a VM, unless what is in it is of no Kubernetes version and
// iso is not zero.
func (s *session) takeOut(vm *cloudstack.VirtualMachine, iso ISO) error {
	if iso != (ISO{}) {
		drive, err := s.newDrive(vm, iso)
		if err != nil || !drive.ours() {
			return err
		}
	}
	if err := requireSteady(vm); err != nil {
		return err
	}
	return s.eject(vm)
}

// requireSteady returns an error, after which another try may succeed, when CloudStack
// changes no ISO of a VM in its present state.
func requireSteady(vm *cloudstack.VirtualMachine) error {
	if vm.State != "Running" && vm.State != "Stopped" {
		return fmt.Errorf("VM %s is %s: CloudStack changes the ISO of one that is Running or Stopped", vm.Name, vm.State)
	}
	return nil
}

// drive is the drive of a VM, for which an ISO is looked for.
type drive struct {
	*session
	vm       *cloudstack.VirtualMachine
	iso      ISO
	versions []*cloudstack.KubernetesSupportedVersion // all that the account sees
}

// newDrive returns the drive of a VM. The Kubernetes versions of CloudStack are asked for
// when something may depend on them: an account may not be allowed to see them, and then
// upgrade.iso names the ISO.
func (s *session) newDrive(vm *cloudstack.VirtualMachine, iso ISO) (drive, error) {
	d := drive{session: s, vm: vm, iso: iso}
	var err error
	d.versions, err = s.listVersions()
	if iso.Name != "" && hasCode(err, codeUnsupportedAction) {
		err = nil
	}
	return d, err
}

func (s *session) listVersions() ([]*cloudstack.KubernetesSupportedVersion, error) {
	params := s.api.Kubernetes.NewListKubernetesSupportedVersionsParams()
	return listPages(s, "listKubernetesSupportedVersions", params, func() ([]*cloudstack.KubernetesSupportedVersion, int, error) {
		got, err := s.api.Kubernetes.ListKubernetesSupportedVersions(params)
		if err != nil {
			return nil, 0, err
		}
		return got.KubernetesSupportedVersions, got.Count, nil
	})
}

// ours reports whether what is in the drive is the ISO of a Kubernetes version.
func (d drive) ours() bool {
	of := func(v *cloudstack.KubernetesSupportedVersion) bool { return v.Isoid == d.vm.Isoid }
	return slices.ContainsFunc(d.versions, of) || d.vm.Isoid == d.iso.name() || d.iso.isOfAVersion(d.vm.Isoname)
}

// wanted returns the ID of the ISO.
func (d drive) wanted() (string, error) {
	switch name := d.iso.name(); {
	case name == "":
		return d.ofVersion()
	case cloudstack.IsID(name):
		return name, nil
	default:
		return d.named(name)
	}
}

// ofVersion returns the ID of the ISO of the Kubernetes version of CloudStack that the VM
// is to be upgraded to, in its zone and for its processor.
func (d drive) ofVersion() (string, error) {
	var fit, disabled []*cloudstack.KubernetesSupportedVersion
	for _, v := range d.versions {
		switch {
		case strings.TrimPrefix(v.Semanticversion, "v") != d.iso.Version, !agree(v.Zoneid, d.vm.Zoneid), !agree(v.Arch, d.vm.Arch):
		case v.State != versionEnabled:
			disabled = append(disabled, v)
		default:
			fit = append(fit, v)
		}
	}
	switch {
	case len(fit) == 1 && fit[0].Isoid != "":
		return fit[0].Isoid, nil
	case len(fit) == 1:
		return "", permanentf("Kubernetes version %s of CloudStack (%s) has no ISO any more: register it anew", d.iso.Version, fit[0].Id)
	case len(fit) > 1:
		return "", permanentf("CloudStack has %d Kubernetes versions %s for zone %s, such as %s and %s: name the ISO with upgrade.iso",
			len(fit), d.iso.Version, d.vm.Zonename, fit[0].Name, fit[1].Name)
	case len(disabled) > 0:
		return "", permanentf("Kubernetes version %s of CloudStack (%s) is %s: enable it (updateKubernetesSupportedVersion)", d.iso.Version, disabled[0].Name, disabled[0].State)
	}
	return "", permanentf("CloudStack shows these keys no Kubernetes version %s for zone %s, but %s: register its ISO (addKubernetesSupportedVersion) or name one with upgrade.iso",
		d.iso.Version, d.vm.Zonename, d.known())
}

// agree reports whether two values are the same, or one is not given.
func agree(a, b string) bool { return a == "" || b == "" || a == b }

// known returns the versions that there are, for an error message.
func (d drive) known() string {
	var all []string
	for _, v := range d.versions {
		all = append(all, v.Semanticversion)
	}
	if len(all) == 0 {
		return "none at all"
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// named returns the ID of the ISO with a name that may be attached to the VM.
func (d drive) named(name string) (string, error) {
	params := d.api.ISO.NewListIsosParams()
	params.SetName(name)
	params.SetIsofilter(executableISOs)
	params.SetListall(true)
	if d.vm.Zoneid != "" {
		params.SetZoneid(d.vm.Zoneid)
	}
	listed, err := listPages(d.session, "listIsos", params, func() ([]*cloudstack.Iso, int, error) {
		got, err := d.api.ISO.ListIsos(params)
		if err != nil {
			return nil, 0, err
		}
		return got.Isos, got.Count, nil
	})
	if err != nil {
		return "", err
	}
	ids := map[string]bool{}
	for _, iso := range listed {
		if iso.Name == name {
			ids[iso.Id] = iso.Isready
		}
	}
	for id, ready := range ids {
		switch {
		case len(ids) > 1:
			return "", permanentf("upgrade.iso: these keys show %d ISOs that are called %s: use the ID", len(ids), name)
		case !ready:
			return "", fmt.Errorf("ISO %s (%s) is not ready in zone %s yet", name, id, d.vm.Zonename)
		}
		return id, nil
	}
	return "", permanentf("upgrade.iso: these keys show no ISO in zone %s that is called %s", d.vm.Zonename, name)
}

// attachISO attaches an ISO to a VM and waits for the job.
func (s *session) attachISO(iso, vm string) error {
	const command = "attachIso"
	started, err := invoke(s, command, func() (*cloudstack.AttachIsoResponse, error) {
		return s.api.ISO.AttachIso(s.api.ISO.NewAttachIsoParams(iso, vm))
	})
	if err != nil {
		return err
	}
	return s.waitForJob(command, started.JobID)
}

// eject detaches the ISO of a VM and waits for the job.
func (s *session) eject(vm *cloudstack.VirtualMachine) error {
	return s.recheck(vm.Id, s.detachISO(vm.Id), func(now *cloudstack.VirtualMachine) bool {
		return now == nil || now.Isoid == ""
	})
}

// detachISO detaches the ISO of a VM and waits for the job.
func (s *session) detachISO(id string) error {
	const command = "detachIso"
	started, err := invoke(s, command, func() (*cloudstack.DetachIsoResponse, error) {
		return s.api.ISO.DetachIso(s.api.ISO.NewDetachIsoParams(id))
	})
	if err != nil {
		return err
	}
	return s.waitForJob(command, started.JobID)
}
