package cluster

import (
	"context"
	"net"

	"ebb/internal/config"
	"ebb/internal/tunnel/dialer"
)

// Tunnel returns what dials in the network of a cluster through the agents there, as
// configured.
func Tunnel(settings config.Cluster) *dialer.Dialer { return dialer.New(tunnelOptions(settings)) }

func tunnelOptions(settings config.Cluster) dialer.Options {
	t := settings.Tunnel
	return dialer.Options{Cluster: settings.Name, Address: t.Address, CAFile: t.CAFile, CertificateFile: t.CertificateFile, KeyFile: t.KeyFile}
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialAPIServer returns what connects to the API server.
func dialAPIServer(settings config.Cluster) dialFunc {
	if !settings.Tunnel.APIServer {
		return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	through := Tunnel(settings)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return through.DialContext(ctx, network, address)
	}
}
