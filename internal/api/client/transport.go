package client

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

const (
	// connectTimeout is for a connection, and again for its TLS handshake.
	connectTimeout = 10 * time.Second
	// pingAfter is for how long an HTTP/2 connection may be silent before it is
	// pinged, and pingTimeout for how long its answer may take.
	pingAfter, pingTimeout = 10 * time.Second, 10 * time.Second
)

// newTransport returns a transport that trusts roots, nil = those of the system. All
// requests share an HTTP/2 connection. One that has died without a word, as behind a
// firewall that has forgotten it, would take every retry as well: pings find it out,
// and the next attempt dials.
func newTransport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		IdleConnTimeout:     90 * time.Second,
	}
}
