package infra

import (
	"fmt"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

// pageSize is how many things one list call asks for. CloudStack refuses more
// than its own limit, which is 500 unless someone lowered it.
const pageSize = 100

// scope is the project, zone and Kubernetes cluster of CloudStack to look for VMs in.
type scope struct {
	project string          // ID, "" = the account itself
	zone    string          // ID, "" = any
	members map[string]bool // IDs of the Kubernetes cluster's machines; nil = not known
}

// applyTo limits a list call to the scope.
func (in scope) applyTo(params interface {
	SetProjectid(string)
	SetZoneid(string)
}) {
	if in.project != "" {
		params.SetProjectid(in.project)
	}
	if in.zone != "" {
		params.SetZoneid(in.zone)
	}
}

// describeScope returns the configured scope for an error message.
func (c *cloudStack) describeScope() string {
	text := "the account of these keys"
	if c.project != "" {
		text = "project " + c.project
	}
	if c.zone != "" {
		text += ", zone " + c.zone
	}
	return text
}

// listPages returns all items of a list call, which it repeats for every page.
func listPages[T any](s *session, command string, params interface {
	SetPage(int)
	SetPagesize(int)
}, call func() (page []T, count int, err error)) ([]T, error) {
	var all []T
	params.SetPagesize(pageSize)
	for page := 1; ; page++ {
		params.SetPage(page)
		count := 0
		got, err := invoke(s, command, func() (got []T, err error) {
			got, count, err = call()
			return got, err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, got...)
		if len(got) == 0 || len(all) >= count {
			return all, nil
		}
	}
}

// resolveScope returns the scope with the names of the settings resolved to IDs.
func (s *session) resolveScope() (in scope, err error) {
	if in.project, err = s.projectID(); err != nil {
		return scope{}, err
	}
	if in.zone, err = s.zoneID(); err != nil {
		return scope{}, err
	}
	in.members, err = s.clusterVMIDs(in)
	return in, err
}

// projectID returns the ID of the configured project, "" when none is configured.
func (s *session) projectID() (string, error) {
	if s.project == "" || cloudstack.IsID(s.project) {
		return s.project, nil
	}
	params := s.api.Project.NewListProjectsParams()
	params.SetName(s.project)
	params.SetListall(true)
	listed, err := listPages(s, "listProjects", params, func() ([]*cloudstack.Project, int, error) {
		got, err := s.api.Project.ListProjects(params)
		if err != nil {
			return nil, 0, err
		}
		return got.Projects, got.Count, nil
	})
	found, err := exactlyOne(listed, err, "project", s.project, func(p *cloudstack.Project) (string, string) { return p.Name, p.Id })
	if err != nil {
		return "", err
	}
	return found.Id, nil
}

// zoneID returns the ID of the configured zone, "" when none is configured.
func (s *session) zoneID() (string, error) {
	if s.zone == "" || cloudstack.IsID(s.zone) {
		return s.zone, nil
	}
	params := s.api.Zone.NewListZonesParams()
	params.SetName(s.zone)
	listed, err := listPages(s, "listZones", params, func() ([]*cloudstack.Zone, int, error) {
		got, err := s.api.Zone.ListZones(params)
		if err != nil {
			return nil, 0, err
		}
		return got.Zones, got.Count, nil
	})
	found, err := exactlyOne(listed, err, "zone", s.zone, func(z *cloudstack.Zone) (string, string) { return z.Name, z.Id })
	if err != nil {
		return "", err
	}
	return found.Id, nil
}

// clusterVMIDs returns the IDs of the VMs of the configured Kubernetes cluster, nil when
// none is configured. It sets s.cloudManaged.
func (s *session) clusterVMIDs(in scope) (map[string]bool, error) {
	if s.kubernetesCluster == "" {
		return nil, nil
	}
	params := s.api.Kubernetes.NewListKubernetesClustersParams()
	if cloudstack.IsID(s.kubernetesCluster) {
		params.SetId(s.kubernetesCluster)
	} else {
		params.SetName(s.kubernetesCluster)
	}
	params.SetListall(true)
	if in.project != "" {
		params.SetProjectid(in.project)
	}
	listed, err := listPages(s, "listKubernetesClusters", params, func() ([]*cloudstack.KubernetesCluster, int, error) {
		got, err := s.api.Kubernetes.ListKubernetesClusters(params)
		if err != nil {
			return nil, 0, err
		}
		return got.KubernetesClusters, got.Count, nil
	})
	found, err := exactlyOne(listed, err, "kubernetesCluster", s.kubernetesCluster, func(c *cloudstack.KubernetesCluster) (string, string) { return c.Name, c.Id })
	if err != nil {
		return nil, err
	}
	s.cloudManaged = found.Clustertype == "CloudManaged"
	members := make(map[string]bool, len(found.Virtualmachines))
	for _, vm := range found.Virtualmachines {
		members[vm.Id] = true
	}
	return members, nil
}

// exactlyOne returns the one listed item with that name or ID; none or several is a
// permanent error. It returns err when that is not nil.
func exactlyOne[T any](listed []*T, err error, setting, want string, nameAndID func(*T) (name, id string)) (*T, error) {
	if err != nil {
		return nil, err
	}
	var found []*T
	for _, one := range listed {
		if name, id := nameAndID(one); name == want || id == want {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("infrastructure.%s: %w", setting, permanentf("these keys show none that is called %s", want))
	}
	return nil, fmt.Errorf("infrastructure.%s: %w", setting, permanentf("these keys show %d that are called %s: use the ID", len(found), want))
}
