package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"ebb/internal/clusterstate"
	"ebb/internal/drain"
	"ebb/internal/forecast"
	"ebb/internal/operation"
	"ebb/internal/ops"
	"ebb/internal/policy"
	kubeversion "ebb/internal/version"
)

var _ ops.Client = (*fakeOps)(nil)

// fakeOps plays an operation that goes through these looks.
type fakeOps struct {
	looks   []ops.Operation
	started []ops.Request
	exists  bool
	filter  ops.Filter
	notNow  string // why an action is refused
	log     []ops.Event
	events  ops.EventFilter
}

func (f *fakeOps) Start(_ context.Context, r ops.Request) (ops.Operation, bool, error) {
	f.started = append(f.started, r)
	return ops.Operation{Request: r, State: ops.Running, Started: began}, !f.exists, nil
}

func (f *fakeOps) Get(_ context.Context, id string) (ops.Operation, error) {
	if len(f.looks) == 0 {
		return ops.Operation{}, &ops.UnknownError{ID: id}
	}
	return f.looks[len(f.looks)-1], nil
}

func (f *fakeOps) List(_ context.Context, filter ops.Filter) ([]ops.Operation, error) {
	f.filter = filter
	return f.looks, nil
}

func (f *fakeOps) Cancel(context.Context, string) error { return nil }

func (f *fakeOps) Steer(_ context.Context, id string, s ops.Steering) (string, error) {
	if f.notNow != "" {
		return "", &ops.NotNowError{ID: id, Reason: f.notNow}
	}
	return strings.TrimSpace(string(s.Action) + " " + s.Node), nil
}

func (f *fakeOps) Events(_ context.Context, _ string, filter ops.EventFilter, each func(ops.Event) error) error {
	f.events = filter
	for _, e := range f.log {
		if filter.Node == "" || filter.Node == e.Node {
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fakeOps) Watch(ctx context.Context, _ string, changed func(ops.Operation)) error {
	for _, op := range f.looks {
		changed(op)
	}
	if !f.looks[len(f.looks)-1].State.Over() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func execute(t *testing.T, f *fakeOps, args ...string) (code int, out, errs string) {
	t.Helper()
	return executeIn(t.Context(), f, args...)
}

func executeIn(ctx context.Context, f *fakeOps, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = run(ctx, &app{out: &stdout, errs: &stderr, ops: f}, args)
	return code, stdout.String(), stderr.String()
}

func ended(state ops.State, message string) []ops.Operation {
	return []ops.Operation{upgrading(), {Request: upgrading().Request, State: state, RolledBack: state == ops.RolledBack,
		Message: message, Started: began, Ended: began.Add(9e9)}}
}

func TestUpgradeIsFollowedToItsEnd(t *testing.T) {
	f := &fakeOps{looks: ended(ops.Done, "")}
	code, out, errs := execute(t, f, "upgrade", "prod", "--to", "1.37.2", "--id", "up-1")
	require.Equal(t, 0, code, errs)
	require.Equal(t, []ops.Request{{ID: "up-1", Kind: operation.KindUpgrade, Cluster: "prod", Route: kubeversion.Route{Target: "1.37.2"}}}, f.started)
	require.Contains(t, out, "  upgrade of prod to 1.37.2 (operation up-1)\n")
	require.Contains(t, out, "done in 9s")
	require.Empty(t, errs)
}

func TestOutcomeIsTheExitCodeAndOnStderr(t *testing.T) {
	for state, want := range map[ops.State]int{ops.Failed: 1, ops.Refused: 3, ops.RolledBack: 4} {
		code, out, errs := execute(t, &fakeOps{looks: ended(state, "because")}, "watch", "up-1")
		require.Equal(t, want, code)
		require.Contains(t, errs, ": because")
		require.NotContains(t, out, "because")
	}
}

func TestJSONIsOneObjectALineAndTheLastHasTheOutcome(t *testing.T) {
	code, out, _ := execute(t, &fakeOps{looks: ended(ops.RolledBack, "because")}, "watch", "up-1", "-o", "json")
	require.Equal(t, 4, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	var last ops.Operation
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &last))
	require.Equal(t, ops.RolledBack, last.State)
	require.Equal(t, "up-1", last.ID)
}

func TestDetachPrintsTheID(t *testing.T) {
	f := &fakeOps{}
	code, out, errs := execute(t, f, "drain", "prod", "w1", "w2", "--detach")
	require.Equal(t, 0, code, errs)
	require.Regexp(t, `^drain-prod-\d{8}-\d{6}-[0-9a-f]{4}\n$`, out)
	require.Equal(t, []string{"w1", "w2"}, f.started[0].Nodes)
}

func TestExistingOperationIsSaidToBeThat(t *testing.T) {
	code, _, errs := execute(t, &fakeOps{exists: true}, "scale-down", "prod", "--count", "2", "--detach", "--id", "x")
	require.Equal(t, 0, code)
	require.Contains(t, errs, "operation x exists already")
}

func TestStoppingSaysHowToGoOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, errs := executeIn(ctx, &fakeOps{looks: []ops.Operation{upgrading()}}, "watch", "up-1")
	require.Equal(t, 130, code)
	require.Contains(t, errs, "ebb watch up-1")
	require.Contains(t, errs, "ebb cancel up-1")
}

func TestUsage(t *testing.T) {
	for _, args := range []string{
		"reboot", "upgrade", "upgrade prod", "upgrade prod --to 1.37", "upgrade a b --to 1.37.2", "upgrade prod --to 1.37.2 --nope",
		"scale-down prod", "scale-down prod --count 1 --nodes w1", "scale-down prod --count 0", "drain prod", "list --kind reboot",
		"watch", "watch a -o yaml", "clusters nope", "upgrade prod --to 1.37.2 --id a/b",
	} {
		f := &fakeOps{}
		code, _, errs := execute(t, f, strings.Fields(args)...)
		require.Equal(t, 2, code, "%s: %s", args, errs)
		require.True(t, strings.HasPrefix(errs, "ebb: "), errs)
		require.Empty(t, f.started, args)
	}
}

func TestList(t *testing.T) {
	f := &fakeOps{looks: ended(ops.RolledBack, "")[1:]}
	code, out, _ := execute(t, f, "list", "--cluster", "prod", "--kind", "scale-down", "--open")
	require.Equal(t, 0, code)
	require.Equal(t, ops.Filter{Cluster: "prod", Kind: operation.KindScaleDown, Open: true}, f.filter)
	lines := strings.Split(out, "\n")
	require.Regexp(t, `^OPERATION  WHAT +STATE +STARTED +TOOK$`, lines[0])
	require.Regexp(t, `^up-1 +upgrade of prod to 1.37.2  rolled back  \S+ \S+  9s$`, lines[1])
}

func TestExitCodesAreInTheHelp(t *testing.T) {
	for _, args := range [][]string{{"help", "exit-codes"}, {"upgrade", "--help"}} {
		code, out, _ := execute(t, &fakeOps{}, args...)
		require.Equal(t, 0, code)
		for _, text := range []string{"0  done", "2  usage", "3  refused", "4  rolled back", "130"} {
			require.Contains(t, out, text)
		}
	}
}

// What is checked and what is granted are the same.
func TestPermissionsAreThoseInTheManifest(t *testing.T) {
	body, err := os.ReadFile("../deployments/rbac.yaml")
	require.NoError(t, err)
	granted, checked := map[string]bool{}, map[string]bool{}
	for _, document := range strings.Split(string(body), "\n---\n") {
		var role rbac.Role // a ClusterRole has the same rules
		require.NoError(t, yaml.Unmarshal([]byte(document), &role))
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				for _, path := range rule.NonResourceURLs {
					granted[verb+" "+path] = true
				}
				for _, resource := range rule.Resources {
					granted[strings.Join([]string{verb, rule.APIGroups[0], resource, role.Namespace, strings.Join(rule.ResourceNames, "")}, " ")] = true
				}
			}
		}
	}
	for _, p := range needed {
		for _, verb := range p.verbs {
			if p.path != "" {
				checked[verb+" "+p.path] = true
				continue
			}
			resource := p.resource
			if p.subresource != "" {
				resource += "/" + p.subresource
			}
			checked[strings.Join([]string{verb, p.group, resource, p.namespace, p.name}, " ")] = true
		}
	}
	require.Equal(t, granted, checked)
}

func TestSteering(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pause", "up-1"}, "up-1: pause\n"},
		{[]string{"resume", "up-1"}, "up-1: resume\n"},
		{[]string{"skip-node", "up-1", "w3"}, "up-1: skip-node w3\n"},
		{[]string{"retry", "up-1"}, "up-1: retry-now\n"},
		{[]string{"retry", "up-1", "w3"}, "up-1: retry-now w3\n"},
		{[]string{"skip-node", "up-1", "w3", "-o", "json"}, `{"operation":"up-1","action":"skip-node","node":"w3","answer":"skip-node w3"}` + "\n"},
	} {
		code, out, errs := execute(t, &fakeOps{}, c.args...)
		require.Equal(t, 0, code, errs)
		require.Equal(t, c.want, out)
	}
}

func TestCancelAgainGivesUpWhatCannotBePutBack(t *testing.T) {
	op := ops.Operation{Request: ops.Request{ID: "up-1", Kind: operation.KindUpgrade, Cluster: "prod"}, State: ops.Running}
	code, out, errs := execute(t, &fakeOps{looks: []ops.Operation{op}}, "cancel", "up-1")
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "up-1 was asked to take back what it did")

	op.Cancelling = true
	code, out, errs = execute(t, &fakeOps{looks: []ops.Operation{op}}, "cancel", "up-1")
	require.Equal(t, 0, code, errs)
	require.Equal(t, "up-1: give-up\n", out)
}

func TestSteeringThatIsNotTakenIsRefused(t *testing.T) {
	code, out, errs := execute(t, &fakeOps{notNow: "it is paused already"}, "pause", "up-1")
	require.Equal(t, exitRefused, code)
	require.Empty(t, out)
	require.Equal(t, "ebb: up-1: it is paused already\n", errs)
	code, _, errs = execute(t, &fakeOps{}, "skip-node", "up-1")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "too few arguments: ebb skip-node OPERATION NODE")
}

func TestLogs(t *testing.T) {
	f := &fakeOps{log: []ops.Event{
		{Time: began, Node: "cp1", Phase: "upgrade", Attempt: 1, Text: "[upgrade] Fetching"},
		{Time: began, Node: "w1", Phase: "upgrade", Attempt: 2, Hop: 1, Text: "done"},
	}}
	code, out, errs := execute(t, f, "logs", "up-1")
	require.Equal(t, 0, code, errs)
	at := began.Local().Format("15:04:05")
	require.Equal(t, at+" cp1 upgrade | [upgrade] Fetching\n"+at+" w1 upgrade hop 2 run 2 | done\n", out)
	_, out, _ = execute(t, f, "logs", "up-1", "--node", "w1", "-o", "json")
	var line ops.Event
	require.NoError(t, json.Unmarshal([]byte(out), &line))
	require.Equal(t, "done", line.Text)
	require.Equal(t, ops.EventFilter{Types: []ops.EventType{ops.LogEvent}, Node: "w1"}, f.events)
	code, _, errs = execute(t, f, "logs", "up-1", "-f", "--tail", "20")
	require.Equal(t, 0, code, errs)
	require.Equal(t, ops.EventFilter{Types: []ops.EventType{ops.LogEvent}, Tail: 20, Follow: true}, f.events)
}

func TestRetryOfAnUpgradeInHopsNamesThem(t *testing.T) {
	op := ended(ops.Failed, "w2 failed")[1]
	op.Hops = []kubeversion.Version{"1.36.9"}
	require.Contains(t, verdict(op), "`ebb upgrade prod --to 1.37.2 --hops 1.36.9` goes on where it stopped")
}

func TestPlanInWords(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printForecast(&out, "upgrade", forecast.Forecast{
		Cluster: "prod", State: "Running", Version: "1.36.3", Target: "1.37.2", Hops: []kubeversion.Version{"1.38.1"}, Parallel: 2,
		Unfit: []string{"control plane cp2 is cordoned"},
		Steps: []forecast.Step{
			{Node: "cp1", Role: "first-control-plane", Version: "1.36.3", Action: forecast.Apply, Drain: drain.Forecast{Node: "cp1", Moves: 1}},
			{Node: "w1", Role: "worker", Version: "1.36.3", Action: forecast.Upgrade, Drain: drain.Forecast{
				Node: "w1", Moves: 4, Risks: []string{"shop/db-0 is the only pod of StatefulSet db: it is down until it runs elsewhere"},
				Blocked: []operation.BlockedPod{{Pod: "shop/web-1", Budget: "shop/web", Reason: "needs 2 healthy pods and has 2"}},
			}},
			{Node: "w2", Role: "worker", Version: "1.37.2", Action: forecast.Skip},
		},
	}))
	require.Equal(t, `upgrade of prod, which is in state Running at 1.36.3, to 1.37.2, then 1.38.1 (2 workers at once)

    NODE  ROLE                 VERSION                         MOVES
1.  cp1   first-control-plane  1.36.3   kubeadm upgrade apply  1 pod
2.  w1    worker               1.36.3   kubeadm upgrade node   4 pods
3.  w2    worker               1.37.2   skipped: it is done

In the way now:
  control plane cp2 is cordoned
  w1: shop/web-1 blocked by budget shop/web: needs 2 healthy pods and has 2

Worth knowing:
  w1: shop/db-0 is the only pod of StatefulSet db: it is down until it runs elsewhere
`, out.String())
}

// fakeClusters are clusters as somebody has seen them.
type fakeClusters struct{ seen []forecast.Overview }

func (f fakeClusters) List(context.Context) ([]forecast.Overview, error) { return f.seen, nil }

func (f fakeClusters) Look(_ context.Context, name string) (forecast.Overview, error) {
	return forecast.Overview{}, &forecast.UnknownClusterError{Name: name}
}

func (f fakeClusters) Plan(_ context.Context, q forecast.Question) (forecast.Forecast, error) {
	return forecast.Forecast{}, &forecast.UnknownClusterError{Name: q.Cluster}
}

func TestClustersList(t *testing.T) {
	prod := forecast.Overview{Cluster: "prod", Nodes: make([]policy.Node, 3)}
	prod.State, prod.Holder = clusterstate.Running, "up-1"
	list := func(seen ...forecast.Overview) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), &app{out: &stdout, errs: &stderr, views: fakeClusters{seen}}, []string{"clusters", "list"})
		return code, stdout.String(), stderr.String()
	}
	code, out, errs := list(prod)
	require.Equal(t, 0, code, errs)
	require.Regexp(t, `prod +Running +3 +up-1`, out)

	code, out, errs = list(prod, forecast.Overview{Cluster: "dev", Error: "no route"})
	require.Equal(t, 1, code)
	require.Regexp(t, `dev +unknown +0 +- +- +no route`, out)
	require.Contains(t, errs, "1 of 2 clusters did not answer")
}

func TestNodesOfAClusterAreInTheOrderThatPeopleCount(t *testing.T) {
	var shown []string
	for _, line := range clusterLines(forecast.Overview{Cluster: "prod", Nodes: []policy.Node{
		{Name: "cp1", Role: policy.FirstControlPlane}, {Name: "w10", Role: policy.Worker}, {Name: "w2", Role: policy.Worker},
	}})[3:] {
		shown = append(shown, strings.Fields(line)[0])
	}
	require.Equal(t, []string{"cp1", "w2", "w10"}, shown)

	live := map[string]ops.Live{"w10": {}, "w2": {}, "w1": {}}
	require.Equal(t, []string{"w1", "w2", "w10"}, names(live, nil), "and of a journal")
}
