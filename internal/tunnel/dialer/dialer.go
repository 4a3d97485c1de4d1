// Package dialer dials through the tunnel of a gateway, by HTTP CONNECT over TLS.
package dialer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"ebb/internal/tunnel"
)

// connectTimeout is for the connection to the gateway and its TLS alone.
const connectTimeout = 10 * time.Second

// maxProblem is how much of a gateway's answer is read, in bytes.
const maxProblem = 4 << 10

// Options say which gateway is dialled, by whom, and for which cluster.
type Options struct {
	Cluster         string
	Address         string // host:port of the gateway's tunnel
	CAFile          string // PEM; empty = the system's authorities
	CertificateFile string // PEM
	KeyFile         string // PEM
}

// RefusedError is a gateway's refusal: of whoever dials, or of the destination. Another try
// fails in the same way until the gateway has other settings.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// CredentialError is a certificate, key or authority that cannot be read.
type CredentialError struct{ Err error }

func (e *CredentialError) Error() string { return e.Err.Error() }
func (e *CredentialError) Unwrap() error { return e.Err }

// Dialer dials destinations in a cluster. Its files are read again for each dial.
type Dialer struct{ opts Options }

// New returns a Dialer.
func New(o Options) *Dialer { return &Dialer{opts: o} }

// DialContext connects to a HOST:PORT in the cluster. The error names the gateway; it wraps a
// *RefusedError when the gateway does not allow the dial.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, fmt.Errorf("tunnel of cluster %s: protocol %q, want tcp", d.opts.Cluster, network)
	}
	c, err := d.dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("through the tunnel at %s: %w", d.opts.Address, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	raw, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) }) // what waits returns
	c, err := handshake(raw, d.opts.Cluster, address)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return c, nil
}

// connect connects to the gateway with what the files hold now.
func (d *Dialer) connect(ctx context.Context) (*tls.Conn, error) {
	config, err := d.opts.tls()
	if err != nil {
		return nil, &CredentialError{Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", d.opts.Address)
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil
}

func (o Options) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(o.CertificateFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tunnel.certificateFile and keyFile: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if o.CAFile == "" {
		return config, nil
	}
	data, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tunnel.caFile: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("tunnel.caFile: there is no certificate in %s", o.CAFile)
	}
	return config, nil
}

// handshake asks the gateway for a connection.
func handshake(raw *tls.Conn, cluster, address string) (net.Conn, error) {
	request := fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s: %s\r\n\r\n", address, address, tunnel.HeaderCluster, cluster)
	if _, err := io.WriteString(raw, request); err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(raw)
	answer, err := http.ReadResponse(buffered, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK { // its body is the connection
		return &conn{Conn: raw, buffered: buffered}, nil
	}
	return nil, problem(answer)
}

// problem reads why a gateway has not done what it was asked for.
func problem(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxProblem)) // what there is of it
	_ = answer.Body.Close()
	err := errors.New(strings.TrimSpace(string(text)))
	if answer.StatusCode == http.StatusForbidden {
		return &RefusedError{Err: err}
	}
	return err
}

// conn is a connection through the tunnel; what was read with the gateway's answer comes first.
type conn struct {
	*tls.Conn
	buffered *bufio.Reader
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.buffered.Read(p) }
