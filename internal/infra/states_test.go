package infra

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

// machinesNamed returns so many machines; with ids, CloudStack knows them by theirs.
func machinesNamed(n int, ids bool) (machines []Machine, vms []cloudstacktest.VM) {
	for i := range n {
		vm := cloudstacktest.VM{
			ID: fmt.Sprintf("11111111-1111-4111-8111-%012d", i), Name: fmt.Sprintf("w%d", i), State: "Running", Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/200, i%200+1)},
		}
		m := Machine{Cluster: "prod", Node: vm.Name, Addresses: vm.Addresses}
		if ids {
			m.ProviderID = "cloudstack:///" + vm.ID
		}
		machines, vms = append(machines, m), append(vms, vm)
	}
	return machines, vms
}

func TestCloudStackTellsManyStatesInAFewCalls(t *testing.T) {
	for _, ids := range []bool{true, false} {
		machines, vms := machinesNamed(250, ids)
		vms[7].State = "Stopped"
		server, p := cloud(t, nil, vms...)
		states, err := States(t.Context(), p, machines)
		require.NoError(t, err)
		require.Len(t, states, 250)
		for i, state := range states {
			want := Running
			if i == 7 {
				want = Stopped
			}
			require.Equal(t, want, state, i)
		}
		require.Len(t, server.Calls("listVirtualMachines"), 3, "one for each hundred")

		// One that CloudStack has never had is looked for by itself, and so are those beside it.
		unknown := machines[9]
		unknown.Node = "never"
		unknown.Addresses = []string{"10.9.9.9"}
		if ids {
			unknown.ProviderID = "cloudstack:///" + idK1
		}
		states, err = States(t.Context(), p, []Machine{machines[7], unknown, machines[8]})
		require.NoError(t, err)
		require.Equal(t, []State{Stopped, Gone, Running}, states)
	}
}

func TestExecTellsManyStatesInOneCall(t *testing.T) {
	dir := t.TempDir()
	list := func(script string) ([]State, error) {
		p, err := New(config.Infrastructure{Provider: "exec", Command: []string{"/bin/sh", "-c", script, "sh", dir}, States: true})
		require.NoError(t, err)
		return States(t.Context(), p, []Machine{w1, {Cluster: "prod", Node: "w2"}})
	}
	states, err := list(`cat > "$1/request"; echo '{"states":["stopped","running"]}'`)
	require.NoError(t, err)
	require.Equal(t, []State{Stopped, Running}, states)
	require.JSONEq(t, `{"version":1,"action":"states","machines":[
		{"cluster":"prod","node":"w1","uid":"u-1","providerID":"cloudstack:///vm-1","machineID":"abc","addresses":["10.0.0.4","fd00::4"]},
		{"cluster":"prod","node":"w2"}]}`, read(t, dir, "request"))

	const about = prefix + "states of 2 machines: "
	for script, want := range map[string]string{
		`echo '{"states":["stopped"]}'`:           "states has 1 items, want one for each machine",
		`echo '{"states":["stopped","melted"]}'`:  `state must be running, stopped, gone or unknown, not "melted"`,
		`echo '{"state":"running"}'`:              `stdout must be one JSON object such as {"states":["running","stopped"]}: json: unknown field "state"`,
		`echo "states is not known" >&2; exit 64`: "exit status 64: states is not known",
	} {
		_, err := list(script)
		require.EqualError(t, err, about+want)
	}
}

// Programs that are asked for one machine each run beside each other, and not all at once.
func TestExecIsAskedForManyMachinesAtATime(t *testing.T) {
	p, dir := shell(t, time.Minute, `mkdir "$1/$$"; ls "$1" | wc -l >> "$1.most"; sleep 0.3; rmdir "$1/$$"; echo '{"state":"running"}'`)
	t.Cleanup(func() { require.NoError(t, os.Remove(dir+".most")) })
	machines, _ := machinesNamed(40, false)
	began := time.Now()
	states, err := States(t.Context(), p, machines)
	require.NoError(t, err)
	require.Len(t, states, 40)
	require.Less(t, time.Since(began), 40*300*time.Millisecond, "one after another")
	most, err := os.ReadFile(dir + ".most")
	require.NoError(t, err)
	for _, n := range strings.Fields(string(most)) {
		var running int
		_, err := fmt.Sscan(n, &running)
		require.NoError(t, err)
		require.LessOrEqual(t, running, StatesAtOnce)
	}
	p, _ = shell(t, time.Minute, `exit 3`)
	_, err = States(t.Context(), p, machines)
	require.ErrorContains(t, err, "exit status 3")
}
