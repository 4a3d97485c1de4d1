package endpoints

import (
	"context"
	"strconv"
	"sync"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/clusterstate"
	"ebb/internal/mirror"
)

// Indexes of EndpointSlices.
const (
	byService = "service" // namespace/name
	byNode    = "node"
)

// source is what is known of the services of one cluster. While its API server cannot
// be reached it stays as it was.
type source struct {
	services *mirror.Mirror[core.Service]
	slices   *mirror.Mirror[discovery.EndpointSlice]
	nodes    *mirror.Mirror[core.Node]
	wake     chan struct{} // has an entry when something has changed

	mu      sync.Mutex
	changed map[string]bool // services, namespace/name
	all     bool            // any service may have changed
	left    map[string]bool // nodes that an operation has cordoned, also after they are gone
}

func newSource(client kubernetes.Interface) *source {
	s := &source{wake: make(chan struct{}, 1), changed: map[string]bool{}, left: map[string]bool{}}
	services, slices, nodes := client.CoreV1().Services(""), client.DiscoveryV1().EndpointSlices(""), client.CoreV1().Nodes()
	s.services = mirror.New(client, mirror.Options[core.Service]{
		Name: "services", Trim: trimService, Changed: func(o *core.Service) { s.note(o == nil, func() string { return o.Namespace + "/" + o.Name }) },
	}, services.List, services.Watch)
	s.slices = mirror.New(client, mirror.Options[discovery.EndpointSlice]{
		Name: "endpointslices", Trim: trimSlice,
		Indexers: map[string]func(*discovery.EndpointSlice) []string{
			byService: func(o *discovery.EndpointSlice) []string { return []string{serviceOf(o)} }, byNode: nodesOf,
		},
		Changed: func(o *discovery.EndpointSlice) { s.note(o == nil, func() string { return serviceOf(o) }) },
	}, slices.List, slices.Watch)
	s.nodes = mirror.New(client, mirror.Options[core.Node]{Name: "nodes", Trim: trimNode, Changed: s.nodeChanged}, nodes.List, nodes.Watch)
	return s
}

// run follows the cluster until ctx ends. When all of it is known, and after each
// change, publish gets the services that may have changed, nil = any of them.
func (s *source) run(ctx context.Context, log *zap.Logger, publish func(services []string)) {
	var going sync.WaitGroup
	defer going.Wait()
	for _, m := range []interface{ Run(context.Context) }{s.services, s.slices, s.nodes} {
		going.Go(func() { m.Run(ctx) })
	}
	for _, synced := range []<-chan struct{}{s.services.Synced(), s.slices.Synced(), s.nodes.Synced()} {
		select {
		case <-synced:
		case <-ctx.Done():
			return
		}
	}
	log.Info("endpoints are known", zap.Int("services", len(s.services.All())))
	for {
		select {
		case <-s.wake:
			publish(s.take())
		case <-ctx.Done():
			return
		}
	}
}

// known reports whether all of the cluster has been seen once.
func (s *source) known() bool {
	for _, synced := range []<-chan struct{}{s.services.Synced(), s.slices.Synced(), s.nodes.Synced()} {
		select {
		case <-synced:
		default:
			return false
		}
	}
	return true
}

// note remembers that a service may have changed.
func (s *source) note(all bool, service func() string) {
	s.mu.Lock()
	if all {
		s.all = true
	} else {
		s.changed[service()] = true
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // an entry is there already
	}
}

// take is what note has remembered; nil = any service.
func (s *source) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	services := make([]string, 0, len(s.changed))
	for name := range s.changed {
		services = append(services, name)
	}
	if s.all {
		services = nil
	}
	s.all = false
	clear(s.changed)
	return services
}

// nodeChanged looks whether a node begins or ceases to leave. One that is gone stays
// as it was: what is left of its endpoints must not come back.
func (s *source) nodeChanged(node *core.Node) {
	if node == nil {
		for _, n := range s.nodes.All() {
			s.setLeft(n.Name, leaves(n))
		}
		return
	}
	if now := s.nodes.Get(node.Name); now != nil {
		s.setLeft(now.Name, leaves(now))
	}
}

func (s *source) setLeft(node string, left bool) {
	s.mu.Lock()
	same := s.left[node] == left
	s.left[node] = left
	s.mu.Unlock()
	if same {
		return
	}
	for _, slice := range s.slices.By(byNode, node) {
		s.note(false, func() string { return serviceOf(slice) })
	}
}

// leaving reports whether endpoints on a node count as terminating.
func (s *source) leaving(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[node]
}

// leaves reports whether an operation has cordoned a node.
func leaves(n *core.Node) bool {
	return n.Spec.Unschedulable && n.Annotations[clusterstate.CordonedBy] != ""
}

// decide is every endpoint that a name stands for; none when there is no such service
// or port.
func (s *source) decide(n Name) (transport core.Protocol, endpoints []Endpoint) {
	key := n.Namespace + "/" + n.Service
	service := s.services.Get(key)
	if service == nil {
		return "", nil
	}
	port, ok := portOf(service, n.Port)
	if _, carried := transports[protocol(port.Protocol)]; !ok || !carried {
		return "", nil
	}
	return port.Protocol, Decide(s.slices.By(byService, key), n.addressType(service), port, s.leaving)
}

// portOf is the port of a service that has that name or that number. A service
// without ports, which is headless, is reached at any number.
func portOf(service *core.Service, text string) (Port, bool) {
	number, _ := strconv.ParseInt(text, 10, 32)
	for _, p := range service.Spec.Ports {
		if p.Name == text || number > 0 && int64(p.Port) == number {
			return Port{Name: p.Name, Protocol: p.Protocol, Number: p.Port}, true
		}
	}
	return Port{Number: int32(number)}, len(service.Spec.Ports) == 0 && number > 0 // #nosec G109 G115 -- parsed as 32 bits
}

func serviceOf(slice *discovery.EndpointSlice) string {
	return slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]
}

func nodesOf(slice *discovery.EndpointSlice) []string {
	var nodes []string
	for _, e := range slice.Endpoints {
		if e.NodeName != nil {
			nodes = append(nodes, *e.NodeName)
		}
	}
	return nodes
}

// trimService keeps what decide reads.
func trimService(s *core.Service) {
	s.ManagedFields, s.Annotations, s.Labels, s.Status = nil, nil, nil, core.ServiceStatus{}
	s.Spec = core.ServiceSpec{Ports: s.Spec.Ports, IPFamilies: s.Spec.IPFamilies}
}

func trimSlice(s *discovery.EndpointSlice) { s.ManagedFields, s.Annotations = nil, nil }

func trimNode(n *core.Node) {
	n.ManagedFields, n.Labels, n.Status = nil, nil, core.NodeStatus{}
}
