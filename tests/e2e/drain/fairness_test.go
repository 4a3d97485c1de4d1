package e2e

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb/internal/operation"

	"github.com/stretchr/testify/require"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// In the middle of the drain the API server's priority and fairness has no seat
// left for evictions. There is no budget at all, so every 429 is its own.
func TestDrainWaitsForABusyAPIServer(t *testing.T) {
	b := newFixture(t)
	web := b.deploy("web", 2, slowToStop(4*time.Second))
	dns := b.deploy("dns", 3, func(p *core.PodTemplateSpec) { p.Spec.PriorityClassName = "system-cluster-critical" })
	kubeconfig := b.serviceAccount() // an administrator's requests are exempt
	level := b.limitEvictions()
	log := b.recordAs(kubeconfig)

	a := b.start(time.Minute)
	a.evicted(t, len(web)) // the others are critical and wait until these have ended
	release := b.occupySeat(kubeconfig, level)
	var blocked operation.BlockedPod
	a.until(t, "the drain says what it waits for", func(p operation.DrainProgress) bool {
		for _, pod := range p.Blocked {
			if strings.Contains(pod.Reason, "has too much to do") {
				blocked = pod
			}
		}
		return blocked.Pod != ""
	})
	require.Eventually(t, func() bool { return len(log.throttled()) > len(dns) }, time.Minute, 50*time.Millisecond, "it has tried again")
	require.Equal(t, len(web), a.last().Evicted)
	release()
	result, err := a.wait()
	require.NoError(t, err, "in the same attempt")
	require.Equal(t, len(web)+len(dns), result.Evicted)
	log.requireOnce(t, append(web, dns...))

	require.Contains(t, blocked.Reason, "the API server has too much to do, trying again in ")
	require.Empty(t, blocked.Budget, "not a budget")
	require.NotContains(t, result.Output, "blocked by budget")
	var earliest time.Time
	for _, e := range log.evictions() {
		if e.code != http.StatusTooManyRequests {
			require.Equal(t, http.StatusCreated, e.code)
			continue
		}
		require.Equal(t, level, e.level)
		require.NotContains(t, e.message, "DisruptionBudget")
		seconds, err := strconv.Atoi(e.retryAfter)
		require.NoError(t, err)
		require.Positive(t, seconds)
		if earliest.IsZero() {
			earliest = e.at.Add(time.Duration(seconds) * time.Second)
		}
	}
	for _, e := range log.evictions()[len(web)+len(dns):] {
		require.False(t, e.at.Before(earliest), "Retry-After is kept")
	}
	t.Logf("took %s, %d evictions of %d pods answered with 429", result.Took, len(log.throttled()), len(dns))
}

// throttled returns the evictions that were answered with 429.
func (r *requestLog) throttled() (found []request) {
	for _, e := range r.evictions() {
		if e.code == http.StatusTooManyRequests {
			found = append(found, e)
		}
	}
	return found
}

// serviceAccount makes a ServiceAccount that may do everything, and returns its kubeconfig.
func (b *fixture) serviceAccount() string {
	b.t.Helper()
	ctx, api := b.t.Context(), b.box.Client()
	_, err := api.CoreV1().ServiceAccounts(b.namespace).Create(ctx, &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: "drainer"}}, meta.CreateOptions{})
	require.NoError(b.t, err)
	_, err = api.RbacV1().ClusterRoleBindings().Create(ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: b.namespace}, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: b.namespace, Name: "drainer"}},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		require.NoError(b.t, api.RbacV1().ClusterRoleBindings().Delete(context.Background(), b.namespace, meta.DeleteOptions{}))
	})
	token, err := api.CoreV1().ServiceAccounts(b.namespace).CreateToken(ctx, "drainer", &authentication.TokenRequest{}, meta.CreateOptions{})
	require.NoError(b.t, err)
	return b.kubeconfigWith(token.Status.Token)
}

// kubeconfigWith returns the administrator's kubeconfig with another identity.
func (b *fixture) kubeconfigWith(token string) string {
	b.t.Helper()
	file, err := clientcmd.LoadFromFile(b.box.Kubeconfig())
	require.NoError(b.t, err)
	for user := range file.AuthInfos {
		file.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	}
	path := filepath.Join(b.t.TempDir(), "kubeconfig")
	require.NoError(b.t, clientcmd.WriteToFile(*file, path))
	return path
}

// limitEvictions puts the account's evictions into a priority level of their
// own, which has one seat and no queue. It returns the UID of the level.
func (b *fixture) limitEvictions() string {
	b.t.Helper()
	ctx, api := b.t.Context(), b.box.Client().FlowcontrolV1()
	none := int32(0) // shares: what is left is the one seat that every level has
	level, err := api.PriorityLevelConfigurations().Create(ctx, &flowcontrol.PriorityLevelConfiguration{
		ObjectMeta: meta.ObjectMeta{Name: b.namespace},
		Spec: flowcontrol.PriorityLevelConfigurationSpec{
			Type: flowcontrol.PriorityLevelEnablementLimited,
			Limited: &flowcontrol.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &none, LendablePercent: &none, BorrowingLimitPercent: &none,
				LimitResponse: flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeReject},
			},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	schema, err := api.FlowSchemas().Create(ctx, &flowcontrol.FlowSchema{
		ObjectMeta: meta.ObjectMeta{Name: b.namespace},
		Spec: flowcontrol.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrol.PriorityLevelConfigurationReference{Name: level.Name},
			MatchingPrecedence:         2, // before all others but the one of administrators
			Rules: []flowcontrol.PolicyRulesWithSubjects{{
				Subjects: []flowcontrol.Subject{{Kind: flowcontrol.SubjectKindServiceAccount,
					ServiceAccount: &flowcontrol.ServiceAccountSubject{Namespace: b.namespace, Name: "drainer"}}},
				ResourceRules: []flowcontrol.ResourcePolicyRule{{
					Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Namespaces: []string{b.namespace},
				}},
			}},
		},
	}, meta.CreateOptions{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		require.NoError(b.t, api.FlowSchemas().Delete(context.Background(), schema.Name, meta.DeleteOptions{}))
		require.NoError(b.t, api.PriorityLevelConfigurations().Delete(context.Background(), level.Name, meta.DeleteOptions{}))
	})
	return string(level.UID)
}

// occupySeat makes an eviction whose body does not come until release is
// called. A level lets in a request that is larger than it, as long as that is
// alone; every other one is refused then.
func (b *fixture) occupySeat(kubeconfig, level string) (release func()) {
	b.t.Helper()
	e := b.evictor(kubeconfig)
	require.Eventually(b.t, func() bool {
		end := e.evict(b.t.Context(), strings.NewReader("{}"))
		return end.err == nil && end.level == level
	}, 20*time.Second, 50*time.Millisecond, "the API server knows of the level")
	var in *io.PipeWriter
	ended := make(chan evictionEnd, 1)
	require.Eventually(b.t, func() bool {
		body, writer := io.Pipe()
		in = writer
		reads := make(chan struct{}, 1) // the API server reads the body: it has let the request in
		ctx := httptrace.WithClientTrace(b.t.Context(), &httptrace.ClientTrace{Got100Continue: func() { reads <- struct{}{} }})
		go func() { ended <- e.evict(ctx, body) }()
		select {
		case <-reads:
			return true
		case <-ended: // refused, for the one before has not quite gone
			return false
		}
	}, 20*time.Second, 50*time.Millisecond, "the seat is taken")
	return func() {
		b.t.Helper()
		_ = in.Close() // always nil
		end := <-ended
		require.NoError(b.t, end.err)
		require.Equal(b.t, http.StatusBadRequest, end.code, "it has had the seat until now")
	}
}

// evictor evicts a pod that does not exist, as the user of a kubeconfig.
type evictor struct {
	client *http.Client
	url    string
}

type evictionEnd struct {
	code  int
	level string
	err   error
}

func (b *fixture) evictor(kubeconfig string) evictor {
	b.t.Helper()
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(b.t, err)
	client, err := rest.HTTPClientFor(settings)
	require.NoError(b.t, err)
	return evictor{client: client, url: settings.Host + "/api/v1/namespaces/" + b.namespace + "/pods/none/eviction"}
}

func (e evictor) evict(ctx context.Context, body io.Reader) evictionEnd {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, body)
	if err != nil {
		return evictionEnd{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue")
	resp, err := e.client.Do(req)
	if err != nil {
		return evictionEnd{err: err}
	}
	return evictionEnd{resp.StatusCode, resp.Header.Get(flowcontrol.ResponseHeaderMatchedPriorityLevelConfigurationUID), resp.Body.Close()}
}
