package drain

import (
	"context"
	"fmt"
	"io"
	"strings"

	"ebb/internal/operation"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"
)

// action is what a drain does with a pod, decided by kubectl's filters, the pod's label
// of Cluster API and the settings for Jobs.
type action int

const (
	ignore action = iota // a mirror pod, one of a DaemonSet, or one labelled so: it stays on the node
	evict                // it is evicted, or only waited for when it is terminating already
	forbid               // it would have to be evicted, but the settings do not allow it
	await                // it runs to completion: it is waited for, and evicted when it has completed
)

// actionFor returns what a drain does with a pod.
func actionFor(pod *core.Pod, s Settings, daemonSetExists func(namespace, name string) bool) action {
	a := kubectlAction(pod, s, daemonSetExists)
	switch {
	case a == ignore, stays(pod):
		return ignore
	case pod.DeletionTimestamp == nil && !finished(pod) && whyAwaited(pod, s) != "":
		return await
	}
	return a
}

// kubectlAction returns what kubectl's own filters say of a pod, so that the same pods are
// evicted as with kubectl drain --ignore-daemonsets. A pod that is terminating already
// needs neither force nor deleteEmptyDir, for it is not evicted again.
func kubectlAction(pod *core.Pod, s Settings, daemonSetExists func(namespace, name string) bool) action {
	terminating := pod.DeletionTimestamp != nil
	helper := kubectl.Helper{
		Client:              &onePod{pod: pod, daemonSetExists: daemonSetExists},
		Force:               s.Force || terminating,
		DeleteEmptyDirData:  s.DeleteEmptyDir || terminating,
		IgnoreAllDaemonSets: true,
		Out:                 io.Discard,
		ErrOut:              io.Discard,
	}
	list, errs := helper.GetPodsForDeletion(pod.Spec.NodeName)
	switch {
	case len(errs) > 0:
		return forbid
	case len(list.Pods()) > 0:
		return evict
	}
	return ignore
}

// whyForbidden returns why the settings do not allow the eviction of a pod, and which
// setting would. It checks in the order of kubectl's filters.
func whyForbidden(pod *core.Pod, s Settings) operation.BlockedPod {
	b := operation.BlockedPod{Pod: podName(pod)}
	owner := meta.GetControllerOf(pod)
	switch {
	case owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == apps.SchemeGroupVersion.String():
		b.Reason = fmt.Sprintf("its DaemonSet %s does not exist, nothing would create it again", owner.Name)
		b.Advice = "set drain.force: true to evict it, or delete it"
	case !s.DeleteEmptyDir && len(emptyDirs(pod)) > 0:
		b.Reason = fmt.Sprintf("the data in its emptyDir volumes (%s) would be lost", strings.Join(emptyDirs(pod), ", "))
		b.Advice = "set drain.deleteEmptyDir: true to evict it all the same"
	default:
		b.Reason = "it has no controller, nothing would create it again"
		b.Advice = "set drain.force: true to evict it, or delete it"
	}
	return b
}

func emptyDirs(pod *core.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil {
			names = append(names, v.Name)
		}
	}
	return names
}

func podName(pod *core.Pod) string { return pod.Namespace + "/" + pod.Name }

// onePod is the API client that kubectl's filters are given. It answers the two
// requests that they make, without a request: the list of the node's pods (one), and
// whether a DaemonSet exists. Any other request would be a nil call, caught by the
// tests that compare the outcome with kubectl's.
type onePod struct {
	kubernetes.Interface
	pod             *core.Pod
	daemonSetExists func(namespace, name string) bool
}

func (o *onePod) CoreV1() coreclient.CoreV1Interface { return onePodCore{onePod: o} }
func (o *onePod) AppsV1() appsclient.AppsV1Interface { return onePodApps{onePod: o} }

type onePodCore struct {
	coreclient.CoreV1Interface
	onePod *onePod
}

func (c onePodCore) Pods(string) coreclient.PodInterface { return onePodPods{onePod: c.onePod} }

type onePodPods struct {
	coreclient.PodInterface
	onePod *onePod
}

func (p onePodPods) List(context.Context, meta.ListOptions) (*core.PodList, error) {
	return &core.PodList{Items: []core.Pod{*p.onePod.pod}}, nil
}

type onePodApps struct {
	appsclient.AppsV1Interface
	onePod *onePod
}

func (a onePodApps) DaemonSets(namespace string) appsclient.DaemonSetInterface {
	return onePodDaemonSets{onePod: a.onePod, namespace: namespace}
}

type onePodDaemonSets struct {
	appsclient.DaemonSetInterface
	onePod    *onePod
	namespace string
}

func (d onePodDaemonSets) Get(_ context.Context, name string, _ meta.GetOptions) (*apps.DaemonSet, error) {
	if !d.onePod.daemonSetExists(d.namespace, name) {
		return nil, apierrors.NewNotFound(apps.Resource("daemonsets"), name)
	}
	return &apps.DaemonSet{}, nil
}
