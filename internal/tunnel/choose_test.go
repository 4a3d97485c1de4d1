package tunnel

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	theHost = Destination{Address: netip.MustParseAddr("10.0.0.7"), Port: 22}
	orders  = [][]Strategy{
		{DestHost, DefaultRoute, Default}, {DestHost, Default, DefaultRoute}, {DefaultRoute, DestHost, Default},
		{DefaultRoute, Default, DestHost}, {Default, DestHost, DefaultRoute}, {Default, DefaultRoute, DestHost},
	}
)

// offering are identifiers that exactly one strategy but default finds, by that strategy.
var offering = map[Strategy]Identifiers{
	DestHost:     {Addresses: []netip.Addr{theHost.Address}},
	DefaultRoute: {DefaultRoute: true},
	Default:      {},
}

// In each order of the strategies, for each set of connections that drain: one that does
// not drain is chosen while there is any, and among equals the first strategy decides.
func TestDrainingComesLastUnderEveryOrderOfStrategies(t *testing.T) {
	agents := []Strategy{DestHost, DefaultRoute, Default} // by what it offers
	for _, strategies := range orders {
		for draining := range 8 {
			t.Run(fmt.Sprintf("%v draining %03b", strategies, draining), func(t *testing.T) {
				var connections []Connection
				for i, a := range agents {
					connections = append(connections, Connection{Identifiers: offering[a], Draining: draining&(1<<i) != 0, LastChosen: int64(i)})
				}
				chosen, by, err := Choose(connections, strategies, theHost)
				require.NoError(t, err)
				require.Equal(t, draining == 7, connections[chosen].Draining, "only when all drain")
				for _, s := range strategies { // those before by find nobody in the same condition
					if s == by {
						break
					}
					for _, c := range connections {
						_, leads := s.leads(c.Identifiers, theHost)
						require.False(t, leads && c.Draining == connections[chosen].Draining, "%s comes before %s", s, by)
					}
				}
			})
		}
	}
}

func TestChoose(t *testing.T) {
	exact := Identifiers{Addresses: []netip.Addr{theHost.Address}}
	network := func(text string) Identifiers {
		return Identifiers{Networks: []netip.Prefix{netip.MustParsePrefix(text)}}
	}
	for name, c := range map[string]struct {
		connections []Connection
		strategies  []Strategy
		want        int
		by          Strategy
	}{
		"a healthy default beats a draining destHost": {
			[]Connection{{Identifiers: exact, Draining: true}, {}}, []Strategy{DestHost, Default}, 1, Default,
		},
		"a healthy default beats a destHost on a cordoned node": {
			[]Connection{{Identifiers: exact, Cordoned: true}, {}}, []Strategy{DestHost, Default}, 1, Default,
		},
		"a cordoned node before one that drains": {
			[]Connection{{Identifiers: exact, Draining: true}, {Cordoned: true}}, []Strategy{DestHost, Default}, 1, Default,
		},
		"cordoned and draining is draining": {
			[]Connection{{Draining: true, Cordoned: true}, {Draining: true, LastChosen: 1}, {Cordoned: true, Streams: 9}}, []Strategy{Default}, 2, Default,
		},
		"the last one drains and serves": {[]Connection{{Identifiers: exact, Draining: true}}, []Strategy{DestHost}, 0, DestHost},
		"the smaller network": {
			[]Connection{{Identifiers: network("10.0.0.0/8")}, {Identifiers: network("10.0.0.0/24"), Streams: 5}}, []Strategy{DestHost}, 1, DestHost,
		},
		"the address before its network": {
			[]Connection{{Identifiers: network("10.0.0.7/32")}, {Identifiers: exact, Streams: 5}}, []Strategy{DestHost}, 1, DestHost,
		},
		"whoever carries less":          {[]Connection{{Streams: 2}, {Streams: 1, LastChosen: 9}}, []Strategy{Default}, 1, Default},
		"whoever was chosen longer ago": {[]Connection{{LastChosen: 3}, {LastChosen: 2}}, []Strategy{Default}, 1, Default},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, by, err := Choose(c.connections, c.strategies, theHost)
			require.NoError(t, err)
			require.Equal(t, c.want, chosen)
			require.Equal(t, c.by, by)
		})
	}
}

func TestNobodyLeadsThere(t *testing.T) {
	_, _, err := Choose([]Connection{{Identifiers: Identifiers{Hosts: []string{"w1"}}}}, []Strategy{DestHost, DefaultRoute}, theHost)
	require.ErrorIs(t, err, ErrNoAgent)
	require.ErrorContains(t, err, "10.0.0.7:22")
}

func TestDestinations(t *testing.T) {
	for text, want := range map[string]Destination{
		"10.0.0.7:22":          theHost,
		"[::ffff:10.0.0.7]:22": theHost,
		"W1.example:6443":      {Host: "w1.example", Port: 6443},
		"[2001:db8::1]:443":    {Address: netip.MustParseAddr("2001:db8::1"), Port: 443},
	} {
		got, err := ParseDestination(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		again, err := ParseDestination(got.String())
		require.NoError(t, err)
		require.Equal(t, want, again)
	}
	for _, bad := range []string{"", "w1", ":22", "w1:0", "w1:ssh", "w1:65536", "::1:22"} {
		_, err := ParseDestination(bad)
		require.ErrorContains(t, err, fmt.Sprintf("%q", bad))
	}
}

func TestIdentifiers(t *testing.T) {
	ids, err := ParseIdentifiers("ipv4=10.0.0.7&ipv6=2001:db8::1&host=W1&host=w1.example&cidr=10.1.2.3/16&default-route=true")
	require.NoError(t, err)
	require.Equal(t, Identifiers{
		Addresses: []netip.Addr{theHost.Address, netip.MustParseAddr("2001:db8::1")}, Hosts: []string{"w1", "w1.example"},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, DefaultRoute: true,
	}, sorted(ids))
	again, err := ParseIdentifiers(ids.String())
	require.NoError(t, err)
	require.Equal(t, sorted(ids), sorted(again))
	for bad, why := range map[string]string{
		"ipv4=::1": "other family", "ipv6=10.0.0.7": "other family", "ipv4=x": "unable to parse", "cidr=10.0.0.7": "no '/'", "host=": "empty",
		"default-route=yes": "true or false", "name=w1": "want ipv4", "%zz": "invalid URL escape",
	} {
		_, err := ParseIdentifiers(bad)
		require.ErrorContains(t, err, why, bad)
	}
}

// sorted puts the IPv4 address first, as the keys of a query have no order.
func sorted(ids Identifiers) Identifiers {
	if len(ids.Addresses) == 2 && ids.Addresses[0].Is6() {
		ids.Addresses[0], ids.Addresses[1] = ids.Addresses[1], ids.Addresses[0]
	}
	return ids
}

func TestWhatAClusterMayOffer(t *testing.T) {
	allowed, err := ParseIdentifiers("ipv4=10.9.0.1&cidr=10.0.0.0/24&host=w1")
	require.NoError(t, err)
	for text, refused := range map[string]string{
		"": "", "ipv4=10.0.0.7": "", "ipv4=10.9.0.1": "", "cidr=10.0.0.128/25": "", "host=W1": "",
		"ipv4=10.0.1.7": "10.0.1.7", "cidr=10.0.0.0/16": "10.0.0.0/16", "host=w2": "w2", "default-route=true": "default route",
	} {
		ids, err := ParseIdentifiers(text)
		require.NoError(t, err)
		if refused == "" {
			require.NoError(t, ids.Within(allowed), text)
			continue
		}
		require.ErrorContains(t, ids.Within(allowed), refused, text)
	}
}

func TestWhatMayBeDialled(t *testing.T) {
	rules := []Allow{
		{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Ports: []uint16{22, 6443}},
		{Hosts: []string{"api.internal"}},
	}
	for text, ok := range map[string]bool{
		"10.0.0.7:22": true, "10.0.0.7:6443": true, "10.0.0.7:2379": false, "10.0.1.7:22": false,
		"api.internal:443": true, "w1:22": false, "[::ffff:10.0.0.7]:22": true, "[::1]:22": false,
	} {
		d, err := ParseDestination(text)
		require.NoError(t, err)
		if ok {
			require.NoError(t, Check(rules, d), text)
			continue
		}
		require.ErrorContains(t, Check(rules, d), text)
	}
	require.Error(t, Check(nil, theHost), "nothing is allowed that no rule allows")
}
