package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"ebb/internal/tunnel"
)

// Of the connection to a gateway: gRPC asks no more often than every 10 seconds.
const (
	keepAliveInterval = 10 * time.Second // of silence, then the gateway is asked whether it lives
	keepAliveTimeout  = 10 * time.Second // for its answer; then the connection is closed
)

// anyAddress makes an agent try the addresses of a name in random order: those of several
// gateways, which it connects to one by one.
const anyAddress = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`

// proof is what the files of the credentials hold now.
type proof struct {
	certificate *tls.Certificate
	token       string
}

func (c credentials) read() (p proof, err error) {
	if c.tokenFile == "" {
		pair, err := tls.LoadX509KeyPair(c.certificateFile, c.keyFile)
		if err != nil {
			return p, fmt.Errorf("--certificate-file and --key-file: %w", err)
		}
		return proof{certificate: &pair}, nil
	}
	data, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return p, fmt.Errorf("--token-file: %w", err)
	}
	if p.token = strings.TrimSpace(string(data)); p.token == "" {
		return p, fmt.Errorf("--token-file: %s is empty", c.tokenFile)
	}
	return p, nil
}

func readAuthorities(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path) // #nosec G304 -- the operator's own path
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--ca-file: there is no certificate in %s", path)
	}
	return pool, nil
}

// connect returns a new connection to a gateway, with what the files hold now.
func (s settings) connect() (*grpc.ClientConn, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.serverName}
	if s.caFile != "" {
		pool, err := readAuthorities(s.caFile)
		if err != nil {
			return nil, err
		}
		secure.RootCAs = pool
	}
	p, err := s.read()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveInterval, Timeout: keepAliveTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultServiceConfig(anyAddress),
	}
	if p.certificate != nil {
		secure.Certificates = []tls.Certificate{*p.certificate}
	} else {
		options = append(options, grpc.WithPerRPCCredentials(bearer{token: p.token, cluster: s.cluster}))
	}
	return grpc.NewClient(s.server, append(options, grpc.WithTransportCredentials(grpccredentials.NewTLS(secure)))...)
}

// bearer sends the token of a ServiceAccount, and of which cluster it is.
type bearer struct{ token, cluster string }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token, tunnel.HeaderCluster: b.cluster}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }
