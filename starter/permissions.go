package main

import (
	"context"
	"fmt"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/clusterstate"
)

// permission is something Ebb must be allowed to do in a cluster.
type permission struct {
	group, resource, subresource string
	namespace, name              string
	path                         string // of a URL that is no resource
	verbs                        []string
}

// needed are the permissions in deployments/rbac.yaml; a test holds them together.
var needed = []permission{
	{resource: "nodes", verbs: []string{"get", "list", "watch", "patch", "delete"}},
	{resource: "pods", verbs: []string{"get", "list", "watch"}},
	{resource: "pods", subresource: "eviction", verbs: []string{"create"}},
	{resource: "namespaces", verbs: []string{"get", "list", "watch"}},
	{resource: "persistentvolumeclaims", verbs: []string{"get", "list", "watch"}},
	{resource: "persistentvolumes", verbs: []string{"get", "list", "watch"}},
	{group: "storage.k8s.io", resource: "volumeattachments", verbs: []string{"get", "list", "watch"}},
	{resource: "events", verbs: []string{"list", "watch"}},
	{group: "policy", resource: "poddisruptionbudgets", verbs: []string{"get", "list", "watch"}},
	{group: "apps", resource: "daemonsets", verbs: []string{"get", "list", "watch"}},
	{path: "/readyz", verbs: []string{"get"}},
	{path: "/readyz/etcd", verbs: []string{"get"}},
	{group: "coordination.k8s.io", resource: "leases", namespace: clusterstate.Namespace, name: clusterstate.LeaseName, verbs: []string{"get", "update"}},
	{group: "coordination.k8s.io", resource: "leases", namespace: clusterstate.Namespace, verbs: []string{"create"}},
}

func (p permission) String() string {
	if p.path != "" {
		return p.path
	}
	text := p.resource
	if p.subresource != "" {
		text += "/" + p.subresource
	}
	if p.group != "" {
		text += "." + p.group
	}
	if p.namespace != "" {
		text += " in " + p.namespace
	}
	return text
}

func (p permission) review(verb string) *authorization.SelfSubjectAccessReview {
	spec := authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
		Verb: verb, Group: p.group, Resource: p.resource, Subresource: p.subresource, Namespace: p.namespace, Name: p.name,
	}}
	if p.path != "" {
		spec = authorization.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorization.NonResourceAttributes{Verb: verb, Path: p.path}}
	}
	return &authorization.SelfSubjectAccessReview{Spec: spec}
}

// checkPermissions asks the API server what this user may do; the faults are
// what is needed and not allowed.
func checkPermissions(ctx context.Context, client kubernetes.Interface) (asked int, faults []string, err error) {
	reviews := client.AuthorizationV1().SelfSubjectAccessReviews()
	for _, p := range needed {
		var denied []string
		for _, verb := range p.verbs {
			answer, err := reviews.Create(ctx, p.review(verb), meta.CreateOptions{})
			if err != nil {
				return asked, faults, fmt.Errorf("ask what is allowed: %w", err)
			}
			asked++
			if !answer.Status.Allowed {
				denied = append(denied, verb)
			}
		}
		if len(denied) > 0 {
			faults = append(faults, fmt.Sprintf("may not %s %s: apply deployments/rbac.yaml", strings.Join(denied, ", "), p))
		}
	}
	return asked, faults, nil
}
