package endpoints

import (
	"context"
	"maps"
	"strconv"
	"sync"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"ebb/internal/cluster"
	"ebb/internal/mirror"
)

// Indexes of EndpointSlices.
const (
	byService = "service" // namespace/name
	byNode    = "node"
)

// clusterWatcher watches the Services, EndpointSlices and Nodes of one cluster. While the
// API server cannot be reached, its state stays as it was.
type clusterWatcher struct {
	client   kubernetes.Interface
	stop     context.CancelFunc
	services *mirror.Mirror[core.Service]
	slices   *mirror.Mirror[discovery.EndpointSlice]
	nodes    *mirror.Mirror[core.Node]
	wake     chan struct{} // of capacity 1; filled when something has changed

	mu         sync.Mutex
	changed    map[string]bool // services, namespace/name
	allChanged bool            // any service may have changed
	draining   map[string]bool // nodes that an operation drains or has drained, also after their deletion
}

// newClusterWatcher returns a watcher to which draining nodes are so until it has seen them.
func newClusterWatcher(client kubernetes.Interface, draining map[string]bool) *clusterWatcher {
	s := &clusterWatcher{client: client, wake: make(chan struct{}, 1), changed: map[string]bool{}, draining: draining}
	services, slices, nodes := client.CoreV1().Services(""), client.DiscoveryV1().EndpointSlices(""), client.CoreV1().Nodes()
	s.services = mirror.New(client, mirror.Options[core.Service]{
		Resource: "services", Transform: transformService, OnChange: func(o *core.Service) { s.markChanged(o == nil, func() string { return o.Namespace + "/" + o.Name }) },
	}, services.List, services.Watch)
	s.slices = mirror.New(client, mirror.Options[discovery.EndpointSlice]{
		Resource: "endpointslices", Transform: transformSlice,
		Indexers: map[string]func(*discovery.EndpointSlice) []string{
			byService: func(o *discovery.EndpointSlice) []string { return []string{serviceKey(o)} }, byNode: nodeNames,
		},
		OnChange: func(o *discovery.EndpointSlice) { s.markChanged(o == nil, func() string { return serviceKey(o) }) },
	}, slices.List, slices.Watch)
	s.nodes = mirror.New(client, mirror.Options[core.Node]{Resource: "nodes", Transform: transformNode, OnChange: s.nodeChanged}, nodes.List, nodes.Watch)
	return s
}

// run watches the cluster until ctx ends. Once it has synced, and after each change, it
// calls publish with the keys of the services that may have changed, nil for all.
func (s *clusterWatcher) run(ctx context.Context, log *zap.Logger, publish func(services []string)) {
	var reflectors sync.WaitGroup
	defer reflectors.Wait()
	for _, m := range s.mirrors() {
		reflectors.Go(func() { m.Run(ctx) })
	}
	for _, m := range s.mirrors() {
		select {
		case <-m.Synced():
		case <-ctx.Done():
			return
		}
	}
	log.Info("endpoints are known", zap.Int("services", len(s.services.List())))
	for {
		select {
		case <-s.wake:
			publish(s.takeChanged())
		case <-ctx.Done():
			return
		}
	}
}

// hasSynced reports whether all objects have been listed once.
func (s *clusterWatcher) hasSynced() bool {
	for _, m := range s.mirrors() {
		select {
		case <-m.Synced():
		default:
			return false
		}
	}
	return true
}

// mirrored is the part of a mirror that does not depend on its type of object.
type mirrored interface {
	Run(ctx context.Context)
	Synced() <-chan struct{}
	Status() mirror.Status
}

func (s *clusterWatcher) mirrors() []mirrored { return []mirrored{s.services, s.slices, s.nodes} }

// statuses returns how each mirror stands with the API server.
func (s *clusterWatcher) statuses() []mirror.Status {
	all := make([]mirror.Status, 0, len(s.mirrors()))
	for _, m := range s.mirrors() {
		all = append(all, m.Status())
	}
	return all
}

// markChanged records that a service, or any service, may have changed.
func (s *clusterWatcher) markChanged(all bool, service func() string) {
	s.mu.Lock()
	if all {
		s.allChanged = true
	} else {
		s.changed[service()] = true
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // it is filled already
	}
}

// takeChanged returns and clears what markChanged has recorded; nil = any service.
func (s *clusterWatcher) takeChanged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	services := make([]string, 0, len(s.changed))
	for name := range s.changed {
		services = append(services, name)
	}
	if s.allChanged {
		services = nil
	}
	s.allChanged = false
	clear(s.changed)
	return services
}

// nodeChanged updates which nodes are drained by an operation; nil = any node. A node
// that was deleted keeps its state: endpoints that it still has must stay terminating.
func (s *clusterWatcher) nodeChanged(node *core.Node) {
	if node == nil {
		for _, n := range s.nodes.List() {
			s.setDraining(n.Name, cluster.DrainedBy(n) != "")
		}
		return
	}
	if now := s.nodes.Get(node.Name); now != nil {
		s.setDraining(now.Name, cluster.DrainedBy(now) != "")
	}
}

// setDraining records whether a node is drained by an operation and marks the services
// that have endpoints on it when that changes.
func (s *clusterWatcher) setDraining(node string, draining bool) {
	s.mu.Lock()
	unchanged := s.draining[node] == draining
	s.draining[node] = draining
	s.mu.Unlock()
	if unchanged {
		return
	}
	for _, slice := range s.slices.ByIndex(byNode, node) {
		s.markChanged(false, func() string { return serviceKey(slice) })
	}
}

// isDraining reports whether an operation drains a node, or has: endpoints on it count as
// terminating. One that is only cordoned is not among them: an operation cordons all its
// nodes at once and drains them one after the other, and whoever is left must not carry the
// traffic of all of them meanwhile.
func (s *clusterWatcher) isDraining(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining[node]
}

// drainingNodes returns the nodes that an operation drains.
func (s *clusterWatcher) drainingNodes() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.draining)
}

// endpointsOf returns the endpoints of a resource name, none when there is no such service
// or port, and the port's protocol.
func (s *clusterWatcher) endpointsOf(n ResourceName) (protocol core.Protocol, endpoints []Endpoint) {
	key := n.Namespace + "/" + n.Service
	service := s.services.Get(key)
	if service == nil || service.Spec.Type == core.ServiceTypeExternalName { // whose old slices nobody removes
		return "", nil
	}
	port, ok := servicePort(service, n.Port)
	if _, supported := socketProtocols[protocolOrTCP(port.Protocol)]; !ok || !supported {
		return "", nil
	}
	return port.Protocol, ComputeEndpoints(s.slices.ByIndex(byService, key), n.addressType(service), port, s.isDraining)
}

// servicePort returns the port of a service with that name or number, and whether there
// is one. Of a number that the service has for several protocols it is the TCP one, which is
// what clients speak; a name says which. A headless service without ports has every number,
// if its slices have.
func servicePort(service *core.Service, text string) (Port, bool) {
	number, _ := strconv.ParseInt(text, 10, 32)
	var found *core.ServicePort
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		switch {
		case p.Name != text && (number <= 0 || int64(p.Port) != number):
		case found == nil, protocolOrTCP(found.Protocol) != core.ProtocolTCP && protocolOrTCP(p.Protocol) == core.ProtocolTCP:
			found = p
		}
	}
	if found != nil {
		return Port{Name: found.Name, Protocol: found.Protocol, Number: found.Port}, true
	}
	return Port{Number: int32(number)}, len(service.Spec.Ports) == 0 && number > 0 // #nosec G109 G115 -- parsed as 32 bits
}

// serviceKey returns namespace/name of the service of a slice.
func serviceKey(slice *discovery.EndpointSlice) string {
	return slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]
}

// nodeNames returns the nodes of the endpoints of a slice.
func nodeNames(slice *discovery.EndpointSlice) []string {
	var nodes []string
	for _, e := range slice.Endpoints {
		if e.NodeName != nil {
			nodes = append(nodes, *e.NodeName)
		}
	}
	return nodes
}

// transformService drops the fields that endpointsOf does not read.
func transformService(s *core.Service) {
	s.ManagedFields, s.Annotations, s.Labels, s.Status = nil, nil, nil, core.ServiceStatus{}
	s.Spec = core.ServiceSpec{Type: s.Spec.Type, Ports: s.Spec.Ports, IPFamilies: s.Spec.IPFamilies}
}

func transformSlice(s *discovery.EndpointSlice) { s.ManagedFields, s.Annotations = nil, nil }

// transformNode drops what tells nothing of the drain of a node. Whose its cordon is, only
// the fields' managers tell, which take much memory: without them it is an operation's, so
// that the marks go with them where it is not.
func transformNode(n *core.Node) {
	if cluster.DrainedBy(n) == "" {
		n.Annotations = nil
	}
	n.ManagedFields, n.Labels, n.Status = nil, nil, core.NodeStatus{}
}
