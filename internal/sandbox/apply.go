package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// Apply applies the documents of a manifest by server-side apply, in their order and with
// the administrator's rights.
func (s *Sandbox) Apply(ctx context.Context, manifest []byte) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(s.plane.client.Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := documents.Decode(object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(object.Object) == 0:
			continue // nothing but comments
		}
		if err := apply(ctx, client, mapper, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "ebb-sandbox", Force: true})
	return err
}
