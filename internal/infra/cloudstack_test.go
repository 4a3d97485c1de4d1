package infra

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

// IDs of machines, w1 in the account itself.
const (
	idW1 = "11111111-1111-4111-8111-111111111111"
	idW2 = "22222222-2222-4222-8222-222222222222"
	idW3 = "33333333-3333-4333-8333-333333333333"
	idP1 = "aaaaaaaa-0000-4000-8000-000000000001" // a project
	idZ1 = "bbbbbbbb-0000-4000-8000-000000000001" // a zone
	idK1 = "cccccccc-0000-4000-8000-000000000001" // a Kubernetes cluster
)

func vmW1(change ...func(*cloudstacktest.VM)) cloudstacktest.VM {
	vm := cloudstacktest.VM{ID: idW1, Name: "w1", State: "Running", Addresses: []string{"10.0.0.4"}}
	for _, c := range change {
		c(&vm)
	}
	return vm
}

func in(state string) func(*cloudstacktest.VM) {
	return func(vm *cloudstacktest.VM) { vm.State = state }
}

// vmW2 is there so that the account is not empty.
var vmW2 = cloudstacktest.VM{ID: idW2, Name: "w2", State: "Running", Addresses: []string{"10.0.0.5"}}

// byName is known by the name and addresses of its node only, byIDOf by its provider ID.
var byName = Machine{Cluster: "prod", Node: "w1", Addresses: []string{"10.0.0.4", "fd00::4"}}

func byIDOf(id string) Machine {
	return Machine{Cluster: "prod", Node: "w1", ProviderID: "cloudstack:///zone-a/" + id}
}

// cloud returns a server and a provider that asks it.
func cloud(t *testing.T, change func(*config.Infrastructure), vms ...cloudstacktest.VM) (*cloudstacktest.Server, Provider) {
	t.Helper()
	server := cloudstacktest.Start(false, vms...)
	t.Cleanup(server.Close)
	cfg := config.Infrastructure{Provider: "cloudstack", Endpoint: server.Endpoint(), CredentialsFile: keyFile(t, cloudstacktest.SecretKey)}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	require.NoError(t, err)
	return server, p
}

func keyFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte("apiKey = "+cloudstacktest.APIKey+"\nsecretKey = "+secret+"\n"), 0o600))
	return path
}

func TestCloudStackStates(t *testing.T) {
	for state, want := range map[string]State{
		"Running": Running, "Migrating": Running, "Stopped": Stopped, "Destroyed": Gone, "Expunging": Gone, "Expunged": Gone,
		"Starting": Unknown, "Stopping": Unknown, "Error": Unknown, "Unknown": Unknown, "Shutdown": Unknown, "": Unknown,
	} {
		for _, m := range []Machine{byName, byIDOf(idW1)} {
			_, p := cloud(t, nil, vmW1(in(state)), vmW2)
			got, err := p.State(t.Context(), m)
			require.NoError(t, err)
			require.Equal(t, want, got, "%q, provider ID %q", state, m.ProviderID)
		}
	}
}

func TestCloudStackGone(t *testing.T) {
	for name, change := range map[string]func(*cloudstacktest.Server){
		"hidden from the account": func(s *cloudstacktest.Server) { s.HideDestroyed = true },
		"shown to the account":    func(*cloudstacktest.Server) {},
	} {
		for _, m := range []Machine{byName, byIDOf(idW1), byIDOf(idW3)} { // w3 was never there
			t.Run(name+" "+m.ProviderID, func(t *testing.T) {
				server, p := cloud(t, nil, vmW1(in("Destroyed")), vmW2)
				change(server)
				s, err := p.State(t.Context(), m)
				require.NoError(t, err)
				require.Equal(t, Gone, s)
				require.NoError(t, p.Destroy(t.Context(), m))
				require.NoError(t, driveOf(t, p).DetachISO(t.Context(), m, ISO{}))
				require.Empty(t, server.Calls("destroyVirtualMachine"))
				require.Empty(t, server.Calls("detachIso"))
			})
		}
	}
}

// 431 is "no such ID" from CloudStack, and "header too large" from a proxy.
func TestCloudStackGoneIsSaidByCloudStackOnly(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.RespondNext("listVirtualMachines", 431, "<html>header fields too large</html>")
	_, err := p.State(t.Context(), byIDOf(idW1))
	require.ErrorContains(t, err, "error 431: no reason given")
	require.False(t, Permanent(err))
}

func TestCloudStackDestroy(t *testing.T) {
	for _, c := range []struct {
		m       Machine
		expunge bool
		state   string
	}{{byName, false, "Destroyed"}, {byIDOf(idW1), true, "Expunging"}} {
		server, p := cloud(t, func(cfg *config.Infrastructure) { cfg.Expunge = c.expunge }, vmW1(), vmW2)
		server.JobPolls = 2
		require.NoError(t, p.Destroy(t.Context(), c.m))
		require.Equal(t, c.state, server.VM(idW1).State)
		require.Len(t, server.Calls("queryAsyncJobResult"), 3, "until the job has ended")
		require.NoError(t, p.Destroy(t.Context(), c.m), "again, after a lost answer")
		calls := server.Calls("destroyVirtualMachine")
		require.Len(t, calls, 1)
		require.Equal(t, idW1, calls[0].Get("id"))
		require.Equal(t, c.expunge, calls[0].Has("expunge"))
		require.Equal(t, "Running", server.VM(idW2).State)
	}
}

func TestCloudStackDestroyFails(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*cloudstacktest.Server)
		err       string
		permanent bool
	}{
		"the job fails": {func(s *cloudstacktest.Server) { s.JobError = "Unable to stop the VM" },
			"CloudStack destroyVirtualMachine: error 530: Unable to stop the VM", false},
		"the job fails, as old versions tell it": {func(s *cloudstacktest.Server) { s.JobError, s.JobErrorAsText = "Unable to stop", true },
			"CloudStack destroyVirtualMachine: error 530: Unable to stop", false},
		"busy": {func(s *cloudstacktest.Server) { s.FailNext("destroyVirtualMachine", 536, "in use") },
			"CloudStack destroyVirtualMachine: error 536: in use", false},
		"limit": {func(s *cloudstacktest.Server) { s.FailNext("destroyVirtualMachine", 429, "too fast") },
			"CloudStack destroyVirtualMachine: error 429: too fast", false},
		"a proxy": {func(s *cloudstacktest.Server) {
			s.RespondNext("destroyVirtualMachine", 502, "<html>bad gateway</html>")
		},
			"CloudStack destroyVirtualMachine: error 502: no reason given: it does not come from CloudStack itself", false},
		"a login page": {func(s *cloudstacktest.Server) { s.RespondNext("destroyVirtualMachine", 200, "<html>log in</html>") },
			"CloudStack destroyVirtualMachine: the answer is not one of the CloudStack API: check infrastructure.endpoint, and what stands before it", false},
		"a redirect": {func(s *cloudstacktest.Server) { s.RespondNext("destroyVirtualMachine", 302, "moved") },
			"CloudStack destroyVirtualMachine: error 302: no reason given: it does not come from CloudStack itself", false},
		"a proxy, with a code of CloudStack's": {func(s *cloudstacktest.Server) { s.RespondNext("destroyVirtualMachine", 401, "log in first") },
			"CloudStack destroyVirtualMachine: error 401: no reason given: it does not come from CloudStack itself", false},
		"no job": {func(s *cloudstacktest.Server) {
			s.RespondNext("destroyVirtualMachine", 200, `{"destroyvirtualmachineresponse":{}}`)
		}, "CloudStack destroyVirtualMachine: it was answered without a job", false},
		"not allowed": {func(s *cloudstacktest.Server) { s.FailNext("destroyVirtualMachine", 531, "no permission") },
			"CloudStack destroyVirtualMachine: error 531: no permission", true},
		"not for this role": {func(s *cloudstacktest.Server) { s.FailNext("destroyVirtualMachine", 432, "not available for user") },
			"CloudStack destroyVirtualMachine: error 432: not available for user", true},
		"the job may not be seen": {func(s *cloudstacktest.Server) { s.FailNext("queryAsyncJobResult", 531, "not yours") },
			"CloudStack queryAsyncJobResult: error 531: not yours", true},
	} {
		t.Run(name, func(t *testing.T) {
			server, p := cloud(t, nil, vmW1(), vmW2)
			server.JobPolls = -1
			if server.JobError == "" {
				c.change(server)
			}
			if server.JobError != "" {
				server.JobPolls = 1
			}
			err := p.Destroy(t.Context(), byName)
			require.EqualError(t, err, "destroy of the machine of node w1: "+c.err)
			require.Equal(t, c.permanent, Permanent(err))
		})
	}
}

// A cluster that CloudStack manages gives no machine away to others: said once,
// and not tried for minutes.
func TestCloudStackDestroyInAManagedCluster(t *testing.T) {
	const refusal = "Instance is a part of a Kubernetes cluster: k1"
	for kind, permanent := range map[string]bool{"CloudManaged": true, "ExternalManaged": false} {
		server, p := cloud(t, func(cfg *config.Infrastructure) { cfg.KubernetesCluster = idK1 }, vmW1(), vmW2)
		server.Clusters = []cloudstacktest.KubernetesCluster{{ID: idK1, Name: "k1", Type: kind, VMs: []string{idW1, idW2}}}
		server.JobError = refusal
		err := p.Destroy(t.Context(), byName)
		require.ErrorContains(t, err, "error 530: "+refusal)
		require.Equal(t, permanent, Permanent(err), kind)
		if permanent {
			require.ErrorContains(t, err, "scaleKubernetesCluster: name this one to it, in nodeids")
		}
		server.Update(func(s *cloudstacktest.Server) { s.JobError = "" })
		server.FailNext("destroyVirtualMachine", 503, "restarting")
		require.False(t, Permanent(p.Destroy(t.Context(), byName)), kind)
	}
}

// A lost answer is not a failure when the machine is going all the same.
func TestCloudStackDestroyLosesItsAnswer(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		server, p := cloud(t, nil, vmW1(), vmW2)
		server.HideDestroyed = hidden
		server.DropNext("destroyVirtualMachine")
		require.NoError(t, p.Destroy(t.Context(), byName))
		require.Len(t, server.Calls("destroyVirtualMachine"), 1)
	}
}

// When it cannot be told, the caller asks again and finds the machine going.
func TestCloudStackDestroyFindsWhatAnEarlierCallDid(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.JobPolls = 1
	server.DropNext("destroyVirtualMachine")
	err := p.Destroy(t.Context(), byIDOf(idW1))
	require.ErrorContains(t, err, "destroy of the machine of node w1: CloudStack destroyVirtualMachine: ")
	require.False(t, Permanent(err), "%v", err)
	require.NoError(t, p.Destroy(t.Context(), byIDOf(idW1)))
	require.Len(t, server.Calls("destroyVirtualMachine"), 1)
}

// The machine may be gone by the time that CloudStack looks at the order.
func TestCloudStackDestroyWhenAnotherWasFaster(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.JobPolls = 2
	server.DropNext("destroyVirtualMachine")
	require.Error(t, p.Destroy(t.Context(), byName), "its job runs on")
	server.FailNext("destroyVirtualMachine", 431, "the VM is not there any more")
	require.NoError(t, p.Destroy(t.Context(), byName))
	require.Len(t, server.Calls("destroyVirtualMachine"), 2)
}
