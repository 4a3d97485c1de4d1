package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Destination is where a dial goes: one of Address and Host is set.
type Destination struct {
	Address netip.Addr // without a zone
	Host    string     // in lower case
	Port    uint16
}

// ParseDestination reads HOST:PORT; the port is a number.
func ParseDestination(text string) (Destination, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Destination{}, fmt.Errorf("destination %q: want HOST:PORT: %w", text, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return Destination{}, fmt.Errorf("destination %q: want a port from 1 to 65535", text)
	}
	d := Destination{Port: uint16(number)}
	if address, err := netip.ParseAddr(host); err == nil {
		d.Address = address.Unmap().WithZone("")
		return d, nil
	}
	if host == "" {
		return Destination{}, fmt.Errorf("destination %q: the host is empty", text)
	}
	d.Host = strings.ToLower(host)
	return d, nil
}

// String returns HOST:PORT.
func (d Destination) String() string {
	host := d.Host
	if d.Address.IsValid() {
		host = d.Address.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(d.Port)))
}

// Strategy is a way to find agents for a destination; the names are konnectivity's.
type Strategy string

// Strategies.
const (
	DestHost     Strategy = "destHost"     // agents that offer the destination
	DefaultRoute Strategy = "defaultRoute" // agents that offer a default route
	Default      Strategy = "default"      // every agent
)

// ParseStrategies reads a list such as "destHost,default".
func ParseStrategies(text string) (all []Strategy, err error) {
	for part := range strings.SplitSeq(text, ",") {
		switch s := Strategy(strings.TrimSpace(part)); s {
		case DestHost, DefaultRoute, Default:
			all = append(all, s)
		default:
			return nil, fmt.Errorf("strategy %q: want destHost, defaultRoute or default", part)
		}
	}
	return all, nil
}

// Connection is what is known of an agent's connection.
type Connection struct {
	Identifiers Identifiers
	Draining    bool  // it has sent DRAIN, which is for good
	Cordoned    bool  // the node of its agent is cordoned: its pods may be evicted soon
	Streams     int   // dials under way and connections
	LastChosen  int64 // a counter: of two the lower was chosen longer ago
}

// condition orders connections before any strategy does: whoever takes load off an agent
// must not get it back because another agent is further down a list of strategies.
func (c Connection) condition() int {
	switch {
	case c.Draining:
		return 2
	case c.Cordoned:
		return 1
	}
	return 0
}

// ErrNoAgent is returned when no connection leads to the destination.
var ErrNoAgent = errors.New("no connected agent leads there")

// Choose returns the index of the connection that takes a dial, and the strategy that found
// it. Connections that neither drain nor are on a cordoned node come first, then those on
// cordoned nodes, then draining ones, whatever the strategies; among equals the order of
// the strategies decides, then who offers the destination more precisely, who carries
// less, and who was chosen longer ago. It returns ErrNoAgent when none leads there.
func Choose(connections []Connection, strategies []Strategy, d Destination) (int, Strategy, error) {
	best := -1
	var bestRank rank
	for i, c := range connections {
		for order, s := range strategies {
			precision, leads := s.leads(c.Identifiers, d)
			if !leads {
				continue
			}
			r := rank{c.condition(), order, -precision, c.Streams, c.LastChosen}
			if best < 0 || r.compare(bestRank) < 0 {
				best, bestRank = i, r
			}
			break // a later strategy is no better for the same connection
		}
	}
	if best < 0 {
		return 0, "", fmt.Errorf("%w: %s, by %v among %d connections", ErrNoAgent, d, strategies, len(connections))
	}
	return best, strategies[bestRank.strategy], nil
}

// leads reports whether a strategy uses an agent for a destination, and how precisely the
// agent offers it.
func (s Strategy) leads(ids Identifiers, d Destination) (precision int, ok bool) {
	switch s {
	case DestHost:
		precision = ids.specificity(d)
		return precision, precision > 0
	case DefaultRoute:
		return 0, ids.DefaultRoute
	case Default:
		return 0, true
	}
	return 0, false
}

// rank orders the candidates for a dial; less is better, from the first field to the last.
type rank struct {
	condition, strategy, precision, streams int
	lastChosen                              int64
}

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.condition, o.condition), cmp.Compare(r.strategy, o.strategy), cmp.Compare(r.precision, o.precision),
		cmp.Compare(r.streams, o.streams), cmp.Compare(r.lastChosen, o.lastChosen))
}
