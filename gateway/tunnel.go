package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/tunnel"
	"ebb/internal/tunnel/dialer"
	"ebb/internal/tunnel/front"
	"ebb/internal/tunnel/server"
	"ebb/internal/wait"
)

// tunnelServer lets agents connect and clients dial through them.
type tunnelServer struct {
	server   *server.Server
	front    *front.Front
	tls      *tls.Config
	listener net.Listener
	sockets  map[string]*socket // by cluster
	clusters map[string]config.ClusterTunnel
	cordons  *cordons
	log      *zap.Logger
}

// openTunnel listens for agents and clients and returns the server, nil if none is configured.
func (g *gateway) openTunnel(ctx context.Context, registry *cluster.Registry) (_ *tunnelServer, err error) {
	set := g.settings.Tunnel
	if set.Listen == "" {
		return nil, nil
	}
	current, err := g.file.Current()
	if err != nil {
		return nil, err
	}
	t := &tunnelServer{clusters: map[string]config.ClusterTunnel{}, sockets: map[string]*socket{}}
	for _, c := range current.Clusters {
		if c.Tunnel.Serves() {
			t.clusters[c.Name] = c.Tunnel
		}
	}
	cas, err := g.openClientCAs("gateway.tunnel.clientCAFile", set.ClientCAFile)
	if err != nil {
		return nil, err
	}
	if t.tls, err = g.tlsConfig(cas, front.Protocols...); err != nil {
		return nil, err
	}
	if err := t.listen(ctx, set.Listen); err != nil {
		return nil, errors.Join(err, t.close())
	}
	log := g.log.Named("tunnel")
	t.log, t.cordons = log, newCordons(registry, log)
	peers := newTunnelPeers(set, t.clusters, registry)
	t.server = server.New(server.Options{
		ID: serverID(), Count: set.Servers, Settle: set.Settle.D(), Clusters: tunnelClusters(t.clusters), Agent: peers.agentCluster, Client: peers.clientCluster, Cordoned: t.cordons.has, Log: log,
	})
	t.front = front.New(front.Options{KeepAlive: set.KeepAlive.D(), Log: log}, func(r grpc.ServiceRegistrar) {
		t.server.RegisterAgents(r)
		t.server.RegisterClients(r)
	}, t.handler(peers))
	return t, nil
}

// serverID differs between all gateways, and between two lives of one.
func serverID() string {
	host, _ := os.Hostname() // for people only
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return host + "-" + hex.EncodeToString(b[:])
}

// tunnelClusters translates the settings, which are valid.
func tunnelClusters(all map[string]config.ClusterTunnel) map[string]server.Cluster {
	clusters := map[string]server.Cluster{}
	for name, set := range all {
		c := server.Cluster{Offers: tunnel.Identifiers{Hosts: set.Offers.Hosts, DefaultRoute: set.Offers.DefaultRoute}}
		for _, s := range set.Strategies {
			c.Strategies = append(c.Strategies, tunnel.Strategy(s))
		}
		for _, n := range set.Offers.Networks {
			network, _ := config.ParseNetwork(n)
			c.Offers.Networks = append(c.Offers.Networks, network)
		}
		for _, a := range set.Allow {
			rule := tunnel.Allow{Hosts: a.Hosts}
			for _, n := range a.Networks {
				network, _ := config.ParseNetwork(n)
				rule.Networks = append(rule.Networks, network)
			}
			for _, p := range a.Ports {
				rule.Ports = append(rule.Ports, uint16(p)) // #nosec G115 -- validated
			}
			c.Allow = append(c.Allow, rule)
		}
		clusters[name] = c
	}
	return clusters
}

func (t *tunnelServer) listen(ctx context.Context, address string) (err error) {
	if t.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	for name, set := range t.clusters {
		if set.Socket == "" {
			continue
		}
		if t.sockets[name], err = openSocket(ctx, set.Socket); err != nil {
			return fmt.Errorf("tunnel.socket of cluster %s: %w", name, err)
		}
	}
	return nil
}

// close ends the listeners; connections go on.
func (t *tunnelServer) close() error {
	var errs []error
	if t.listener != nil {
		errs = append(errs, t.listener.Close())
	}
	for _, s := range t.sockets {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// handler dials for clients, and tells them of the agents of their cluster.
func (t *tunnelServer) handler(peers *tunnelPeers) http.Handler {
	connect := t.server.Connect(peers.requestCluster)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+dialer.AgentsPath, func(w http.ResponseWriter, r *http.Request) {
		name, err := peers.requestCluster(r)
		if err != nil {
			server.RespondRefused(w, t.server.Refuse("client", name, err))
			return
		}
		own := []server.Status{}
		for _, s := range t.server.Connections() {
			if s.Cluster == name {
				own = append(own, s)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(own) // nobody is there to be told
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			connect.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// collectors returns the metrics of the server; t may be nil.
func (t *tunnelServer) collectors() []prometheus.Collector {
	if t == nil {
		return nil
	}
	return []prometheus.Collector{t.server}
}

// run serves until ctx ends. Then agents are sent to another gateway, clients may dial for as
// long as the lame duck lasts, and what is carried goes on until it has ended by itself or
// the grace period is over.
func (t *tunnelServer) run(ctx context.Context, grace, lameDuck time.Duration) error {
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	defer unwatch()
	t.cordons.watch(watching, t.clusters)
	sockets := map[string]net.Listener{}
	for name, s := range t.sockets {
		sockets[name] = s
	}
	failed := make(chan error, 1)
	go func() { failed <- t.front.Serve(t.tls, t.listener, sockets) }()
	select {
	case err := <-failed:
		return errors.Join(err, t.close())
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	t.server.Drain()
	_ = wait.Sleep(ending, lameDuck) // the grace period is longer
	_ = t.close()                    // the process ends, whatever this says
	if err := t.server.AwaitIdle(ending); err != nil {
		t.log.Warn("tunnel: the grace period is over, connections are cut", zap.Int("streams", t.server.Streams()))
	}
	t.front.Stop()
	return <-failed
}
