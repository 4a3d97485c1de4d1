package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"ebb/internal/api/server"
	"ebb/internal/cluster"
	"ebb/internal/engine"
	"ebb/internal/forecast"
	"ebb/internal/ops"
)

// serve connects to the engine and serves until ctx ends and the server has drained.
func (g *gateway) serve(ctx context.Context) error {
	auth, err := authenticators(g.settings, g.log)
	if err != nil {
		return err
	}
	client, namespace, err := engine.Connect(ctx, g.log)
	if err != nil {
		return err
	}
	defer client.Close()
	registry := cluster.NewRegistry(g.file, g.log)
	defer registry.Close()
	xds, err := g.openEndpoints(ctx, auth, registry)
	if err != nil {
		return err
	}
	through, err := g.openTunnel(ctx, registry)
	if err != nil {
		return err
	}
	listener, err := g.listen(ctx)
	if err != nil {
		return err
	}
	api := server.New(server.Options{
		Operations: ops.NewTemporal(client, namespace), Clusters: forecast.NewLocal(registry, g.clusters),
		Auth: auth, Log: g.log, Version: version, Grace: g.settings.GracePeriod.D(), LameDuck: g.settings.LameDuck.D(),
		PerSecond: g.settings.RateLimit.PerSecond, Burst: g.settings.RateLimit.Burst, MaxStreams: g.settings.MaxStreams, MaxStreamsPerPrincipal: g.settings.MaxStreamsPerPrincipal,
		Collectors: slices.Concat(xds.collectors(), through.collectors()), Followed: xds.followed,
	})
	g.log.Info("serving", zap.Stringer("address", listener.Addr()), zap.Bool("tls", g.settings.TLS.CertificateFile != ""), zap.String("version", version))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return api.Run(ctx, listener) })
	stop := whenTold(api.Leave)
	defer stop()
	if xds != nil {
		g.log.Info("serving endpoints over xDS", zap.Stringer("address", xds.listener.Addr()))
		group.Go(func() error { return xds.run(ctx, g.settings.GracePeriod.D()) })
	}
	if through != nil {
		g.log.Info("serving the tunnel", zap.Stringer("address", through.listener.Addr()), zap.Strings("clusters", slices.Sorted(maps.Keys(through.clusters))))
		group.Go(func() error { return through.run(ctx, g.settings.GracePeriod.D(), g.settings.LameDuck.D()) })
	}
	return group.Wait()
}

// clusters returns the names of the clusters that are configured now.
func (g *gateway) clusters() ([]string, error) {
	current, err := g.file.Current()
	if err != nil {
		return nil, err
	}
	return current.ClusterNames(), nil
}

// listen listens at the configured address, with TLS if there is a certificate.
func (g *gateway) listen(ctx context.Context) (net.Listener, error) {
	var pair *keyPair
	if g.settings.TLS.CertificateFile != "" {
		var err error
		if pair, err = openKeyPair(g.settings.TLS, g.log); err != nil {
			return nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", g.settings.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", g.settings.Listen, err)
	}
	if pair == nil {
		return l, nil
	}
	return pair.listen(l), nil
}
