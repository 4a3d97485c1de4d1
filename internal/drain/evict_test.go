package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// statusServer answers every request with one status, and keeps the last request.
func statusServer(t *testing.T, status meta.Status) (client kubernetes.Interface, path *string, body *policy.Eviction) {
	t.Helper()
	path, body = new(string), &policy.Eviction{}
	status.TypeMeta = meta.TypeMeta{APIVersion: "v1", Kind: "Status"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*path = r.Method + " " + r.URL.Path
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", "10")
		}
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status) // the client sees a broken answer
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return client, path, body
}

func TestEvictNamesThePodByUID(t *testing.T) {
	client, path, body := statusServer(t, meta.Status{Status: meta.StatusSuccess, Code: http.StatusCreated})
	require.NoError(t, createEviction(t.Context(), client, newPod("a"), -1))
	require.Equal(t, "POST /api/v1/namespaces/app/pods/a/eviction", *path)
	require.Equal(t, "policy/v1", body.APIVersion)
	require.Equal(t, "uid-a", string(*body.DeleteOptions.Preconditions.UID))
	require.Nil(t, body.DeleteOptions.GracePeriodSeconds)

	require.NoError(t, createEviction(t.Context(), client, newPod("a"), 0))
	require.Equal(t, int64(0), *body.DeleteOptions.GracePeriodSeconds)
}

func TestEvictDoesNotSleepThroughRetryAfter(t *testing.T) {
	busy := apierrors.NewTooManyRequests("Cannot evict pod", 10).Status()
	busy.Details.Causes = []meta.StatusCause{{Type: policy.DisruptionBudgetCause, Message: "The disruption budget x is still being processed"}}
	client, _, _ := statusServer(t, busy)
	start := time.Now()
	err := createEviction(t.Context(), client, newPod("a"), -1)
	require.Less(t, time.Since(start), 5*time.Second)
	a, _, message := classify(err)
	require.Equal(t, overBudget, a)
	require.Equal(t, "The disruption budget x is still being processed", message)
}

func TestClassify(t *testing.T) {
	pods := core.Resource("pods")
	forbidden := apierrors.NewForbidden(pods, "a", errors.New("no"))
	leaving := apierrors.NewForbidden(pods, "a", errors.New("no"))
	leaving.ErrStatus.Details.Causes = []meta.StatusCause{{Type: core.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err   error
		want  answer
		after time.Duration
	}{
		"done":                  {nil, accepted, 0},
		"no such pod":           {apierrors.NewNotFound(pods, "a"), notFound, 0},
		"another UID":           {apierrors.NewConflict(pods, "a", errors.New("uid")), replaced, 0},
		"priority and fairness": {apierrors.NewTooManyRequests("busy", 3), throttled, 3 * time.Second},
		"namespace terminating": {leaving, namespaceTerminating, 0},
		"not allowed":           {forbidden, otherError, 0},
		"webhook":               {apierrors.NewInternalError(errors.New("webhook")), otherError, 0},
		"a webhook's 429":       {deniedBy("evacuation.kubevirt.io", http.StatusTooManyRequests, 5), refusedByWebhook, 5 * time.Second},
		"a webhook's 404":       {deniedBy("cleaner.strimzi.io", http.StatusNotFound, 0), refusedByWebhook, 0},
		"a webhook's 409":       {deniedBy("cleaner.strimzi.io", http.StatusConflict, 0), refusedByWebhook, 0},
		"conflicts on a budget": {apierrors.NewTimeoutError("conflicts", 10), otherError, 10 * time.Second},
		"connection refused":    {errors.New("dial tcp: connection refused"), unanswered, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, after, _ := classify(c.err)
			require.Equal(t, c.want, a)
			require.Equal(t, c.after, after)
		})
	}
}

// deniedBy is the answer of the API server when an admission webhook denies a request with
// that code, as k8s.io/apiserver/pkg/admission/plugin/webhook/errors makes it.
func deniedBy(webhook string, code, retryAfter int32) error {
	return &apierrors.StatusError{ErrStatus: meta.Status{
		Status: meta.StatusFailure, Code: code, Message: fmt.Sprintf("admission webhook %q denied the request: it moves", webhook),
		Details: &meta.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}
