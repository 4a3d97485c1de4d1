package main

import (
	"context"
	"fmt"
	"net"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"ebb/internal/api"
	"ebb/internal/cluster"
	"ebb/internal/engine"
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// serve connects and serves until ctx ends and the server has drained.
func (c *command) serve(ctx context.Context) error {
	auth, err := authenticators(c.settings, c.log)
	if err != nil {
		return err
	}
	settings, err := engine.Resolve(engine.Options{})
	if err != nil {
		return err
	}
	client, err := engine.Dial(ctx, c.log, engine.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	registry := cluster.NewRegistry(c.file, c.log)
	defer registry.Close()
	xds, err := c.openEndpoints(ctx, auth, registry)
	if err != nil {
		return err
	}
	listener, err := c.open(ctx)
	if err != nil {
		return err
	}
	server := api.NewServer(api.Options{
		Operations: ops.NewTemporal(client, settings.Namespace), Clusters: forecast.NewLocal(registry, c.clusters, c.log),
		Auth: auth, Log: c.log, Version: version, Grace: c.settings.GracePeriod.D(),
		PerSecond: c.settings.RateLimit.PerSecond, Burst: c.settings.RateLimit.Burst, MaxStreams: c.settings.MaxStreams,
		Collectors: xds.collectors(),
	})
	c.log.Info("serving", zap.Stringer("address", listener.Addr()), zap.Bool("tls", c.settings.TLS.CertificateFile != ""), zap.String("version", version))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx, listener) })
	if xds != nil {
		c.log.Info("serving endpoints over xDS", zap.Stringer("address", xds.listener.Addr()))
		group.Go(func() error { return xds.run(ctx, c.settings.GracePeriod.D()) })
	}
	return group.Wait()
}

// clusters are the names of those that are configured now.
func (c *command) clusters() ([]string, error) {
	current, err := c.file.Current()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(current.Clusters))
	for i, one := range current.Clusters {
		names[i] = one.Name
	}
	return names, nil
}

// open is the listener, with TLS when there is a certificate.
func (c *command) open(ctx context.Context) (net.Listener, error) {
	var pair *keyPair
	if c.settings.TLS.CertificateFile != "" {
		var err error
		if pair, err = openKeyPair(c.settings.TLS, c.log); err != nil {
			return nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.settings.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", c.settings.Listen, err)
	}
	if pair == nil {
		return l, nil
	}
	return pair.listen(l), nil
}
