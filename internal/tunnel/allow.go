package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
)

// Allow is a set of destinations that may be dialled.
type Allow struct {
	Networks []netip.Prefix
	Hosts    []string // by name, in lower case; they are looked up by the agent
	Ports    []uint16 // empty = all
}

// Check returns nil when one of the rules allows the destination.
func Check(rules []Allow, d Destination) error {
	for _, r := range rules {
		if len(r.Ports) > 0 && !slices.Contains(r.Ports, d.Port) {
			continue
		}
		if d.Host != "" && slices.Contains(r.Hosts, d.Host) {
			return nil
		}
		if d.Address.IsValid() && slices.ContainsFunc(r.Networks, func(n netip.Prefix) bool { return n.Contains(d.Address) }) {
			return nil
		}
	}
	return fmt.Errorf("a dial to %s is not allowed for this cluster", d)
}
