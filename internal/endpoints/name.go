package endpoints

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Name is what a client asks for: `<cluster>/<namespace>/<service>:<port>`. The port is
// the number or the name that the Service gives it. With `/ipv4` or `/ipv6` after it
// the address family is chosen; without, it is the first one of the Service.
type Name struct {
	Cluster, Namespace, Service, Port string
	Family                            core.IPFamily // "" = the Service's first
}

var families = map[string]core.IPFamily{"ipv4": core.IPv4Protocol, "ipv6": core.IPv6Protocol}

// ParseName reads the name of a resource. The error says what it should be like.
func ParseName(text string) (Name, error) {
	parts := strings.Split(text, "/")
	bad := fmt.Errorf("%q is not <cluster>/<namespace>/<service>:<port>, or that with /ipv4 or /ipv6 after it", text)
	var n Name
	if len(parts) == 4 {
		if n.Family = families[parts[3]]; n.Family == "" {
			return Name{}, bad
		}
		parts = parts[:3]
	}
	if len(parts) != 3 {
		return Name{}, bad
	}
	n.Cluster, n.Namespace = parts[0], parts[1]
	n.Service, n.Port, _ = strings.Cut(parts[2], ":")
	for _, label := range []string{n.Namespace, n.Service, n.Port} {
		if len(validation.IsDNS1123Label(label)) > 0 { // a port's number is one too
			return Name{}, bad
		}
	}
	if n.Cluster == "" {
		return Name{}, bad
	}
	return n, nil
}

// String is the name as a client asks for it.
func (n Name) String() string {
	text := n.Cluster + "/" + n.Namespace + "/" + n.Service + ":" + n.Port
	if n.Family != "" {
		text += "/" + strings.ToLower(string(n.Family))
	}
	return text
}

// addressType is the family of the slices that a service's clients are told of.
func (n Name) addressType(service *core.Service) discovery.AddressType {
	switch {
	case n.Family != "":
		return discovery.AddressType(n.Family)
	case len(service.Spec.IPFamilies) > 0:
		return discovery.AddressType(service.Spec.IPFamilies[0])
	}
	return discovery.AddressTypeIPv4
}
