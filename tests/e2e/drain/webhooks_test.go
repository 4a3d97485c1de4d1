package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admission "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/operation"
)

// evictionWebhook is an admission webhook for the evictions of the fixture's namespace.
type evictionWebhook struct {
	decide func(pod string) *meta.Status // why it is denied; nil = it is allowed

	mu    sync.Mutex
	asked map[string]int // requests for each pod
}

// webhook registers an admission webhook and serves it over TLS until the test is over.
func (b *fixture) webhook(decide func(pod string) *meta.Status) *evictionWebhook {
	b.t.Helper()
	w := &evictionWebhook{decide: decide, asked: map[string]int{}}
	server := httptest.NewTLSServer(w)
	b.t.Cleanup(server.Close)
	fail, none := registration.Fail, registration.SideEffectClassNone
	hooks := b.box.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made, err := hooks.Create(b.t.Context(), &registration.ValidatingWebhookConfiguration{
		ObjectMeta: meta.ObjectMeta{Name: b.namespace},
		Webhooks: []registration.ValidatingWebhook{{
			Name: "evictions.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registration.WebhookClientConfig{URL: &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			NamespaceSelector: &meta.LabelSelector{MatchLabels: map[string]string{core.LabelMetadataName: b.namespace}},
			Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
				Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}}}},
		}},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, hooks.Delete(context.Background(), made.Name, meta.DeleteOptions{})) })
	b.awaitWebhook(w)
	return w
}

// awaitWebhook waits until the API server asks the webhook, which it does a moment after the
// webhook is registered: for the eviction of a pod that is there for that alone.
func (b *fixture) awaitWebhook(w *evictionWebhook) {
	b.t.Helper()
	b.bare("probe", func(p *pod) { p.Spec.NodeName, p.Spec.Affinity = b.others[0], nil })
	try := &policy.Eviction{ObjectMeta: meta.ObjectMeta{Namespace: b.namespace, Name: "probe"},
		DeleteOptions: &meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}}
	require.Eventually(b.t, func() bool {
		_ = b.box.Client().PolicyV1().Evictions(b.namespace).Evict(b.t.Context(), try) // only the webhook counts
		return w.requests("probe") > 0
	}, time.Minute, 100*time.Millisecond)
}

// ServeHTTP answers an AdmissionReview.
func (w *evictionWebhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var review admission.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(rw, "no review", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	w.asked[review.Request.Name]++
	w.mu.Unlock()
	denied := w.decide(review.Request.Name)
	review.Response = &admission.AdmissionResponse{UID: review.Request.UID, Allowed: denied == nil, Result: denied}
	review.Request = nil
	_ = json.NewEncoder(rw).Encode(review) // the API server sees a broken answer
}

func (w *evictionWebhook) requests(pod string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[pod]
}

// A webhook that refuses with 429 until it has moved a virtual machine, as KubeVirt's does,
// keeps its own pod, and no other one.
func TestDrainTakesAWebhooksRefusalForItsPod(t *testing.T) {
	b := newFixture(t)
	vm := b.deploy("a-vm", 1)[0]
	b.deploy("web", 3)
	b.budget("web", "web", unavailable(1))
	words := "Eviction triggered evacuation of VMI app/vm"
	var migrated atomic.Bool
	hook := b.webhook(func(pod string) *meta.Status {
		if pod != vm.Name || migrated.Load() {
			return nil
		}
		return &meta.Status{Code: http.StatusTooManyRequests, Reason: meta.StatusReasonTooManyRequests, Message: words}
	})
	a := b.start(2 * time.Minute)
	a.until(t, "only the pod of the webhook is left", func(p operation.DrainProgress) bool { return p.Evicted == 3 && p.Waiting == 1 })
	blocked, _ := a.blocked(t, b.namespace+"/"+vm.Name)
	require.Equal(t, operation.BlockedPod{Pod: b.namespace + "/" + vm.Name,
		Reason: `admission webhook "evictions.example.com" denied the request: ` + words}, blocked)
	require.Positive(t, hook.requests(vm.Name))
	migrated.Store(true)
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 4, result.Evicted)
	require.NotContains(t, result.Output, "too much to do")
}

// An operator moves the pods for which its webhook has seen an eviction, while a budget
// that never allows one keeps everybody else from it, as Strimzi's drain cleaner does.
func TestDrainAsksForEachPodOfABudgetThatNeverAllows(t *testing.T) {
	b := newFixture(t)
	brokers := b.deploy("kafka", 3)
	b.budget("kafka", "kafka", unavailable(0))
	hook := b.webhook(func(string) *meta.Status { return nil })
	a := b.start(2 * time.Minute)
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(brokers, func(p pod) bool { return hook.requests(p.Name) == 0 })
	}, time.Minute, 50*time.Millisecond, "each pod has been asked for, though none has left")
	require.Zero(t, a.last().Gone)
	for _, p := range brokers { // the operator
		require.NoError(t, b.box.Client().CoreV1().Pods(b.namespace).Delete(t.Context(), p.Name, meta.DeleteOptions{}))
	}
	result, err := a.wait()
	require.NoError(t, err)
	require.Equal(t, 3, result.Gone)
}
