package config

import (
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"time"
)

// Gateway are the settings of ebb-gateway. They are read when it starts; the files
// that they name are read again when they change.
type Gateway struct {
	Listen      string    `yaml:"listen,omitempty"` // default 127.0.0.1:8470; another host than this one needs TLS
	TLS         TLS       `yaml:"tls,omitempty"`
	TokensFile  string    `yaml:"tokensFile,omitempty"` // hashes of tokens and what they may do
	OIDC        OIDC      `yaml:"oidc,omitempty"`
	GracePeriod Duration  `yaml:"gracePeriod,omitempty"` // default 60s, from a SIGTERM to the end of the process
	LameDuck    *Duration `yaml:"lameDuck,omitempty"`    // default 5s, from a SIGTERM, for which it goes on answering at least; 0s = not longer than what runs
	RateLimit   RateLimit `yaml:"rateLimit,omitempty"`
	MaxStreams  int       `yaml:"maxStreams,omitempty"` // default 1000 event streams and waits at once
	// MaxStreamsPerPrincipal is how many of them one principal may have; default half.
	MaxStreamsPerPrincipal int           `yaml:"maxStreamsPerPrincipal,omitempty"`
	Endpoints              Endpoints     `yaml:"endpoints,omitempty"`
	Tunnel                 GatewayTunnel `yaml:"tunnel,omitempty"`
}

// Endpoints are the settings of the xDS server that tells Envoy and gRPC clients the
// endpoints of services. Clients need a token or a client certificate.
type Endpoints struct {
	Listen       string           `yaml:"listen,omitempty"`       // default none: they are not served; another host than this one needs TLS
	ClientCAFile string           `yaml:"clientCAFile,omitempty"` // PEM; a client may show a certificate that it has signed, in place of a token
	Clients      []EndpointClient `yaml:"clients,omitempty"`
	MaxStreamAge Duration         `yaml:"maxStreamAge,omitempty"` // default 30m; then a stream ends, 25 % earlier at most, and its client opens another one, perhaps to another gateway
}

// EndpointClient is what an xDS client with a client certificate may ask for.
type EndpointClient struct {
	CommonName string   `yaml:"commonName"` // of the certificate's subject
	Clusters   []string `yaml:"clusters"`   // names, or "*" for all
}

// TLS is the gateway's server certificate.
type TLS struct {
	CertificateFile string `yaml:"certificateFile,omitempty"` // PEM, with the certificates in between
	KeyFile         string `yaml:"keyFile,omitempty"`         // PEM
}

// OIDC says whose ID tokens the gateway accepts, and what they may do.
type OIDC struct {
	Issuer        string        `yaml:"issuer,omitempty"`        // URL, as the tokens have it in iss
	Audience      string        `yaml:"audience,omitempty"`      // that the tokens have in aud
	UsernameClaim string        `yaml:"usernameClaim,omitempty"` // default sub
	Bindings      []OIDCBinding `yaml:"bindings,omitempty"`
}

// OIDCBinding gives a role to whoever has a value in a claim.
type OIDCBinding struct {
	Claim    string   `yaml:"claim"`
	Value    string   `yaml:"value"`    // the claim's, or one of its list
	Role     string   `yaml:"role"`     // viewer, operator or admin
	Clusters []string `yaml:"clusters"` // names, or "*" for all
}

// RateLimit bounds what one principal may send.
type RateLimit struct {
	PerSecond int `yaml:"perSecond,omitempty"` // default 50 requests
	Burst     int `yaml:"burst,omitempty"`     // default 300 of them at once
}

// DefaultListen is the address at which the gateway listens by default.
const DefaultListen = "127.0.0.1:8470"

// minGracePeriod is the least time in which a request can end, and then the process.
const minGracePeriod = Duration(3 * time.Second)

// minStreamAge keeps clients from doing little else than to connect.
const minStreamAge = Duration(time.Second)

// WithDefaults returns the section with every default filled in. Load applies it.
func (g Gateway) WithDefaults() Gateway {
	setDefault(&g.Listen, DefaultListen)
	setDefault(&g.OIDC.UsernameClaim, "sub")
	setDefault(&g.GracePeriod, Duration(time.Minute))
	setDefaultPtr(&g.LameDuck, Duration(5*time.Second))
	setDefault(&g.RateLimit.PerSecond, 50)
	setDefault(&g.RateLimit.Burst, 300)
	setDefault(&g.MaxStreams, 1000)
	setDefault(&g.MaxStreamsPerPrincipal, max(1, g.MaxStreams/2))
	if g.Endpoints.Listen != "" {
		setDefault(&g.Endpoints.MaxStreamAge, Duration(30*time.Minute))
	}
	g.Tunnel.setDefaults()
	return g
}

// isSet reports whether the file has the section, with anything in it.
func (g Gateway) isSet() bool { return !reflect.DeepEqual(g, Gateway{}) }

func (g *Gateway) validate(v validator) {
	if g.Listen != "" {
		if _, port, err := net.SplitHostPort(g.Listen); err != nil || port == "" {
			v.errorf("listen", "must be host:port, such as 127.0.0.1:8470 or :8470")
		}
	}
	tls := v.child("tls")
	if (g.TLS.CertificateFile == "") != (g.TLS.KeyFile == "") {
		tls.errorf("", "needs certificateFile and keyFile, both")
	}
	g.OIDC.validate(v.child("oidc"))
	if g.GracePeriod != 0 && g.GracePeriod < minGracePeriod {
		v.errorf("gracePeriod", "must be %s or more, not %s", minGracePeriod, g.GracePeriod)
	}
	if g.LameDuck != nil && (*g.LameDuck < 0 || *g.LameDuck >= g.WithDefaults().GracePeriod) {
		v.errorf("lameDuck", "must be 0s or more and less than gracePeriod, not %s", g.LameDuck)
	}
	limit := v.child("rateLimit")
	limit.atLeast("perSecond", int64(g.RateLimit.PerSecond), 1)
	limit.atLeast("burst", int64(g.RateLimit.Burst), 1)
	v.atLeast("maxStreams", int64(g.MaxStreams), 1)
	v.atLeast("maxStreamsPerPrincipal", int64(g.MaxStreamsPerPrincipal), 1)
	g.Endpoints.validate(v.child("endpoints"), g.TLS)
	g.Tunnel.validate(v.child("tunnel"), g.TLS)
}

func (e *Endpoints) validate(v validator, tls TLS) {
	if e.Listen == "" {
		if e.ClientCAFile != "" || len(e.Clients) > 0 || e.MaxStreamAge != 0 {
			v.errorf("listen", "is required: host:port, such as 127.0.0.1:8471 or :8471")
		}
		return
	}
	if _, port, err := net.SplitHostPort(e.Listen); err != nil || port == "" {
		v.errorf("listen", "must be host:port, such as 127.0.0.1:8471 or :8471")
	}
	if e.MaxStreamAge != 0 && e.MaxStreamAge < minStreamAge {
		v.errorf("maxStreamAge", "must be %s or more, not %s", minStreamAge, e.MaxStreamAge)
	}
	if e.ClientCAFile != "" && tls.CertificateFile == "" {
		v.errorf("clientCAFile", "needs gateway.tls: clients show no certificate to a server that has none")
	}
	switch {
	case e.ClientCAFile != "" && len(e.Clients) == 0:
		v.errorf("clients", "at least one is required with clientCAFile: without it no certificate may ask for anything")
	case e.ClientCAFile == "" && len(e.Clients) > 0:
		v.errorf("clientCAFile", "is required with clients: who has signed their certificates")
	}
	for i, c := range e.Clients {
		item := v.index("clients", i)
		item.required("commonName", c.CommonName, "of the certificate's subject")
		if len(c.Clusters) == 0 || slices.Contains(c.Clusters, "") {
			item.errorf("clusters", `must name clusters, or be ["*"] for all`)
		}
	}
}

func (o *OIDC) validate(v validator) {
	if o.Issuer == "" {
		if o.Audience != "" || len(o.Bindings) > 0 {
			v.errorf("issuer", "is required: the URL that the tokens have in iss")
		}
		return
	}
	if err := validateIssuer(o.Issuer); err != nil {
		v.errorf("issuer", "%v", err)
	}
	v.required("audience", o.Audience, "what the tokens have in aud, so that one for somebody else is worth nothing here")
	if len(o.Bindings) == 0 {
		v.errorf("bindings", "at least one is required: without it no token may do anything")
	}
	for i, b := range o.Bindings {
		b.validate(v.index("bindings", i))
	}
}

func (b *OIDCBinding) validate(v validator) {
	v.required("claim", b.Claim, "the claim to look at, such as groups")
	v.required("value", b.Value, "what has to be in the claim")
	v.required("role", b.Role, "viewer, operator or admin")
	v.oneOf("role", b.Role, "viewer", "operator", "admin")
	if len(b.Clusters) == 0 || slices.Contains(b.Clusters, "") {
		v.errorf("clusters", `must name clusters, or be ["*"] for all`)
	}
}

// validateIssuer returns an error unless the issuer is an https URL, or an http URL of
// this machine.
func validateIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("must be a URL such as https://login.example.com")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && IsLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("must be https; http only to this machine itself")
}
