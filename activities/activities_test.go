package activities

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb/internal/cluster"
	"ebb/internal/clusterstate"
	"ebb/internal/config"
	"ebb/internal/lease"
	"ebb/internal/nodessh"
	"ebb/internal/operation"
	"ebb/internal/policy"
)

// one is a registry of one cluster, "prod".
type one struct{ cluster *cluster.Cluster }

func (o one) Get(_ context.Context, name string) (*cluster.Cluster, error) {
	if name != "prod" {
		return nil, &cluster.ConfigError{Err: fmt.Errorf("cluster %q is not configured", name)}
	}
	return o.cluster, nil
}

// engineOf knows which operations are over.
type engineOf struct {
	identity string
	closed   map[string]bool
	schedule error // of resuming a reconciler
}

func (e engineOf) Identity(context.Context) (string, error)                { return e.identity, nil }
func (engineOf) Signal(context.Context, string, string, string, any) error { return nil }

func (e engineOf) Reconcile(context.Context, string, bool) error { return e.schedule }

func (e engineOf) Closed(_ context.Context, operation string) (bool, error) {
	return e.closed[operation], nil
}

func node(name string, change ...func(*core.Node)) *core.Node {
	n := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: name, UID: "u-" + "x", ResourceVersion: "7", Annotations: map[string]string{}, Labels: map[string]string{}},
		Status: core.NodeStatus{
			NodeInfo:   core.NodeSystemInfo{KubeletVersion: "v1.36.3", MachineID: "m-1"},
			Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}},
			Addresses:  []core.NodeAddress{{Type: core.NodeInternalIP, Address: "10.0.0.1"}, {Type: core.NodeHostName, Address: name}},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func cordonedBy(operation string) func(*core.Node) {
	return func(n *core.Node) {
		n.Spec.Unschedulable = true
		if operation != "" {
			n.Annotations[clusterstate.AnnotationCordonedBy] = operation
		}
	}
}

func bench(t *testing.T, nodes ...*core.Node) (*Activities, *fake.Clientset) {
	t.Helper()
	objects := make([]runtime.Object, len(nodes))
	for i, n := range nodes {
		objects[i] = n
	}
	client := fake.NewClientset(objects...)
	settings := func() (config.Cluster, error) {
		return config.Cluster{Name: "prod", Kubeconfig: "x"}.WithDefaults(), nil
	}
	return &Activities{
		Clusters: one{cluster.New("prod", client, settings, zap.NewNop())},
		Engine:   engineOf{identity: "e/default"}, Log: zap.NewNop(), Now: time.Now,
	}, client
}

func read(t *testing.T, client *fake.Clientset, name string) *core.Node {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	return n
}

var onW1 = NodeInput{Cluster: "prod", Operation: "op-1", Node: "w1"}

func TestCordonIsOneWriteThatNamesItsOwner(t *testing.T) {
	a, client := bench(t, node("w1"))
	for range 2 { // the answer to the first may be lost
		got, err := a.Cordon(t.Context(), onW1)
		require.NoError(t, err)
		require.True(t, got.Ours)
	}
	n := read(t, client, "w1")
	require.True(t, n.Spec.Unschedulable)
	require.Equal(t, "op-1", n.Annotations["ebb/cordoned-by"])
	require.Equal(t, 1, writes(client))
}

func TestCordonLeavesWhatIsUnschedulableAsItIs(t *testing.T) {
	for _, owner := range []string{"", "op-9"} {
		a, client := bench(t, node("w1", cordonedBy(owner)))
		got, err := a.Cordon(t.Context(), onW1)
		require.NoError(t, err)
		require.False(t, got.Ours)
		require.Zero(t, writes(client))
	}
}

func TestCordonDecidesAgainWhenTheNodeChanged(t *testing.T) {
	a, client := bench(t, node("w1"))
	conflicts := 0
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		require.NoError(t, client.Tracker().Update(core.SchemeGroupVersion.WithResource("nodes"), node("w1", cordonedBy("")), ""))
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "w1", errors.New("changed"))
	})
	got, err := a.Cordon(t.Context(), onW1)
	require.NoError(t, err)
	require.False(t, got.Ours, "an operator was faster")
}

func TestUncordonTakesBackOnlyItsOwn(t *testing.T) {
	for _, c := range []struct {
		name string
		node *core.Node
		want bool
	}{
		{"its own", node("w1", cordonedBy("op-1")), true},
		{"an operator's", node("w1", cordonedBy("")), false},
		{"another operation's", node("w1", cordonedBy("op-9")), false},
	} {
		a, client := bench(t, c.node)
		got, err := a.Uncordon(t.Context(), onW1)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got.Uncordoned, c.name)
		n := read(t, client, "w1")
		if c.want {
			require.False(t, n.Spec.Unschedulable, c.name)
			require.NotContains(t, n.Annotations, "ebb/cordoned-by", c.name)
			continue
		}
		require.Zero(t, writes(client), c.name)
	}
}

func TestStaleMarkIsRemovedAndNoCordonOfAPerson(t *testing.T) {
	stale := map[string]*core.Node{
		"uncordoned meanwhile": node("w1", cordonedBy("op-1"), func(n *core.Node) { n.Spec.Unschedulable = false }),
		"and cordoned by hand": node("w1", cordonedBy("op-1"), func(n *core.Node) {
			n.ManagedFields = []meta.ManagedFieldsEntry{{Manager: "kubectl-cordon", FieldsV1: meta.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)}}
		}),
	}
	for name, n := range stale {
		for step, do := range map[string]func(*Activities) (bool, error){
			"uncordon": func(a *Activities) (bool, error) {
				got, err := a.Uncordon(t.Context(), onW1)
				return got.Uncordoned, err
			},
			"claim": func(a *Activities) (bool, error) {
				_, err := a.Claim(t.Context(), ClaimInput{Cluster: "prod", Operation: "op-2", State: clusterstate.Draining})
				return false, err
			},
		} {
			a, client := bench(t, n.DeepCopy())
			done, err := do(a)
			require.NoError(t, err, "%s, %s", step, name)
			require.False(t, done)
			now := read(t, client, "w1")
			require.Equal(t, n.Spec.Unschedulable, now.Spec.Unschedulable, "%s, %s", step, name)
			require.NotContains(t, now.Annotations, "ebb/cordoned-by", "%s, %s", step, name)
		}
	}
}

func TestUncordonOfANodeThatIsGoneIsDone(t *testing.T) {
	a, _ := bench(t)
	got, err := a.Uncordon(t.Context(), onW1)
	require.NoError(t, err)
	require.False(t, got.Uncordoned)
}

func TestUncordonAllCleansUpAfterTheDead(t *testing.T) {
	a, client := bench(t, node("w1", cordonedBy("dead-1")), node("w2", cordonedBy("")), node("w3", cordonedBy("dead-1")))
	got, err := a.UncordonAll(t.Context(), UncordonAllInput{Cluster: "prod", Operation: "dead-1"})
	require.NoError(t, err)
	require.Equal(t, []string{"w1", "w3"}, got.Nodes)
	require.True(t, read(t, client, "w2").Spec.Unschedulable)
}

func TestDeleteNodeOfAnotherMachineUnderTheSameName(t *testing.T) {
	a, client := bench(t)
	client.PrependReactor("delete", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.DeleteActionImpl).DeleteOptions
		require.EqualValues(t, "u-old", *options.Preconditions.UID)
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "w1", errors.New("uid differs"))
	})
	_, err := a.DeleteNode(t.Context(), MachineInput{Cluster: "prod", Node: policy.Node{Name: "w1", UID: "u-old"}})
	require.NoError(t, err, "the one that was meant is gone")
}

func TestConclude(t *testing.T) {
	script := ScriptInput{NodeInput: onW1, Phase: PhaseUpgrade}
	got, err := conclude(script, nodessh.RunStatus{State: nodessh.RunExited}, "done")
	require.NoError(t, err)
	require.Equal(t, ScriptResult{Output: "done"}, got)

	got, err = conclude(script, nodessh.RunStatus{State: nodessh.RunExited, ExitCode: 75}, "lock held")
	require.NoError(t, err)
	require.Equal(t, ScriptResult{Again: true, Output: "lock held"}, got)

	_, err = conclude(script, nodessh.RunStatus{State: nodessh.RunExited, ExitCode: 3}, "disk full")
	require.EqualError(t, err, "script (upgrade) on node w1: exit status 3: disk full")
	_, err = conclude(script, nodessh.RunStatus{State: nodessh.RunLost}, "")
	require.ErrorContains(t, err, "did the machine restart?")
}

func TestClassify(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	for _, c := range []struct {
		name string
		err  error
		want string // type of a permanent error; empty = to be retried
	}{
		{"refusal", fmt.Errorf("x: %w", &policy.Refusal{Reason: "no"}), operation.TypeRefused},
		{"held", fmt.Errorf("x: %w", lease.ErrHeld), operation.TypeRefused},
		{"fault, wrapped", fmt.Errorf("x: %w", permanentf(operation.TypeScript, "exit 1")), operation.TypeScript},
		{"forbidden", apierrors.NewForbidden(resource, "w1", errors.New("rbac")), operation.TypeConfig},
		{"a token that has expired", apierrors.NewUnauthorized("Unauthorized"), ""},
		{"a kubeconfig that is being replaced", errors.New("kubeconfig of cluster prod: no such file"), ""},
		{"too many requests", apierrors.NewTooManyRequests("slow down", 1), ""},
		{"server error", apierrors.NewInternalError(errors.New("etcd")), ""},
		{"connection", errors.New("connection refused"), ""},
	} {
		var app *temporal.ApplicationError
		got := classify(c.err)
		if c.want == "" {
			require.Equal(t, c.err, got, c.name)
			continue
		}
		require.ErrorAs(t, got, &app, c.name)
		require.True(t, app.NonRetryable(), c.name)
		require.Equal(t, c.want, app.Type(), c.name)
		require.Equal(t, c.err.Error(), app.Message(), c.name)
	}
	require.NoError(t, classify(nil))
	require.ErrorIs(t, classify(context.Canceled), context.Canceled)
}

func TestHolderOnAnotherEngineCountsAsAlive(t *testing.T) {
	a, _ := bench(t)
	a.Engine = engineOf{identity: "e/default", closed: map[string]bool{"dead-1": true}}
	dead, err := a.holderDead(t.Context(), "prod", clusterstate.Record{Holder: "dead-1", Engine: "e/default"}, "e/default")
	require.NoError(t, err)
	require.True(t, dead)
	_, err = a.holderDead(t.Context(), "prod", clusterstate.Record{Holder: "dead-1", Engine: "other/default"}, "e/default")
	require.ErrorIs(t, err, lease.ErrHeld)
	require.ErrorContains(t, err, "another Temporal engine")
}

func TestUnknownClusterIsPermanent(t *testing.T) {
	a, _ := bench(t)
	_, err := a.Survey(t.Context(), SurveyInput{Cluster: "prdo"})
	var app *temporal.ApplicationError
	require.ErrorAs(t, classify(err), &app)
	require.Equal(t, operation.TypeConfig, app.Type())
}

func writes(client *fake.Clientset) (count int) {
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" || action.GetVerb() == "update" {
			count++
		}
	}
	return count
}

func TestReleaseSaysThatNobodyLooksAtTheCluster(t *testing.T) {
	a, client := bench(t)
	client.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*coordination.Lease).ResourceVersion = "1" // as a real API server does
		return false, nil, nil
	})
	_, err := a.Claim(t.Context(), ClaimInput{Cluster: "prod", Operation: "op-1", State: clusterstate.Scaling})
	require.NoError(t, err)
	a.Engine = engineOf{identity: "e/default", schedule: errors.New("away")}
	got, err := a.Release(t.Context(), ReleaseInput{Cluster: "prod", Operation: "op-1", State: clusterstate.Alert})
	require.NoError(t, err, "the lock is released")
	require.Equal(t, ReleaseResult{Held: true, Unattended: true}, got)
	_, err = a.Attend(t.Context(), AttendInput{Cluster: "prod"})
	require.ErrorContains(t, err, "resume the reconciler of prod: away")
}
