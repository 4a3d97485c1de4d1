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

// evict asks the API server once to evict this very pod, not one that has its
// name by now. grace is in seconds; negative = the pod's own.
func evict(ctx context.Context, client kubernetes.Interface, pod *core.Pod, grace int64) error {
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

// answer is what became of an eviction request.
type answer int

const (
	granted       answer = iota
	gone                 // there is no such pod any more
	replaced             // perhaps another pod has its name: look before asking again
	overBudget           // a budget forbids it now
	nsTerminating        // its namespace is being deleted
	throttled            // priority and fairness: the API server has too much to do
	unreachable          // no answer: it may have been done or not
	failed               // an answer that is an error, of a server or of an admission webhook
)

// classify sorts the errors of an eviction by what they mean for asking again.
// retryAfter is what the API server asked for; 0 = nothing.
func classify(err error) (a answer, retryAfter time.Duration, message string) {
	if err == nil {
		return granted, 0, ""
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return unreachable, 0, err.Error()
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		retryAfter = time.Duration(seconds) * time.Second
	}
	switch s := status.Status(); {
	case s.Code == http.StatusNotFound:
		return gone, 0, s.Message
	case s.Code == http.StatusConflict:
		return replaced, 0, s.Message
	case apierrors.HasStatusCause(err, policy.DisruptionBudgetCause):
		return overBudget, retryAfter, causes(s)
	case apierrors.HasStatusCause(err, core.NamespaceTerminatingCause):
		return nsTerminating, 0, s.Message
	case s.Code == http.StatusTooManyRequests:
		return throttled, retryAfter, s.Message
	default:
		return failed, retryAfter, s.Message
	}
}

func causes(s meta.Status) string {
	var messages []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			messages = append(messages, c.Message)
		}
	}
	return strings.Join(messages, "; ")
}
