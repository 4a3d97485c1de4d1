package activities

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	core "k8s.io/api/core/v1"

	"ebb/internal/cluster"
	"ebb/internal/inspect"
	"ebb/internal/nodeaccess"
	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/tail"
	"ebb/internal/version"
	"ebb/internal/wait"
)

// steadyAnswers is how many good answers in a row, one each upgrade.steadyInterval, make
// an API server steady after its node was upgraded. The new kubelet says Ready
// within three seconds and re-creates the static pods some seconds later; the API
// then refuses connections for two to ten seconds (measured on kubeadm 1.37.2).
const steadyAnswers = 20

// WaitReadyInput says what to wait for, and until when.
type WaitReadyInput struct {
	Cluster  string          `json:"cluster"`
	Node     policy.Node     `json:"node"`
	Version  version.Version `json:"version"` // the kubelet must report it
	Steady   time.Duration   `json:"steady"`  // between the answers that make an API server steady; 0 = it is not asked
	Deadline time.Time       `json:"deadline"`
}

// WaitReadyResult is empty.
type WaitReadyResult struct{}

// WaitReady waits until a node is Ready and reports the version, and, after a
// control plane, until the API server on that node is steady. Past the deadline it is a
// permanent error that says what the node looked like last, and its kubelet's own last
// lines; when no worker was there
// before the deadline, the node is given a short time all the same.
func (a *Activities) WaitReady(ctx context.Context, in WaitReadyInput) (WaitReadyResult, error) {
	c, err := a.Clusters.Get(ctx, in.Cluster)
	if err != nil {
		return WaitReadyResult{}, err
	}
	bounded, cancel := context.WithDeadline(ctx, lookUntil(a.Now(), activity.GetInfo(ctx).StartedTime, in.Deadline))
	defer cancel()
	defer keepAlive(ctx, func() any { return nil })()

	seen, err := waitNode(bounded, c, in)
	if err == nil && in.Node.Role != policy.Worker && in.Steady > 0 {
		seen, err = a.waitSteady(bounded, c, in)
	}
	switch {
	case ctx.Err() != nil:
		return WaitReadyResult{}, ctx.Err()
	case bounded.Err() != nil:
		return WaitReadyResult{}, permanentf(operation.TypeNotReady, "node %s is not Ready at %s by %s: %s%s",
			in.Node.Name, in.Version, in.Deadline.Format(time.RFC3339), seen, a.lastWords(ctx, c, in.Node))
	}
	return WaitReadyResult{}, err
}

// kubeletLog prints the last lines of the kubelet. They say why it does not live: a flag
// that is gone, a configuration that it does not take.
const kubeletLog = "journalctl --unit=kubelet --lines=10 --no-pager --output=cat 2>&1"

// lastWordsTimeout bounds how long the kubelet's last lines are asked for.
const lastWordsTimeout = 20 * time.Second

// lastWords returns the kubelet's last lines, ready to stand at the end of an error.
func (a *Activities) lastWords(ctx context.Context, c *cluster.Cluster, n policy.Node) string {
	bounded, cancel := context.WithTimeout(ctx, lastWordsTimeout)
	defer cancel()
	output, _, err := nodeaccess.Exec(bounded, c, n, a.Log, kubeletLog)
	if err != nil {
		return fmt.Sprintf("; the log of its kubelet cannot be read: %v", err)
	}
	return "; the last lines of its kubelet: " + tail.Of(strings.TrimSpace(output), outputTail)
}

// waitNode waits on the cluster's shared watch; it returns what it saw last.
func waitNode(ctx context.Context, c *cluster.Cluster, in WaitReadyInput) (seen string, err error) {
	w, err := c.Watch(ctx)
	if err != nil {
		return "the cluster cannot be watched: " + err.Error(), err
	}
	changes := w.Subscribe(in.Node.Name)
	defer changes.Close()
	for {
		node := w.Node(in.Node.Name)
		seen = "it is not in the cluster"
		if node != nil {
			seen = describe(node)
			if cluster.NodeReady(node) && version.Of(node.Status.NodeInfo.KubeletVersion) == in.Version {
				return seen, nil
			}
		}
		select {
		case <-ctx.Done():
			return seen, ctx.Err()
		case <-changes.C:
		}
	}
}

func describe(n *core.Node) string {
	text := "its kubelet reports " + n.Status.NodeInfo.KubeletVersion
	for _, condition := range n.Status.Conditions {
		if condition.Type == core.NodeReady {
			text += fmt.Sprintf(", Ready is %s (%s: %s)", condition.Status, condition.Reason, condition.Message)
		}
	}
	return text
}

// waitSteady asks the API server on a node until it has answered well often enough in a row.
func (a *Activities) waitSteady(ctx context.Context, c *cluster.Cluster, in WaitReadyInput) (seen string, err error) {
	server := inspect.NewAPIServer(c, in.Node, a.Log)
	defer server.Close()
	good := 0
	err = wait.Poll(ctx, in.Steady, func() (bool, error) {
		good++
		if err := server.Ready(ctx); err != nil {
			good, seen = 0, "the API server is not steady: "+err.Error()
		}
		return good == steadyAnswers, nil
	})
	return seen, err
}
