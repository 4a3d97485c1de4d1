package infra

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

// IDs of ISOs.
const (
	isoOf136  = "dddddddd-0000-4000-8000-000000000136"
	isoOf137  = "dddddddd-0000-4000-8000-000000000137"
	isoRescue = "dddddddd-0000-4000-8000-000000000001"
	idZ2      = "bbbbbbbb-0000-4000-8000-000000000002" // another zone
)

var the137 = ISO{Version: "1.37.2"}

func driveOf(t *testing.T, p Provider) ISODrive {
	t.Helper()
	drive, ok := p.(ISODrive)
	require.True(t, ok)
	return drive
}

// withISOs returns a CloudStack that has two Kubernetes versions and another ISO, and
// machine w1 with one of them attached ("" = none).
func withISOs(t *testing.T, attached string, change ...func(*cloudstacktest.VM)) (*cloudstacktest.Server, ISODrive) {
	t.Helper()
	change = append(change, func(vm *cloudstacktest.VM) { vm.ISO, vm.Zone, vm.Arch = attached, idZ1, "x86_64" })
	other := vmW2
	other.Zone = idZ1
	server, p := cloud(t, nil, vmW1(change...), other)
	server.Zones = []cloudstacktest.NamedResource{{ID: idZ1, Name: "zone-a"}, {ID: idZ2, Name: "zone-b"}}
	server.ISOs = []cloudstacktest.ISO{
		{ID: isoOf136, Name: "setup-v1.36.3"}, {ID: isoOf137, Name: "setup-v1.37.2"}, {ID: isoRescue, Name: "rescue"},
		{ID: "elsewhere", Name: "rescue", Zone: idZ2}, {ID: "private", Name: "mine", Hidden: true}, {ID: "late", Name: "late", NotReady: true},
		{ID: "one", Name: "twice"}, {ID: "two", Name: "twice"},
	}
	server.Versions = []cloudstacktest.KubernetesVersion{
		{ID: "v136", Name: "v1.36.3", Version: "1.36.3", ISO: isoOf136, State: "Enabled"},
		{ID: "v137b", Name: "v1.37.2 of zone-b", Version: "1.37.2", ISO: "elsewhere", Zone: idZ2, State: "Enabled"},
		{ID: "v137arm", Name: "v1.37.2 arm", Version: "1.37.2", ISO: "arm", Arch: "aarch64", State: "Enabled"},
		{ID: "v137off", Name: "v1.37.2 old", Version: "1.37.2", ISO: "old", State: "Disabled"},
		{ID: "v137", Name: "v1.37.2", Version: "1.37.2", ISO: isoOf137, Zone: idZ1, Arch: "x86_64", State: "Enabled"},
		{ID: "v138", Name: "v1.38.1", Version: "1.38.1", ISO: "off", State: "Disabled"},
		{ID: "v139", Name: "v1.39.0", Version: "1.39.0", State: "Enabled"},
		{ID: "v140a", Name: "v1.40.1 a", Version: "1.40.1", ISO: "a", State: "Enabled"}, {ID: "v140b", Name: "v1.40.1 b", Version: "1.40.1", ISO: "b", State: "Enabled"},
	}
	return server, driveOf(t, p)
}

func TestCloudStackAttachISO(t *testing.T) {
	t.Run("none is attached", func(t *testing.T) {
		server, drive := withISOs(t, "")
		server.JobPolls = 2
		for range 2 { // the answer to the first may be lost
			require.NoError(t, drive.AttachISO(t.Context(), byName, the137))
		}
		require.Equal(t, isoOf137, server.VM(idW1).ISO)
		calls := server.Calls("attachIso")
		require.Len(t, calls, 1, "it is attached the second time")
		require.Equal(t, idW1, calls[0].Get("virtualmachineid"))
		require.Equal(t, isoOf137, calls[0].Get("id"))
		require.Empty(t, server.Calls("detachIso"))
		require.Empty(t, server.VM(idW2).ISO)
	})
	t.Run("that of another version is", func(t *testing.T) {
		server, drive := withISOs(t, isoOf136)
		server.JobPolls = 1
		require.NoError(t, drive.AttachISO(t.Context(), byName, the137))
		require.Equal(t, isoOf137, server.VM(idW1).ISO)
		require.Len(t, server.Calls("detachIso"), 1)
	})
	t.Run("another one is", func(t *testing.T) {
		server, drive := withISOs(t, isoRescue)
		err := drive.AttachISO(t.Context(), byName, the137)
		require.EqualError(t, err, "attach the ISO of 1.37.2 of the machine of node w1: VM w1 has another ISO attached, rescue ("+isoRescue+"), which is of no Kubernetes version: detach it first")
		require.True(t, Permanent(err))
		require.Equal(t, isoRescue, server.VM(idW1).ISO)
	})
	t.Run("the answer is lost", func(t *testing.T) {
		server, drive := withISOs(t, "")
		server.DropNext("attachIso")
		require.NoError(t, drive.AttachISO(t.Context(), byName, the137))
		require.Equal(t, isoOf137, server.VM(idW1).ISO)
	})
	t.Run("the job fails", func(t *testing.T) {
		server, drive := withISOs(t, "")
		server.JobError = "Failed to attach ISO"
		err := drive.AttachISO(t.Context(), byName, the137)
		require.EqualError(t, err, "attach the ISO of 1.37.2 of the machine of node w1: CloudStack attachIso: error 530: Failed to attach ISO")
		require.False(t, Permanent(err))
	})
	t.Run("the machine migrates", func(t *testing.T) {
		server, drive := withISOs(t, "", in("Migrating"))
		err := drive.AttachISO(t.Context(), byName, the137)
		require.ErrorContains(t, err, "VM w1 is Migrating: CloudStack changes the ISO of one that is Running or Stopped")
		require.False(t, Permanent(err))
		require.Empty(t, server.Calls("attachIso"))
	})
	t.Run("the machine is gone", func(t *testing.T) {
		_, drive := withISOs(t, "", in("Destroyed"))
		err := drive.AttachISO(t.Context(), byName, the137)
		require.ErrorContains(t, err, "it does not exist any more")
		require.True(t, Permanent(err))
	})
}

// Which ISO it is: that of the Kubernetes version of CloudStack, in the machine's zone and
// for its processor, or the one that upgrade.iso names.
func TestCloudStackISOOfAVersion(t *testing.T) {
	for name, c := range map[string]struct {
		iso       ISO
		attached  string // afterwards
		err       string
		temporary bool
	}{
		"of the version":       {the137, isoOf137, "", false},
		"by ID":                {ISO{Version: "1.38.1", Name: isoOf136}, isoOf136, "", false},
		"by name":              {ISO{Version: "1.38.1", Name: "rescue"}, isoRescue, "", false},
		"by the name it makes": {ISO{Version: "1.36.3", Name: "setup-v{version}"}, isoOf136, "", false},
		"no such version": {ISO{Version: "1.41.0"}, "", "CloudStack shows these keys no Kubernetes version 1.41.0 for zone zone-a, but 1.36.3, 1.37.2, 1.38.1, 1.39.0, 1.40.1: " +
			"register its ISO (addKubernetesSupportedVersion) or name one with upgrade.iso", false},
		"disabled":      {ISO{Version: "1.38.1"}, "", "Kubernetes version 1.38.1 of CloudStack (v1.38.1) is Disabled: enable it (updateKubernetesSupportedVersion)", false},
		"without ISO":   {ISO{Version: "1.39.0"}, "", "Kubernetes version 1.39.0 of CloudStack (v139) has no ISO any more: register it anew", false},
		"several":       {ISO{Version: "1.40.1"}, "", "CloudStack has 2 Kubernetes versions 1.40.1 for zone zone-a, such as v1.40.1 a and v1.40.1 b: name the ISO with upgrade.iso", false},
		"no such name":  {ISO{Version: "1.37.2", Name: "setup-{version}"}, "", "upgrade.iso: these keys show no ISO in zone zone-a that is called setup-1.37.2", false},
		"not shared":    {ISO{Version: "1.37.2", Name: "mine"}, "", "upgrade.iso: these keys show no ISO in zone zone-a that is called mine", false},
		"of two":        {ISO{Version: "1.37.2", Name: "twice"}, "", "upgrade.iso: these keys show 2 ISOs that are called twice: use the ID", false},
		"not there yet": {ISO{Version: "1.37.2", Name: "late"}, "", "ISO late (late) is not ready in zone zone-a yet", true},
		"no such ID":    {ISO{Version: "1.37.2", Name: idP1}, "", "CloudStack attachIso: error 431: Unable to execute API command attachiso due to invalid value. Invalid parameter id value=" + idP1, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, drive := withISOs(t, "")
			err := drive.AttachISO(t.Context(), byName, c.iso)
			require.Equal(t, c.attached, server.VM(idW1).ISO)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "attach the ISO of "+c.iso.Version+" of the machine of node w1: "+c.err)
			require.Equal(t, c.temporary, !Permanent(err))
		})
	}
}

// An account that may not see the Kubernetes versions names the ISO itself.
func TestCloudStackISOWithoutVersions(t *testing.T) {
	server, drive := withISOs(t, "")
	server.FailNext("listKubernetesSupportedVersions", 432, "not available for user", "not available for user")
	require.NoError(t, drive.AttachISO(t.Context(), byName, ISO{Version: "1.37.2", Name: "setup-v{version}"}))
	require.Equal(t, isoOf137, server.VM(idW1).ISO)
	err := drive.AttachISO(t.Context(), byName, the137)
	require.ErrorContains(t, err, "CloudStack listKubernetesSupportedVersions: error 432")
	require.True(t, Permanent(err))

	server.FailNext("listKubernetesSupportedVersions", 432, "not available for user")
	require.NoError(t, drive.AttachISO(t.Context(), byName, ISO{Version: "1.36.3", Name: "setup-v{version}"}), "that of another version goes by its name")
	require.Equal(t, isoOf136, server.VM(idW1).ISO)
}

func TestCloudStackDetachISO(t *testing.T) {
	t.Run("whatever it is", func(t *testing.T) {
		server, drive := withISOs(t, isoRescue)
		server.JobPolls = 1
		for range 2 {
			require.NoError(t, drive.DetachISO(t.Context(), byName, ISO{}))
		}
		require.Empty(t, server.VM(idW1).ISO)
		calls := server.Calls("detachIso")
		require.Len(t, calls, 1, "none is attached the second time")
		require.Equal(t, idW1, calls[0].Get("virtualmachineid"))
	})
	t.Run("of this version or another", func(t *testing.T) {
		for attached, left := range map[string]string{isoOf137: "", isoOf136: "", isoRescue: isoRescue} {
			server, drive := withISOs(t, attached)
			require.NoError(t, drive.DetachISO(t.Context(), byName, the137))
			require.Equal(t, left, server.VM(idW1).ISO, "what is of no version was not attached by Ebb")
		}
	})
	t.Run("none", func(t *testing.T) {
		server, drive := withISOs(t, "")
		require.NoError(t, drive.DetachISO(t.Context(), byName, the137))
		require.Empty(t, server.Calls("detachIso"))
		require.Empty(t, server.Calls("listKubernetesSupportedVersions"))
	})
	t.Run("lost answer", func(t *testing.T) {
		server, drive := withISOs(t, isoOf137)
		server.DropNext("detachIso")
		require.NoError(t, drive.DetachISO(t.Context(), byName, the137))
		require.Empty(t, server.VM(idW1).ISO)
	})
	t.Run("fails", func(t *testing.T) {
		server, drive := withISOs(t, isoOf137)
		server.JobError = "the host is away"
		require.EqualError(t, drive.DetachISO(t.Context(), byName, the137), "detach the ISO of the machine of node w1: CloudStack detachIso: error 530: the host is away")
	})
}

func TestISOOfAVersion(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"setup-v{version}", "setup-v1.36.3", true}, {"setup-{version}", "setup-v1.36.3", true}, {"setup-v{version}", "setup-v1.37.0-rc.1", true},
		{"k8s {version}.iso", "k8s 1.36.3.iso", true}, {"setup-v{version}", "setup-v1.36", false}, {"setup-v{version}", "my setup-v1.36.3", false},
		{"binaries", "binaries", true}, {"binaries", "binaries of another", false}, {"", "", false}, {"s.{version}", "sx1.36.3", false},
	} {
		require.Equal(t, c.want, ISO{Version: "1.37.2", Name: c.pattern}.isOfAVersion(c.name), "%s: %s", c.pattern, c.name)
	}
}

func TestExecISO(t *testing.T) {
	provider, err := New(config.Infrastructure{Provider: "exec", Command: []string{"sh", "-c", "cat >&2; exit 3"}})
	require.NoError(t, err)
	drive, m := driveOf(t, provider), Machine{Cluster: "prod", Node: "w1"}
	require.ErrorContains(t, drive.AttachISO(t.Context(), m, ISO{Version: "1.37.2", Name: "setup-v{version}"}),
		`{"version":1,"action":"attach-iso","machine":{"cluster":"prod","node":"w1"},"iso":{"version":"1.37.2","name":"setup-v1.37.2"}}`)
	require.ErrorContains(t, drive.DetachISO(t.Context(), m, the137), `"action":"detach-iso","machine":{"cluster":"prod","node":"w1"},"iso":{"version":"1.37.2"}}`)
	require.ErrorIs(t, drive.DetachISO(t.Context(), m, ISO{}), errors.ErrUnsupported, "it was told to attach none")

	require.False(t, Permanent(drive.AttachISO(t.Context(), m, the137)))

	provider, err = New(config.Infrastructure{Provider: "exec", Command: []string{"sh", "-c", "echo there is no ISO of it >&2; exit 78"}})
	require.NoError(t, err)
	err = driveOf(t, provider).AttachISO(t.Context(), m, the137)
	require.ErrorContains(t, err, "attach-iso of the machine of node w1: exit status 78: there is no ISO of it")
	require.True(t, Permanent(err))

	provider, err = New(config.Infrastructure{Provider: "exec", Command: []string{"true"}})
	require.NoError(t, err)
	require.NoError(t, driveOf(t, provider).AttachISO(t.Context(), m, the137), "nothing need be printed")
}
