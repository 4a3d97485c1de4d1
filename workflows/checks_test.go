package workflows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/clusterstate"
	"ebb/internal/operation"
	"ebb/internal/version"
)

const objection = "default/web-1 on w3: blocked by budget default/web: it never allows an eviction"

// What speaks against the drains of all nodes is found before the first is touched, and
// refused when that was asked for.
func TestDrainsAreCheckedBeforeTheFirst(t *testing.T) {
	for name, c := range map[string]struct {
		state   clusterstate.State
		target  version.Version
		expect  func(w *world)
		run, in any
		checked string
	}{
		"scale-down": {state: clusterstate.Scaling, run: ScaleDown, in: operation.ScaleDownInput{Cluster: "prod", Nodes: []string{"w2", "w3"}, Strict: true},
			expect: func(w *world) { w.machinesAre(false, w2, w3); w.roomFor(w2, w3) }, checked: "check w2 w3"},
		"drain": {state: clusterstate.Draining, run: Drain, in: operation.DrainInput{Cluster: "prod", Nodes: []string{"w3"}, Strict: true},
			expect: func(*world) {}, checked: "check w3"},
		"upgrade": {state: clusterstate.Upgrading, target: target, run: Upgrade, in: operation.UpgradeInput{Cluster: "prod", Route: version.Route{Target: target}, Strict: true},
			expect: func(w *world) { w.fit(everyNode...) }, checked: "check cp1 w1 w2 w3"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.objections = []string{objection}
			w.claims(c.state, clusterstate.Running, c.target, settingsOf(everyNode))
			c.expect(w)
			w.releases(clusterstate.Running)

			w.env.ExecuteWorkflow(c.run, c.in)

			kind, text := w.ended()
			require.Equal(t, operation.TypeRefused, kind)
			require.Contains(t, text, "because of --strict: "+objection)
			require.Equal(t, []string{c.checked}, w.called("check", "cordon", "stage", "drain"))
		})
	}
}

func TestObjectionsAreAWarning(t *testing.T) {
	w := newWorld(t)
	w.objections = []string{objection, "another"}
	w.claims(clusterstate.Draining, clusterstate.Running, "", settingsOf(everyNode))
	w.cordons(w3)
	w.drainSettings()
	w.drainsWell(w3)
	w.releases(clusterstate.Running)

	w.env.ExecuteWorkflow(Drain, operation.DrainInput{Cluster: "prod", Nodes: []string{"w3"}})

	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, objection+"; another", w.status().Warning)
	require.Equal(t, []string{"check w3", "cordon w3", "drain w3"}, w.called("check", "cordon", "drain"))
}
