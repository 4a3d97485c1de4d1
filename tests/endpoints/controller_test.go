package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"ebb/internal/sandbox"
	"ebb/internal/testbed"
)

// recordings is where the table test of internal/endpoints finds what the EndpointSlice
// controller writes. EBB_RECORD_SLICES=1 writes the files again.
const recordings = "../../internal/endpoints/testdata/controller"

// rollout is a Deployment behind a Service, in the middle of a rollout that changes the
// ports of its pods.
type rollout struct {
	service    []core.ServicePort // none = headless without ports
	serviceNow []core.ServicePort // what the Service is changed to in the middle; nil = it is not
	before     []core.ContainerPort
	after      []core.ContainerPort // nil = there is no rollout
	asked      string               // the port that a client asks for
	serve      []string             // which pods it is told: "old", "new"
}

func containerPorts(name string, number int32) []core.ContainerPort {
	return []core.ContainerPort{{Name: name, ContainerPort: number, Protocol: core.ProtocolTCP}}
}

func portTo(name string, number int32, target intstr.IntOrString) core.ServicePort {
	return core.ServicePort{Name: name, Port: number, TargetPort: target}
}

// What the EndpointSlice controller writes for named target ports while a rollout renames
// them is what the table of internal/endpoints has on record; clients are told the pods
// that have the port.
func TestNamedTargetPortsInARollout(t *testing.T) {
	toHTTP := []core.ServicePort{portTo("web", 80, intstr.FromString("http"))}
	toWeb := []core.ServicePort{portTo("web", 80, intstr.FromString("web"))}
	admin := portTo("admin", 81, intstr.FromString("admin"))
	http, web := containerPorts("http", 8080), containerPorts("web", 8080)
	adminPort := containerPorts("admin", 9090)[0]
	for name, c := range map[string]rollout{
		"renamed":            {service: toHTTP, before: http, after: web, asked: "80", serve: []string{"old"}},
		"renumbered":         {service: toHTTP, before: http, after: containerPorts("http", 8081), asked: "web", serve: []string{"old", "new"}},
		"one-of-two-renamed": {service: append(toHTTP, admin), before: append(http, adminPort), after: append(web, adminPort), asked: "web", serve: []string{"old"}},
		"service-follows":    {service: toHTTP, serviceNow: toWeb, before: http, after: web, asked: "web", serve: []string{"new"}},
		"unnamed":            {service: []core.ServicePort{portTo("", 80, intstr.FromString("http"))}, before: http, after: web, asked: "80", serve: []string{"old"}},
		"number":             {service: []core.ServicePort{portTo("web", 80, intstr.FromInt32(8080))}, before: http, after: web, asked: "80", serve: []string{"old", "new"}},
		"never-there":        {service: toHTTP, before: web, asked: "80"},
		"no-ports":           {before: http, asked: "8080"},
	} {
		t.Run(name, func(t *testing.T) { c.run(t, name) })
	}
}

func (c rollout) run(t *testing.T, name string) {
	service := "ports-" + name
	pods := c.deploy(t, service)
	compareRecording(t, service, filepath.Join(recordings, name+".json"), pods)
	want := map[string]string{}
	for _, p := range pods {
		if slices.Contains(c.serve, p.Labels["generation"]) {
			want[p.Status.PodIP] = healthy
		}
	}
	_, address := startServer(t)
	s := openDelta(t.Context(), t, address)
	asked := "prod/default/" + service + ":" + c.asked
	s.request(resource.EndpointType, []string{asked}, response{})
	s.nextResponse()
	s.waitForEndpoints(asked, want)
}

// deploy makes the Deployment and brings it into the middle of its rollout: two old pods
// and a new one, all of them ready. It returns the pods.
func (c rollout) deploy(t *testing.T, name string) []core.Pod {
	t.Helper()
	api := shared.Client().AppsV1().Deployments(sandbox.Namespace)
	_, err := api.Create(t.Context(), &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &meta.LabelSelector{MatchLabels: map[string]string{"app": name}},
			// A new pod is not available for an hour, though ready: the rollout stands still.
			MinReadySeconds: 3600, ProgressDeadlineSeconds: ptr.To[int32](7200),
			Strategy: apps.DeploymentStrategy{Type: apps.RollingUpdateDeploymentStrategyType, RollingUpdate: &apps.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			}},
			Template: podTemplate(name, "old", c.before),
		},
	}, meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { removeDeployment(t, name) })
	_, err = shared.Client().CoreV1().Services(sandbox.Namespace).Create(t.Context(), c.serviceObject(name), meta.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, shared.Client().CoreV1().Services(sandbox.Namespace).Delete(context.WithoutCancel(t.Context()), name, meta.DeleteOptions{}))
	})
	pods := waitForReadyPods(t, name, 2)
	if c.after != nil {
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"template": podTemplate(name, "new", c.after)}})
		require.NoError(t, err)
		_, err = api.Patch(t.Context(), name, types.MergePatchType, body, meta.PatchOptions{})
		require.NoError(t, err)
		pods = waitForReadyPods(t, name, 3)
	}
	if c.serviceNow != nil {
		patchService(t, name, map[string]any{"ports": c.serviceNow})
	}
	return pods
}

func podTemplate(name, generation string, ports []core.ContainerPort) core.PodTemplateSpec {
	return core.PodTemplateSpec{
		ObjectMeta: meta.ObjectMeta{Labels: map[string]string{"app": name, "generation": generation}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "app", Image: "app", Ports: ports}}},
	}
}

func (c rollout) serviceObject(name string) *core.Service {
	s := &core.Service{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: core.ServiceSpec{Selector: map[string]string{"app": name}, Ports: c.service}}
	if c.service == nil {
		s.Spec.ClusterIP = core.ClusterIPNone
	}
	return s
}

func patchService(t *testing.T, name string, spec map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(t, err)
	_, err = shared.Client().CoreV1().Services(sandbox.Namespace).Patch(t.Context(), name, types.MergePatchType, body, meta.PatchOptions{})
	require.NoError(t, err)
}

func removeDeployment(t *testing.T, name string) {
	t.Helper()
	ctx, api, now := context.WithoutCancel(t.Context()), shared.Client(), int64(0)
	require.NoError(t, api.AppsV1().Deployments(sandbox.Namespace).Delete(ctx, name, meta.DeleteOptions{}))
	require.NoError(t, api.CoreV1().Pods(sandbox.Namespace).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &now}, meta.ListOptions{LabelSelector: "app=" + name}))
}

// waitForReadyPods returns the pods of a workload once there are that many and all are ready.
func waitForReadyPods(t *testing.T, workload string, count int) []core.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var pods []core.Pod
	require.NoError(t, testbed.Poll(ctx, func() (bool, error) {
		pods = slices.DeleteFunc(runningPods(t, workload), func(p core.Pod) bool { return !podReady(&p) })
		return len(pods) == count, nil
	}))
	return pods
}

// recordedSlice is what the controller decides in an EndpointSlice.
type recordedSlice struct {
	AddressType discoveryv1.AddressType    `json:"addressType"`
	Ports       []discoveryv1.EndpointPort `json:"ports"`
	Endpoints   []discoveryv1.Endpoint     `json:"endpoints"`
}

// first returns the first address, "" if there is none: the controller keeps an empty
// slice as a placeholder.
func (s recordedSlice) first() string {
	if len(s.Endpoints) == 0 {
		return ""
	}
	return s.Endpoints[0].Addresses[0]
}

// normalised returns slices without what differs from run to run: an old pod has an
// address in 10.0.0.0/24, a new one in 10.0.1.0/24.
func normalised(found []discoveryv1.EndpointSlice, pods []core.Pod) []recordedSlice {
	generations := map[string]string{}
	for _, p := range pods {
		generations[p.Status.PodIP] = map[string]string{"old": "10.0.0.", "new": "10.0.1."}[p.Labels["generation"]]
	}
	counts := map[string]int{}
	var recorded []recordedSlice
	for _, s := range found {
		one := recordedSlice{AddressType: s.AddressType, Ports: s.Ports}
		for _, e := range s.Endpoints {
			network := generations[e.Addresses[0]]
			counts[network]++
			one.Endpoints = append(one.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint(network, counts[network])}, Conditions: e.Conditions})
		}
		slices.SortFunc(one.Endpoints, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
		slices.SortFunc(one.Ports, func(a, b discoveryv1.EndpointPort) int { return cmp.Compare(*a.Name, *b.Name) })
		recorded = append(recorded, one)
	}
	slices.SortFunc(recorded, func(a, b recordedSlice) int { return cmp.Compare(a.first(), b.first()) })
	return recorded
}

// compareRecording waits until what the controller has written for a service is what the
// file says. If EBB_RECORD_SLICES is set, it writes the file, once nothing has changed
// for some looks and all pods are in it.
func compareRecording(t *testing.T, service, path string, pods []core.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	recorded, err := os.ReadFile(path)
	recording := os.Getenv("EBB_RECORD_SLICES") != ""
	require.True(t, err == nil || recording, "%v", err)
	var got, last string
	looks := 0
	err = testbed.Poll(ctx, func() (bool, error) {
		last, got = got, writtenSlices(t, service, pods)
		if !recording {
			return got == string(recorded), nil
		}
		if looks++; got != last || strings.Count(got, "addresses") != len(pods) {
			looks = 0
		}
		return looks == 20, nil
	})
	if recording {
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(recordings, 0o755)) // #nosec G301 -- part of the repository
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
		return
	}
	require.Equal(t, string(recorded), got, "the controller writes something else than what is on record")
}

// writtenSlices returns the slices of a service as a recording.
func writtenSlices(t *testing.T, service string, pods []core.Pod) string {
	t.Helper()
	list, err := shared.Client().DiscoveryV1().EndpointSlices(sandbox.Namespace).List(t.Context(), meta.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	require.NoError(t, err)
	text, err := json.MarshalIndent(normalised(list.Items, pods), "", "  ")
	require.NoError(t, err)
	return string(text) + "\n"
}
