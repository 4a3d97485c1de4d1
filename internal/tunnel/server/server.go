// Package server takes connections from agents and dials over them, for clients that speak
// konnectivity's protocol or HTTP CONNECT, and for this process.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"ebb/internal/tunnel"
	"ebb/internal/tunnel/session"
	"ebb/internal/wait"
)

// settleInterval is how often a dial looks for agents while the server settles.
const settleInterval = 50 * time.Millisecond

// Options of a server.
type Options struct {
	ID       string        // differs between all servers that agents may meet
	Count    int           // how many servers an agent connects to; at least 1
	Settle   time.Duration // after New, for which a dial waits for an agent that leads there: agents need a moment to come back
	Clusters map[string]Cluster

	// Agent returns the cluster of the agent that opened a stream, Client the one that a client
	// dials in. Their errors are gRPC statuses, and are sent.
	Agent  func(ctx context.Context) (cluster string, err error)
	Client func(ctx context.Context) (cluster string, err error)

	// Cordoned reports whether an agent is on a node that is cordoned. nil = none is.
	Cordoned func(cluster string, agent Agent) bool

	Log *zap.Logger
}

// Cluster is what the agents of a cluster may offer and where its clients may dial.
type Cluster struct {
	Strategies []tunnel.Strategy
	Offers     tunnel.Identifiers
	Allow      []tunnel.Allow
}

// Agent is the one at the other end of a connection.
type Agent struct {
	ID          string
	Identifiers tunnel.Identifiers
}

// IsOn reports whether the agent is on a node: it has its name as ID, or offers the node by
// its name or by one of its addresses.
func (a Agent) IsOn(node string, addresses []netip.Addr) bool {
	return a.ID == node || slices.Contains(a.Identifiers.Hosts, strings.ToLower(node)) ||
		slices.ContainsFunc(a.Identifiers.Addresses, func(ip netip.Addr) bool { return slices.Contains(addresses, ip) })
}

// Server has the connections of agents. It is safe for concurrent use.
type Server struct {
	opts    Options
	log     *zap.Logger
	metrics *metrics
	settled time.Time // when dials wait for agents no more

	mu          sync.Mutex
	draining    bool                     // no agent is taken any more
	connections map[string][]*connection // by cluster
	chosen      int64                    // dials so far: when a connection was chosen last
}

// connection is an agent's.
type connection struct {
	Agent
	session     *session.Session
	flowControl bool // it is one of our own
	since       time.Time

	draining   bool // guarded by Server.mu, as the rest
	drainedAt  time.Time
	lastChosen int64
}

// New returns a server that has no connections yet.
func New(o Options) *Server {
	o.Count = max(1, o.Count)
	if o.Cordoned == nil {
		o.Cordoned = func(string, Agent) bool { return false }
	}
	return &Server{opts: o, log: o.Log, metrics: newMetrics(), settled: time.Now().Add(o.Settle), connections: map[string][]*connection{}}
}

// ErrNotAllowed is returned for a dial that the configuration does not allow.
var ErrNotAllowed = errors.New("not allowed")

// Dial connects to a HOST:PORT in a cluster over one of its agents. When the agent's
// connection ends before it has answered, another one is asked.
func (s *Server) Dial(ctx context.Context, cluster, network, address string) (*session.Conn, error) {
	began := time.Now()
	c, strategy, err := s.dial(ctx, cluster, network, address)
	s.metrics.dialled(cluster, strategy, err, time.Since(began))
	if err != nil {
		s.log.Warn("tunnel: a dial has failed", zap.String("cluster", cluster), zap.String("destination", address), zap.Error(err))
		return nil, fmt.Errorf("tunnel to cluster %s: %w", cluster, err)
	}
	return c, nil
}

func (s *Server) dial(ctx context.Context, cluster, network, address string) (*session.Conn, tunnel.Strategy, error) {
	settings, known := s.opts.Clusters[cluster]
	switch {
	case !known:
		return nil, "", fmt.Errorf("%w: the configuration has no tunnel for it", ErrNotAllowed)
	case network != "tcp":
		return nil, "", fmt.Errorf("%w: protocol %q, want tcp", ErrNotAllowed, network)
	}
	d, err := tunnel.ParseDestination(address)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	if err := tunnel.Check(settings.Allow, d); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	tried := map[*connection]bool{}
	var ended error
	for {
		over, strategy, err := s.choose(cluster, settings.Strategies, d, tried)
		if errors.Is(err, tunnel.ErrNoAgent) && s.awaitAgent(ctx) {
			continue
		}
		if err != nil {
			return nil, strategy, errors.Join(err, ended)
		}
		c, err := over.session.Dial(ctx, network, d.String())
		if !errors.Is(err, session.ErrEnded) {
			return c, strategy, err
		}
		tried[over], ended = true, fmt.Errorf("over agent %s: %w", over.ID, err)
	}
}

// awaitAgent lets some time pass and returns true, if there is any for which a dial may wait.
func (s *Server) awaitAgent(ctx context.Context) bool {
	return time.Now().Before(s.settled) && wait.Sleep(ctx, settleInterval) == nil
}

// choose picks the connection that takes a dial, except for those that were tried.
func (s *Server) choose(cluster string, strategies []tunnel.Strategy, d tunnel.Destination, tried map[*connection]bool) (*connection, tunnel.Strategy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var candidates []*connection
	var facts []tunnel.Connection
	for _, c := range s.connections[cluster] {
		if tried[c] {
			continue
		}
		candidates = append(candidates, c)
		facts = append(facts, tunnel.Connection{
			Identifiers: c.Identifiers, Draining: c.draining, Cordoned: s.opts.Cordoned(cluster, c.Agent), Streams: c.session.Streams(), LastChosen: c.lastChosen,
		})
	}
	i, strategy, err := tunnel.Choose(facts, strategies, d)
	if err != nil {
		return nil, "", err
	}
	s.chosen++
	candidates[i].lastChosen = s.chosen
	return candidates[i], strategy, nil
}

// add reports whether the server takes the connection; one that drains does not.
func (s *Server) add(cluster string, c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.connections[cluster] = append(s.connections[cluster], c)
	return true
}

func (s *Server) remove(cluster string, c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections[cluster] = slices.DeleteFunc(s.connections[cluster], func(other *connection) bool { return other == c })
}

// drain marks one connection, for good; another one of the same agent is not concerned.
func (s *Server) drain(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.draining {
		c.draining, c.drainedAt = true, time.Now()
	}
}

// Status is how a connection is doing.
type Status struct {
	Cluster string    `json:"cluster"`
	AgentID string    `json:"agentID"`
	Offers  string    `json:"offers,omitempty"` // as agentIdentifiers has it
	Since   time.Time `json:"since"`
	State   State     `json:"state"`
	Streams int       `json:"streams"` // dials under way and connections
}

// State of a connection.
type State string

// States.
const (
	Ready    State = "Ready"
	Cordoned State = "Cordoned" // its node is: others come first
	Draining State = "Draining" // others come first, for good
)

// Connections returns the connections of all clusters, ordered by cluster.
func (s *Server) Connections() (all []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cluster := range slices.Sorted(maps.Keys(s.connections)) {
		for _, c := range s.connections[cluster] {
			all = append(all, Status{
				Cluster: cluster, AgentID: c.ID, Offers: c.Identifiers.String(), Since: c.since, State: s.state(cluster, c), Streams: c.session.Streams(),
			})
		}
	}
	return all
}

func (s *Server) state(cluster string, c *connection) State {
	switch {
	case c.draining:
		return Draining
	case s.opts.Cordoned(cluster, c.Agent):
		return Cordoned
	}
	return Ready
}
