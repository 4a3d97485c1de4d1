package tunneltest

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
)

// Proxy looks like the tunnel of a gateway, and dials by itself. It refuses what is not
// allowed.
type Proxy struct {
	*httptest.Server
	Allow func(cluster, address string) bool

	mu     sync.Mutex
	dialed []string // cluster and address
}

// NewProxy returns a proxy with a certificate of the authority, at 127.0.0.1.
func (a *Authority) NewProxy(allow func(cluster, address string) bool) (*Proxy, error) {
	certificate, key, err := a.Issue("proxy")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	p := &Proxy{Allow: allow}
	p.Server = httptest.NewUnstartedServer(p)
	p.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	p.StartTLS()
	return p, nil
}

// Address returns the host:port of the proxy.
func (p *Proxy) Address() string { return p.Listener.Addr().String() }

// Dialed returns what was dialled, as "cluster host:port".
func (p *Proxy) Dialed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.dialed...)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cluster := r.Header.Get("ebb-cluster")
	if !p.Allow(cluster, r.Host) {
		http.Error(w, "a dial to "+r.Host+" is not allowed", http.StatusForbidden)
		return
	}
	to, err := new(net.Dialer).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = from.Close() }()
	p.mu.Lock()
	p.dialed = append(p.dialed, cluster+" "+r.Host)
	p.mu.Unlock()
	_, _ = fmt.Fprint(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		_, _ = io.Copy(to, buffered)
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}
