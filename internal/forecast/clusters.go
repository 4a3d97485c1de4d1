package forecast

import (
	"context"

	"ebb/internal/clusterstate"
	"ebb/workflows"
)

// Clusters is how commands look at clusters. Local looks itself; the client of a
// gateway asks it.
type Clusters interface {
	// List lists the clusters that there are, in the order of the configuration. A
	// cluster that does not answer is listed with its fault.
	List(ctx context.Context) ([]Overview, error)
	// Plan tells what an operation would do to a cluster now, and changes nothing.
	// An unknown cluster is an *UnknownClusterError.
	Plan(ctx context.Context, q Question) (Forecast, error)
}

// Question asks what an operation would do.
type Question struct {
	Kind    workflows.Kind // KindUpgrade or KindScaleDown
	Cluster string
	Target  string   // of an upgrade
	Hops    []string // of an upgrade
	Nodes   []string // of a scale-down
	Count   int      // of a scale-down, when Nodes is empty
}

// Overview is one cluster at a glance.
type Overview struct {
	Name    string             `json:"name"`
	State   clusterstate.State `json:"state,omitempty"`
	Holder  string             `json:"holder,omitempty"`  // the operation that has it
	Target  string             `json:"target,omitempty"`  // of an upgrade that is to be finished
	Message string             `json:"message,omitempty"` // why it is in this state
	Version string             `json:"version,omitempty"` // of the API server
	Nodes   int                `json:"nodes"`
	Fault   string             `json:"fault,omitempty"` // why the rest is not known
}
