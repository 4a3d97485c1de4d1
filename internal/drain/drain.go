// Package drain empties a node: it evicts the pods that kubectl drain would
// move, as fast as their budgets allow, and says why when it has to wait.
//
// Run is one attempt. It reacts to the cluster's shared watches and does not
// poll: an eviction that a budget forbids is sent when the watch shows that the
// budget allows it. The node itself is left as it is; to cordon it before and to
// uncordon it afterwards is the caller's part.
package drain

import (
	"time"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/config"
)

// Settings of one attempt, resolved from the drain section of ebb.yaml.
type Settings struct {
	GracePeriod         int64         `json:"gracePeriod"`                 // seconds; negative = each pod's own
	Force               bool          `json:"force,omitempty"`             // also pods that no controller will re-create
	DeleteEmptyDir      bool          `json:"deleteEmptyDir"`              // also pods with emptyDir volumes, whose content is lost
	SkipWaitForDelete   time.Duration `json:"skipWaitForDelete,omitempty"` // on a node that is down: how long past its grace period a pod is waited for; 0 = always
	Parallel            int           `json:"parallel"`                    // eviction requests under way at once
	WaitForVolumeDetach bool          `json:"waitForVolumeDetach"`
	VolumeDetachTimeout time.Duration `json:"volumeDetachTimeout"`
}

const (
	defaultParallel            = 16
	defaultVolumeDetachTimeout = 60 * time.Second
)

// NewSettings resolves the drain section of ebb.yaml; what it leaves out has
// the default that config.Drain states.
func NewSettings(d config.Drain) Settings {
	s := Settings{
		GracePeriod: -1, Force: d.Force, DeleteEmptyDir: true, SkipWaitForDelete: time.Duration(d.SkipWaitForDeleteTimeout),
		Parallel: d.Parallel, WaitForVolumeDetach: true, VolumeDetachTimeout: time.Duration(d.VolumeDetachTimeout),
	}
	if d.GracePeriod != nil {
		s.GracePeriod = *d.GracePeriod
	}
	if d.DeleteEmptyDir != nil {
		s.DeleteEmptyDir = *d.DeleteEmptyDir
	}
	if d.WaitForVolumeDetach != nil {
		s.WaitForVolumeDetach = *d.WaitForVolumeDetach
	}
	return s.withDefaults()
}

func (s Settings) withDefaults() Settings {
	if s.Parallel < 1 {
		s.Parallel = defaultParallel
	}
	if s.VolumeDetachTimeout <= 0 {
		s.VolumeDetachTimeout = defaultVolumeDetachTimeout
	}
	return s
}

// Request is one attempt at one node. The node must be cordoned already.
type Request struct {
	Cluster     *cluster.Cluster
	Node        string
	Operation   string // named in the log
	Settings    Settings
	Deadline    time.Time      // when the attempt ends; none is made when it has passed
	MachineDown bool           // the node's machine is known not to run
	Log         *zap.Logger    // gets the output line by line; may be nil
	Report      func(Progress) // on each change, at most five times and at least once a second; must not block; may be nil
}

// Progress is where an attempt stands.
type Progress struct {
	Node    string       `json:"node"`
	Total   int          `json:"total"`   // pods that have to leave, those that have left included
	Evicted int          `json:"evicted"` // evictions that the API server accepted
	Gone    int          `json:"gone"`    // pods that have ended, or are not waited for
	Waiting int          `json:"waiting"` // pods that have not
	Blocked []BlockedPod `json:"blocked,omitempty"`
	Output  string       `json:"output,omitempty"` // its last 2,000 characters
}

// BlockedPod is a pod that does not leave, and why.
type BlockedPod struct {
	Pod    string `json:"pod"` // namespace/name
	Reason string `json:"reason"`
	Budget string `json:"budget,omitempty"` // namespace/name of the budget that forbids it, several joined by ", "
	Advice string `json:"advice,omitempty"` // what to change when waiting cannot help
	Queued bool   `json:"queued,omitempty"` // it only waits for its turn: the budget allows evictions, and so many are under way
}

// Result of an attempt that emptied the node.
type Result struct {
	Node     string        `json:"node"`
	Evicted  int           `json:"evicted"`
	Gone     int           `json:"gone"`
	Skipped  []string      `json:"skipped,omitempty"` // pods that were not waited for, namespace/name
	NodeGone bool          `json:"nodeGone,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
	Output   string        `json:"output,omitempty"` // its last 2,000 characters
	Took     time.Duration `json:"took"`
}
