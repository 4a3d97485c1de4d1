package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	podsOnNode    = 110 // what a kubelet takes by default; one of them is kube-proxy's
	budgets       = 40
	podsInCluster = 3000 // most of them on nodes without a kubelet, where they stay Pending
	fillerNodes   = 27
	writers       = 16 // that make and delete the filler pods
)

// A full node in a full cluster: what the drain costs the API server does not
// grow with the cluster, and is bounded per pod.
func TestDrainOfAFullNodeInALargeCluster(t *testing.T) {
	b := newExclusiveFixture(t)
	b.fillCluster(podsInCluster - podsOnNode)
	log := b.record()
	var apps []string
	for i := range budgets {
		apps = append(apps, fmt.Sprintf("app%02d", i))
	}
	size := func(i int) int32 { // 109 pods among 40
		if i < (podsOnNode-1)%budgets {
			return (podsOnNode-1)/budgets + 1
		}
		return (podsOnNode - 1) / budgets
	}
	for i, app := range apps {
		b.create(app, size(i))
	}
	var pods []core.Pod
	for i, app := range apps {
		pods = append(pods, b.waitReady(app, int(size(i)))...)
		b.budget(app, app, unavailable(1))
	}
	require.Len(t, pods, podsOnNode-1)

	b.ready()
	log.clear()
	before := b.served("201")
	a := b.start(time.Minute)
	log.clear() // what start itself has asked for
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, len(pods), result.Evicted)

	var mutating, reads, lists, refused int
	for _, r := range log.requests() {
		switch {
		case r.watch:
		case r.method == http.MethodGet:
			reads++
		default:
			mutating++
		}
		if r.list() {
			lists++
		}
		if r.code == http.StatusTooManyRequests {
			refused++
		}
	}
	t.Logf("took %s; %d pods: %d mutating requests (%d refused), %d reads, %d of them lists of pods", result.Took, len(pods), mutating, refused, reads, lists)
	require.LessOrEqual(t, mutating, 3*len(pods))
	require.LessOrEqual(t, reads, len(pods))
	require.LessOrEqual(t, lists, 3, "no list per pod")
	log.requireOnce(t, pods)
	require.Equal(t, len(pods), b.served("201")-before, "the API server has counted as many")
}

// served returns how many evictions the API server has answered with that code.
func (b *fixture) served(code string) (total int) {
	b.t.Helper()
	text, err := shared.box.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.t.Context())
	require.NoError(b.t, err)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `subresource="eviction"`) && strings.Contains(line, `code="`+code+`"`) {
			n, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
			require.NoError(b.t, err)
			total += n
		}
	}
	require.NoError(b.t, lines.Err())
	return total
}

// fillCluster fills other nodes with pods, in the same namespace, until the test is over.
func (b *fixture) fillCluster(n int) {
	b.t.Helper()
	client := b.cluster.Client.CoreV1()
	node := func(i int) string { return fmt.Sprintf("filler%02d", i%fillerNodes) }
	b.t.Cleanup(func() {
		ctx := context.Background()
		for i := range fillerNodes {
			require.NoError(b.t, client.Nodes().Delete(ctx, node(i), meta.DeleteOptions{}))
		}
		for i := range fillerNodes { // kube-proxy's
			now := int64(0)
			require.NoError(b.t, client.Pods(meta.NamespaceSystem).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &now},
				meta.ListOptions{FieldSelector: "spec.nodeName=" + node(i)}))
		}
	})
	for i := range fillerNodes {
		_, err := client.Nodes().Create(b.t.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: node(i)}}, meta.CreateOptions{})
		require.NoError(b.t, err)
	}
	pods := client.Pods(b.namespace)
	name := func(i int) string { return fmt.Sprintf("filler-%04d", i) }
	b.t.Cleanup(func() {
		now := int64(0)
		require.NoError(b.t, each(n, func(i int) error {
			err := pods.Delete(context.Background(), name(i), meta.DeleteOptions{GracePeriodSeconds: &now})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}))
	})
	no := false
	require.NoError(b.t, each(n, func(i int) error {
		_, err := pods.Create(b.t.Context(), &core.Pod{
			ObjectMeta: meta.ObjectMeta{Name: name(i), Labels: map[string]string{"app": "filler"}},
			Spec:       core.PodSpec{NodeName: node(i), Containers: b.template("filler").Spec.Containers, AutomountServiceAccountToken: &no},
		}, meta.CreateOptions{})
		return err
	}))
}

// each calls f for 0 to n-1, a few at a time.
func each(n int, f func(i int) error) error {
	var group sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		group.Go(func() {
			for i := w; i < n; i += writers {
				if err := f(i); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
