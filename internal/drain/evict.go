package drain

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// createEviction requests the eviction of a pod once. With its UID as precondition, another
// pod that has its name by now is not evicted. grace is in seconds; negative = the pod's own.
func createEviction(ctx context.Context, client kubernetes.Interface, pod *core.Pod, grace int64) error {
	options := &meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &pod.UID}}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	eviction := &policy.Eviction{
		ObjectMeta:    meta.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: options,
	}
	direct, ok := client.PolicyV1().RESTClient().(*rest.RESTClient)
	if !ok || direct == nil { // a fake
		return client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
	}
	// The typed client would sleep through Retry-After, ten times over, and miss
	// the moment at which the budget allows the eviction.
	return direct.Post().AbsPath("/api/v1").Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("eviction").Body(eviction).MaxRetries(0).Do(ctx).Error()
}

// answer is the outcome of an eviction request.
type answer int

const (
	accepted             answer = iota
	notFound                    // there is no such pod any more
	replaced                    // a conflict: perhaps another pod has its name by now
	overBudget                  // its budget does not allow it now
	namespaceTerminating        // its namespace is being deleted
	throttled                   // by API priority and fairness: the API server is overloaded
	unanswered                  // it may have been accepted or not
	otherError                  // of the API server
	refusedByWebhook            // an admission webhook does not want this pod to be evicted now
)

// classify returns what the error of an eviction means for the next one, the delay that
// the API server has asked for (0 = none), and its message.
func classify(err error) (a answer, retryAfter time.Duration, message string) {
	if err == nil {
		return accepted, 0, ""
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return unanswered, 0, err.Error()
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		retryAfter = time.Duration(seconds) * time.Second
	}
	switch s := status.Status(); {
	case deniedByWebhook(s.Message):
		return refusedByWebhook, retryAfter, s.Message
	case s.Code == http.StatusNotFound:
		return notFound, 0, s.Message
	case s.Code == http.StatusConflict:
		return replaced, 0, s.Message
	case apierrors.HasStatusCause(err, policy.DisruptionBudgetCause):
		return overBudget, retryAfter, causes(s)
	case apierrors.HasStatusCause(err, core.NamespaceTerminatingCause):
		return namespaceTerminating, 0, s.Message
	case s.Code == http.StatusTooManyRequests:
		return throttled, retryAfter, s.Message
	default:
		return otherError, retryAfter, s.Message
	}
}

// deniedByWebhook reports whether an admission webhook has refused a request. It chooses the
// code, reason and details of the answer (KubeVirt's 429 would look like an overloaded API
// server, a 404 like a pod that has gone); only what the API server puts before its words
// tells that they are its.
func deniedByWebhook(message string) bool {
	return strings.HasPrefix(message, "admission webhook ") && strings.Contains(message, " denied the request")
}

// causes returns the messages of the causes of a status.
func causes(s meta.Status) string {
	var messages []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			messages = append(messages, c.Message)
		}
	}
	return strings.Join(messages, "; ")
}
