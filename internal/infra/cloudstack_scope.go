package infra

import (
	"fmt"

	"github.com/apache/cloudstack-go/v2/cloudstack"
)

// pageSize is how many things one list call asks for. CloudStack refuses more
// than its own limit, which is 500 unless someone lowered it.
const pageSize = 100

// scope is where the machines of the cluster are.
type scope struct {
	project string          // ID, "" = the account itself
	zone    string          // ID, "" = any
	members map[string]bool // IDs of the Kubernetes cluster's machines; nil = not known
}

// limit makes a list call stay in the scope.
func (in scope) limit(params interface {
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

// where is the scope as an error names it.
func (c *cloudStack) where() string {
	text := "the account of these keys"
	if c.project != "" {
		text = "project " + c.project
	}
	if c.zone != "" {
		text += ", zone " + c.zone
	}
	return text
}

// pages makes a list call until it has all.
func pages[T any](s *session, command string, params interface {
	SetPage(int)
	SetPagesize(int)
}, call func() (page []T, count int, err error)) ([]T, error) {
	var all []T
	params.SetPagesize(pageSize)
	for page := 1; ; page++ {
		params.SetPage(page)
		count := 0
		got, err := ask(s, command, func() (got []T, err error) {
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

// scope resolves the names in the settings.
func (s *session) scope() (in scope, err error) {
	if in.project, err = s.projectID(); err != nil {
		return scope{}, err
	}
	if in.zone, err = s.zoneID(); err != nil {
		return scope{}, err
	}
	in.members, err = s.clusterMembers(in)
	return in, err
}

func (s *session) projectID() (string, error) {
	if s.project == "" || cloudstack.IsID(s.project) {
		return s.project, nil
	}
	params := s.api.Project.NewListProjectsParams()
	params.SetName(s.project)
	params.SetListall(true)
	listed, err := pages(s, "listProjects", params, func() ([]*cloudstack.Project, int, error) {
		got, err := s.api.Project.ListProjects(params)
		if err != nil {
			return nil, 0, err
		}
		return got.Projects, got.Count, nil
	})
	found, err := only(listed, err, "project", s.project, func(p *cloudstack.Project) (string, string) { return p.Name, p.Id })
	if err != nil {
		return "", err
	}
	return found.Id, nil
}

func (s *session) zoneID() (string, error) {
	if s.zone == "" || cloudstack.IsID(s.zone) {
		return s.zone, nil
	}
	params := s.api.Zone.NewListZonesParams()
	params.SetName(s.zone)
	listed, err := pages(s, "listZones", params, func() ([]*cloudstack.Zone, int, error) {
		got, err := s.api.Zone.ListZones(params)
		if err != nil {
			return nil, 0, err
		}
		return got.Zones, got.Count, nil
	})
	found, err := only(listed, err, "zone", s.zone, func(z *cloudstack.Zone) (string, string) { return z.Name, z.Id })
	if err != nil {
		return "", err
	}
	return found.Id, nil
}

// clusterMembers are the machines of the Kubernetes cluster in the settings.
func (s *session) clusterMembers(in scope) (map[string]bool, error) {
	if s.cluster == "" {
		return nil, nil
	}
	params := s.api.Kubernetes.NewListKubernetesClustersParams()
	if cloudstack.IsID(s.cluster) {
		params.SetId(s.cluster)
	} else {
		params.SetName(s.cluster)
	}
	params.SetListall(true)
	if in.project != "" {
		params.SetProjectid(in.project)
	}
	listed, err := pages(s, "listKubernetesClusters", params, func() ([]*cloudstack.KubernetesCluster, int, error) {
		got, err := s.api.Kubernetes.ListKubernetesClusters(params)
		if err != nil {
			return nil, 0, err
		}
		return got.KubernetesClusters, got.Count, nil
	})
	found, err := only(listed, err, "kubernetesCluster", s.cluster, func(c *cloudstack.KubernetesCluster) (string, string) { return c.Name, c.Id })
	if err != nil {
		return nil, err
	}
	s.managed = found.Clustertype == "CloudManaged"
	members := make(map[string]bool, len(found.Virtualmachines))
	for _, vm := range found.Virtualmachines {
		members[vm.Id] = true
	}
	return members, nil
}

// only is the one thing of that name or ID among those that were listed.
func only[T any](listed []*T, err error, setting, want string, names func(*T) (name, id string)) (*T, error) {
	if err != nil {
		return nil, err
	}
	var found []*T
	for _, one := range listed {
		if name, id := names(one); name == want || id == want {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("infrastructure.%s: %w", setting, refuse("these keys show none that is called %s", want))
	}
	return nil, fmt.Errorf("infrastructure.%s: %w", setting, refuse("these keys show %d that are called %s: use the ID", len(found), want))
}
