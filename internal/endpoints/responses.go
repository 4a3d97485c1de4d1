package endpoints

import (
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	xdscache "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	grpcstatus "google.golang.org/grpc/status"
)

// sotwResponse returns the response with an answer. It holds what has changed or, for
// the types of which a client takes what is missing for deleted, all there is: so it
// learns of names that have no resource. For the other types the protocol can only say
// so in resource errors. The caller holds mu.
func (st *stream) sotwResponse(r *xdscache.Request, a answer) xdscache.Response {
	names := a.changed
	if xdscache.ResourceRequiresFullStateInSotw(r.GetTypeUrl()) {
		names = st.asked[r.GetTypeUrl()]
	}
	response := &discovery.DiscoveryResponse{VersionInfo: st.server.versionInfo(), TypeUrl: r.GetTypeUrl(), ResourceErrors: st.resourceErrors(r.GetTypeUrl(), a.absent)}
	for _, name := range names {
		if found, err := st.find(r.GetTypeUrl(), name); err == nil && found != nil {
			response.Resources = append(response.Resources, found.packed)
		}
	}
	return &xdscache.PassthroughResponse{Request: r, DiscoveryResponse: response, ReturnedResources: a.told}
}

// deltaResponse returns the response with an answer. The caller holds mu.
func (st *stream) deltaResponse(r *xdscache.DeltaRequest, a answer) xdscache.DeltaResponse {
	response := &discovery.DeltaDiscoveryResponse{SystemVersionInfo: st.server.versionInfo(), TypeUrl: r.GetTypeUrl(), ResourceErrors: st.resourceErrors(r.GetTypeUrl(), a.absent)}
	for _, name := range a.changed {
		if found, err := st.find(r.GetTypeUrl(), name); err == nil {
			response.Resources = append(response.Resources, &discovery.Resource{Name: name, Version: found.version, Resource: found.packed})
		}
	}
	for _, name := range a.absent {
		if name != wildcard { // which is no resource
			response.RemovedResources = append(response.RemovedResources, name)
		}
	}
	return &xdscache.DeltaPassthroughResponse{DeltaRequest: r, DeltaDiscoveryResponse: response, NextVersionMap: a.told}
}

// resourceErrors says why names have no resource. The caller holds mu.
func (st *stream) resourceErrors(typeURL string, names []string) []*discovery.ResourceError {
	var all []*discovery.ResourceError
	for _, name := range names {
		_, err := st.find(typeURL, name)
		all = append(all, &discovery.ResourceError{ResourceName: &discovery.ResourceName{Name: name}, ErrorDetail: grpcstatus.Convert(err).Proto()})
	}
	return all
}
