// Package drain empties a node: it evicts the pods that kubectl drain would evict, as
// fast as their budgets allow, and reports why when it has to wait.
//
// Run is one attempt. It reacts to the cluster's shared watch and does not poll: an
// eviction that a budget does not allow is requested when the watch shows that it does.
// Run only sends requests, receives what happens, and reports; what to do next is decided
// by next, a pure function of a snapshot and the time. The node itself is not changed:
// the caller cordons it before, and uncordons it afterwards.
package drain

import (
	"time"

	"go.uber.org/zap"

	"ebb/internal/cluster"
	"ebb/internal/config"
	"ebb/internal/operation"
)

// Settings of one attempt, resolved from the drain section of ebb.yaml.
type Settings struct {
	GracePeriod         int64         `json:"gracePeriod"`                 // seconds; negative = each pod's own
	Force               bool          `json:"force,omitempty"`             // also pods that no controller will re-create
	DeleteEmptyDir      bool          `json:"deleteEmptyDir"`              // also pods with emptyDir volumes, whose content is lost
	SkipWaitForDelete   time.Duration `json:"skipWaitForDelete,omitempty"` // on a node that is down: how long past its grace period a pod is waited for; 0 = always
	Parallel            int           `json:"parallel"`                    // evictions in flight at once
	WaitForJobs         bool          `json:"waitForJobs,omitempty"`       // pods of Jobs are waited for until they complete, not evicted
	FailReturning       bool          `json:"failReturning,omitempty"`     // pods that come back over and over fail the attempt; otherwise they are left
	WaitForVolumeDetach bool          `json:"waitForVolumeDetach"`
	VolumeDetachTimeout time.Duration `json:"volumeDetachTimeout"`
}

const (
	defaultParallel            = 16
	defaultVolumeDetachTimeout = 60 * time.Second
)

// NewSettings returns the settings of the drain section of ebb.yaml, with the defaults
// that config.Drain documents.
func NewSettings(d config.Drain) Settings {
	s := Settings{
		GracePeriod: -1, Force: d.Force, DeleteEmptyDir: true, SkipWaitForDelete: time.Duration(d.SkipWaitForDeleteTimeout),
		WaitForJobs: d.Jobs == config.JobsWait, FailReturning: d.Returning == config.ReturningFail, Parallel: d.Parallel, WaitForVolumeDetach: true, VolumeDetachTimeout: time.Duration(d.VolumeDetachTimeout),
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
	Operation   string // its ID, for the log
	Settings    Settings
	Deadline    time.Time                     // end of the attempt; when it has passed, nothing is evicted
	MachineDown bool                          // the node's machine is known to be off
	Log         *zap.Logger                   // gets each line of the output; may be nil
	Report      func(operation.DrainProgress) // called on each change, 1 to 5 times a second; must not block; may be nil
}

// Result of an attempt that emptied the node.
type Result struct {
	operation.DrainLeft
	Evicted  int           `json:"evicted"`
	Gone     int           `json:"gone"`
	NodeGone bool          `json:"nodeGone,omitempty"`
	Output   string        `json:"output,omitempty"` // its last 2,000 characters
	Took     time.Duration `json:"took"`
}
