package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ClusterTunnel says how the nodes of a cluster in a private network are reached: through
// agents there, which connect to a gateway. The first part is for those who dial, the worker
// and the CLI, the second for the gateway. Settings of the gateway take a restart.
type ClusterTunnel struct {
	Address         string `yaml:"address,omitempty"`         // host:port of a gateway's tunnel, or of what is in front of several
	CAFile          string `yaml:"caFile,omitempty"`          // PEM; default = the system's authorities
	CertificateFile string `yaml:"certificateFile,omitempty"` // PEM; one of gateway.tunnel.clients
	KeyFile         string `yaml:"keyFile,omitempty"`         // PEM
	APIServer       bool   `yaml:"apiServer,omitempty"`       // default false; true = the API server of the kubeconfig is dialled through it, too

	Allow          []TunnelAllow `yaml:"allow,omitempty"`          // where clients may dial; default nowhere: the cluster has no tunnel
	Offers         TunnelOffers  `yaml:"offers,omitempty"`         // what agents may offer to reach; default nothing
	Strategies     []string      `yaml:"strategies,omitempty"`     // default [destHost, default]; how an agent is found
	ServiceAccount string        `yaml:"serviceAccount,omitempty"` // NAMESPACE/NAME of agents that show its token; default none
	Audience       string        `yaml:"audience,omitempty"`       // default ebb-tunnel; of these tokens
	Socket         string        `yaml:"socket,omitempty"`         // Unix socket for a kube-apiserver on the gateway's machine; default none
}

// TunnelAllow is a set of destinations.
type TunnelAllow struct {
	Networks []string `yaml:"networks,omitempty"` // 10.0.0.0/24, or an address
	Hosts    []string `yaml:"hosts,omitempty"`    // by name, which the agent looks up
	Ports    []int    `yaml:"ports,omitempty"`    // default all
}

// TunnelOffers bounds what the agents of a cluster may say that they reach.
type TunnelOffers struct {
	Networks     []string `yaml:"networks,omitempty"`     // 10.0.0.0/24, or an address; parts of it, too
	Hosts        []string `yaml:"hosts,omitempty"`        // names, or "*" for all
	DefaultRoute bool     `yaml:"defaultRoute,omitempty"` // whatever no other agent offers
}

// GatewayTunnel is the listener to which agents and those who dial connect.
type GatewayTunnel struct {
	Listen       string         `yaml:"listen,omitempty"`       // default none: there is no tunnel; it always has TLS
	ClientCAFile string         `yaml:"clientCAFile,omitempty"` // PEM; who signs the certificates of agents and clients
	Agents       []TunnelAgent  `yaml:"agents,omitempty"`       // those with certificates
	Clients      []TunnelClient `yaml:"clients,omitempty"`      // those who dial
	Servers      int            `yaml:"servers,omitempty"`      // default 1; how many gateways each agent connects to
	Settle       Duration       `yaml:"settle,omitempty"`       // default 15s after its start, for which a dial waits for an agent: they need a moment to come back
	KeepAlive    Duration       `yaml:"keepAlive,omitempty"`    // default 10s; after as much silence an agent is asked whether it lives, and has as long to answer
}

// TunnelAgent are the agents with a certificate of that name.
type TunnelAgent struct {
	CommonName string `yaml:"commonName"` // of the certificate's subject
	Cluster    string `yaml:"cluster"`
}

// TunnelClient is who may dial in clusters.
type TunnelClient struct {
	CommonName string   `yaml:"commonName"` // of the certificate's subject
	Clusters   []string `yaml:"clusters"`   // names, or "*" for all
}

// How agents are found; the names are konnectivity's.
const (
	strategyDestHost     = "destHost"
	strategyDefaultRoute = "defaultRoute"
	strategyDefault      = "default"
)

// minTunnelKeepAlive is the shortest interval that gRPC takes.
const minTunnelKeepAlive = Duration(time.Second)

// Serves reports whether the gateway has a tunnel for the cluster.
func (t ClusterTunnel) Serves() bool { return len(t.Allow) > 0 }

func (t *ClusterTunnel) setDefaults() {
	if !t.Serves() {
		return
	}
	if len(t.Strategies) == 0 {
		t.Strategies = []string{strategyDestHost, strategyDefault}
	}
	setDefault(&t.Audience, "ebb-tunnel")
}

// validate validates the section. required: the addressing leads through the tunnel.
func (t *ClusterTunnel) validate(v validator, required bool) {
	t.validateClient(v, required || t.APIServer)
	for i, a := range t.Allow {
		a.validate(v.index("allow", i))
	}
	networks(v.child("offers"), t.Offers.Networks)
	for i, s := range t.Strategies {
		if !slices.Contains([]string{strategyDestHost, strategyDefaultRoute, strategyDefault}, s) {
			v.index("strategies", i).errorf("", "must be destHost, defaultRoute or default, not %q", shorten(s))
		}
	}
	if t.ServiceAccount != "" {
		if parts := strings.Split(t.ServiceAccount, "/"); len(parts) != 2 || parts[0] == "" || parts[1] == "" {
			v.errorf("serviceAccount", "must be NAMESPACE/NAME, not %q", shorten(t.ServiceAccount))
		}
		if t.APIServer {
			v.errorf("serviceAccount", "does not go with apiServer: the tokens of the agents would be checked through the agents; let them have certificates")
		}
	}
	if !t.Serves() && (t.ServiceAccount != "" || t.Socket != "" || len(t.Strategies) > 0 || len(t.Offers.Networks)+len(t.Offers.Hosts) > 0 || t.Offers.DefaultRoute) {
		v.errorf("allow", "is required with the settings of a gateway: without it nothing may be dialled")
	}
}

func (t *ClusterTunnel) validateClient(v validator, required bool) {
	if t.Address == "" && (required || t.CAFile != "" || t.CertificateFile != "" || t.KeyFile != "") {
		v.errorf("address", "is required: host:port of the gateway's tunnel, such as ebb.example.com:8472")
	}
	if t.Address == "" {
		return
	}
	if host, port, err := net.SplitHostPort(t.Address); err != nil || host == "" || port == "" {
		v.errorf("address", "must be host:port, such as ebb.example.com:8472")
	}
	v.required("certificateFile", t.CertificateFile, "the certificate that the gateway knows you by")
	v.required("keyFile", t.KeyFile, "the key of certificateFile")
}

func (a *TunnelAllow) validate(v validator) {
	if len(a.Networks) == 0 && len(a.Hosts) == 0 {
		v.errorf("networks", "is required, or hosts: 0.0.0.0/0 and ::/0 are everything")
	}
	networks(v, a.Networks)
	for i, h := range a.Hosts {
		if h == "" || strings.ContainsAny(h, " \t\r\n:/*") {
			v.index("hosts", i).errorf("", "must be the name of a host, not %q", shorten(h))
		}
	}
	for i, p := range a.Ports {
		if p < 1 || p > 65535 {
			v.index("ports", i).errorf("", "must be a port from 1 to 65535, not %d", p)
		}
	}
}

func networks(v validator, all []string) {
	for i, text := range all {
		if _, err := ParseNetwork(text); err != nil {
			v.index("networks", i).errorf("", "%v", err)
		}
	}
}

// ParseNetwork reads a network such as 10.0.0.0/24, or a single address.
func ParseNetwork(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("must be a network such as 10.0.0.0/24, or an address, not %q", shorten(text))
	}
	if network != network.Masked() {
		return netip.Prefix{}, fmt.Errorf("must be the address of a network: %s, not %s", network.Masked(), network)
	}
	return network, nil
}

func (t *GatewayTunnel) setDefaults() {
	if t.Listen == "" {
		return
	}
	setDefault(&t.Servers, 1)
	setDefault(&t.Settle, Duration(15*time.Second))
	setDefault(&t.KeepAlive, Duration(10*time.Second))
}

func (t *GatewayTunnel) validate(v validator, tls TLS) {
	if t.Listen == "" {
		if t.ClientCAFile != "" || len(t.Agents)+len(t.Clients) > 0 || t.Servers != 0 || t.Settle != 0 || t.KeepAlive != 0 {
			v.errorf("listen", "is required: host:port, such as :8472")
		}
		return
	}
	if _, port, err := net.SplitHostPort(t.Listen); err != nil || port == "" {
		v.errorf("listen", "must be host:port, such as :8472")
	}
	if tls.CertificateFile == "" {
		v.errorf("listen", "needs gateway.tls: agents and clients check who the gateway is")
	}
	if t.ClientCAFile == "" && len(t.Agents)+len(t.Clients) > 0 {
		v.errorf("clientCAFile", "is required with agents and clients: who has signed their certificates")
	}
	v.atLeast("servers", int64(t.Servers), 1)
	v.duration("settle", t.Settle)
	if t.KeepAlive != 0 && t.KeepAlive < minTunnelKeepAlive {
		v.errorf("keepAlive", "must be %s or more, not %s", minTunnelKeepAlive, t.KeepAlive)
	}
	t.validatePeers(v)
}

// validatePeers validates those with certificates: each name is one agent's or one client's.
func (t *GatewayTunnel) validatePeers(v validator) {
	first := map[string]string{}
	name := func(item validator, commonName string) {
		item.required("commonName", commonName, "of the certificate's subject")
		if earlier, twice := first[commonName]; twice && commonName != "" {
			item.errorf("commonName", "%q is that of %s already", shorten(commonName), earlier)
		}
		first[commonName] = strings.TrimPrefix(item.path, v.path+".")
	}
	for i, a := range t.Agents {
		item := v.index("agents", i)
		name(item, a.CommonName)
		item.required("cluster", a.Cluster, "the one in which the agent is")
	}
	for i, c := range t.Clients {
		item := v.index("clients", i)
		name(item, c.CommonName)
		if len(c.Clusters) == 0 || slices.Contains(c.Clusters, "") {
			item.errorf("clusters", `must name clusters, or be ["*"] for all`)
		}
	}
}

// validateTunnels validates what the gateway and the clusters say of each other.
func (c *Config) validateTunnels(v validator) {
	serves, sockets, some := map[string]bool{}, map[string]int{}, false
	for i, cluster := range c.Clusters {
		serves[cluster.Name] = cluster.Tunnel.Serves()
		some = some || cluster.Tunnel.Serves()
		if socket := cluster.Tunnel.Socket; socket != "" {
			if earlier, twice := sockets[socket]; twice {
				v.index("clusters", i).errorf("tunnel.socket", "is that of clusters[%d] already", earlier)
			}
			sockets[socket] = i
		}
	}
	at := v.child("gateway").child("tunnel")
	if c.Gateway.Tunnel.Listen != "" && !some {
		at.errorf("listen", "has nobody to serve: no cluster has tunnel.allow")
	}
	check := func(item validator, key, name string) {
		if known, ok := serves[name]; name != "" && name != "*" && !known {
			why := "is not a cluster of this file"
			if ok {
				why = "has no tunnel.allow"
			}
			item.errorf(key, "%q %s", shorten(name), why)
		}
	}
	for i, a := range c.Gateway.Tunnel.Agents {
		check(at.index("agents", i), "cluster", a.Cluster)
	}
	for i, client := range c.Gateway.Tunnel.Clients {
		for _, name := range client.Clusters {
			check(at.index("clients", i), "clusters", name)
		}
	}
}
