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
	RateLimit   RateLimit `yaml:"rateLimit,omitempty"`
	MaxStreams  int       `yaml:"maxStreams,omitempty"` // default 1000 event streams and waits at once
	Endpoints   Endpoints `yaml:"endpoints,omitempty"`
}

// Endpoints says where Envoy and gRPC clients ask for the endpoints of services (xDS).
// They need a token, as everybody, or a certificate.
type Endpoints struct {
	Listen       string           `yaml:"listen,omitempty"`       // default none: they are not served; another host than this one needs TLS
	ClientCAFile string           `yaml:"clientCAFile,omitempty"` // PEM; a client may show a certificate that it has signed, in place of a token
	Clients      []EndpointClient `yaml:"clients,omitempty"`
}

// EndpointClient says what a client that shows a certificate may ask for.
type EndpointClient struct {
	CommonName string   `yaml:"commonName"` // of the certificate's subject
	Clusters   []string `yaml:"clusters"`   // names, or "*" for all
}

// TLS says with what the gateway proves who it is.
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

// DefaultListen is where the gateway listens, and its clients look for it.
const DefaultListen = "127.0.0.1:8470"

// minGrace leaves a request some time, and the process some to end.
const minGrace = Duration(3 * time.Second)

// WithDefaults is the section with every default filled in. Load has applied it already.
func (g Gateway) WithDefaults() Gateway {
	orDefault(&g.Listen, DefaultListen)
	orDefault(&g.OIDC.UsernameClaim, "sub")
	orDefault(&g.GracePeriod, Duration(time.Minute))
	orDefault(&g.RateLimit.PerSecond, 50)
	orDefault(&g.RateLimit.Burst, 300)
	orDefault(&g.MaxStreams, 1000)
	return g
}

// given reports whether the file has the section, with anything in it.
func (g Gateway) given() bool { return !reflect.DeepEqual(g, Gateway{}) }

func (g *Gateway) check(k checker) {
	if g.Listen != "" {
		if _, port, err := net.SplitHostPort(g.Listen); err != nil || port == "" {
			k.fault("listen", "must be host:port, such as 127.0.0.1:8470 or :8470")
		}
	}
	tls := k.under("tls")
	if (g.TLS.CertificateFile == "") != (g.TLS.KeyFile == "") {
		tls.fault("", "needs certificateFile and keyFile, both")
	}
	g.OIDC.check(k.under("oidc"))
	if g.GracePeriod != 0 && g.GracePeriod < minGrace {
		k.fault("gracePeriod", "must be %s or more, not %s", minGrace, g.GracePeriod)
	}
	limit := k.under("rateLimit")
	limit.atLeast("perSecond", int64(g.RateLimit.PerSecond), 1)
	limit.atLeast("burst", int64(g.RateLimit.Burst), 1)
	k.atLeast("maxStreams", int64(g.MaxStreams), 1)
	g.Endpoints.check(k.under("endpoints"), g.TLS)
}

func (e *Endpoints) check(k checker, tls TLS) {
	if e.Listen == "" {
		if e.ClientCAFile != "" || len(e.Clients) > 0 {
			k.fault("listen", "is required: host:port, such as 127.0.0.1:8471 or :8471")
		}
		return
	}
	if _, port, err := net.SplitHostPort(e.Listen); err != nil || port == "" {
		k.fault("listen", "must be host:port, such as 127.0.0.1:8471 or :8471")
	}
	if e.ClientCAFile != "" && tls.CertificateFile == "" {
		k.fault("clientCAFile", "needs gateway.tls: clients show no certificate to a server that has none")
	}
	switch {
	case e.ClientCAFile != "" && len(e.Clients) == 0:
		k.fault("clients", "at least one is required with clientCAFile: without it no certificate may ask for anything")
	case e.ClientCAFile == "" && len(e.Clients) > 0:
		k.fault("clientCAFile", "is required with clients: who has signed their certificates")
	}
	for i, c := range e.Clients {
		item := k.item("clients", i)
		item.required("commonName", c.CommonName, "of the certificate's subject")
		if len(c.Clusters) == 0 || slices.Contains(c.Clusters, "") {
			item.fault("clusters", `must name clusters, or be ["*"] for all`)
		}
	}
}

func (o *OIDC) check(k checker) {
	if o.Issuer == "" {
		if o.Audience != "" || len(o.Bindings) > 0 {
			k.fault("issuer", "is required: the URL that the tokens have in iss")
		}
		return
	}
	if err := checkIssuer(o.Issuer); err != nil {
		k.fault("issuer", "%v", err)
	}
	k.required("audience", o.Audience, "what the tokens have in aud, so that one for somebody else is worth nothing here")
	if len(o.Bindings) == 0 {
		k.fault("bindings", "at least one is required: without it no token may do anything")
	}
	for i, b := range o.Bindings {
		b.check(k.item("bindings", i))
	}
}

func (b *OIDCBinding) check(k checker) {
	k.required("claim", b.Claim, "the claim to look at, such as groups")
	k.required("value", b.Value, "what has to be in the claim")
	k.required("role", b.Role, "viewer, operator or admin")
	k.oneOf("role", b.Role, "viewer", "operator", "admin")
	if len(b.Clusters) == 0 || slices.Contains(b.Clusters, "") {
		k.fault("clusters", `must name clusters, or be ["*"] for all`)
	}
}

// checkIssuer accepts an https URL; http only where nobody is in between.
func checkIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("must be a URL such as https://login.example.com")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && Loopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("must be https; http only to this machine itself")
}
