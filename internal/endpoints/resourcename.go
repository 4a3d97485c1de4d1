package endpoints

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ResourceName is the name of the xDS resources of a service:
// `<cluster>/<namespace>/<service>:<port>`. The port is its number or name in the
// Service. `/ipv4` or `/ipv6` at the end chooses the address family, which is else the
// first one of the Service.
type ResourceName struct {
	Cluster, Namespace, Service, Port string
	Family                            core.IPFamily // "" = the Service's first
}

var ipFamilies = map[string]core.IPFamily{"ipv4": core.IPv4Protocol, "ipv6": core.IPv6Protocol}

// ParseResourceName parses the name of a resource. The error says what form it must have.
func ParseResourceName(text string) (ResourceName, error) {
	parts := strings.Split(text, "/")
	invalid := fmt.Errorf("%q is not <cluster>/<namespace>/<service>:<port>, or that with /ipv4 or /ipv6 after it", text)
	var n ResourceName
	if len(parts) == 4 {
		if n.Family = ipFamilies[parts[3]]; n.Family == "" {
			return ResourceName{}, invalid
		}
		parts = parts[:3]
	}
	if len(parts) != 3 {
		return ResourceName{}, invalid
	}
	n.Cluster, n.Namespace = parts[0], parts[1]
	n.Service, n.Port, _ = strings.Cut(parts[2], ":")
	for _, label := range []string{n.Namespace, n.Service, n.Port} {
		if len(validation.IsDNS1123Label(label)) > 0 { // a port's number is one too
			return ResourceName{}, invalid
		}
	}
	if n.Cluster == "" {
		return ResourceName{}, invalid
	}
	return n, nil
}

// String returns the name as a client requests it.
func (n ResourceName) String() string {
	text := n.Cluster + "/" + n.Namespace + "/" + n.Service + ":" + n.Port
	if n.Family != "" {
		text += "/" + strings.ToLower(string(n.Family))
	}
	return text
}

// addressType returns the address type of the EndpointSlices to use.
func (n ResourceName) addressType(service *core.Service) discovery.AddressType {
	switch {
	case n.Family != "":
		return discovery.AddressType(n.Family)
	case len(service.Spec.IPFamilies) > 0:
		return discovery.AddressType(service.Spec.IPFamilies[0])
	}
	return discovery.AddressTypeIPv4
}
