package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/assert"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/clusterstate"
	"ebb/internal/ops"
	"ebb/internal/sandbox"
)

// endState is the world after an operation, without what may differ from one run to
// the next: times, the operation's ID, UIDs, and how often something was tried that
// changes nothing.
type endState struct {
	State        ops.State            // how the operation ended
	Message      string               // of one that is not done
	Result       string               // of one that is
	Lease        clusterstate.Record  // of the cluster
	Nodes        map[string]nodeState // that are in it
	Cluster      string               // version in kubeadm-config
	Machines     map[string]machineState
	Stayed       map[string]int // how many of the pods that each pinned workload had before are still there
	EvictedTwice []string       // pods that were evicted more than once
}

type nodeState struct {
	Ready, Unschedulable bool
	Version              string
	Marks                map[string]string // labels and annotations of Ebb's
}

// machineState is what became of a machine, and what was done on it.
type machineState struct {
	Destroyed bool
	Runs      map[string]scriptRun // by phase and attempt: "upgrade-1"
	Commands  map[string]int       // how often each ran, of those that change something
}

// scriptRun counts how often a script was started on a node, and how often it ended how.
type scriptRun struct {
	Started int
	Ended   map[string]int // by exit code
}

// endState looks at the world after an operation.
func (env *environment) endState(ctx context.Context, id string, end ops.Operation, seen observation) (o endState, err error) {
	o = endState{State: end.State, Message: strings.ReplaceAll(end.Message, id, "ID"), Result: string(end.Result), EvictedTwice: seen.EvictedTwice}
	now, err := env.pinned(ctx)
	if err != nil {
		return o, err
	}
	o.Stayed = env.pods.stayed(now)
	if o.Lease, err = env.bed.Record(ctx); err != nil {
		return o, err
	}
	o.Lease.Last, o.Lease.Message = strings.ReplaceAll(o.Lease.Last, id, "ID"), strings.ReplaceAll(o.Lease.Message, id, "ID")
	if o.Nodes, err = env.nodes(ctx, id); err != nil {
		return o, err
	}
	config, err := env.bed.Sandbox.Client().CoreV1().ConfigMaps(meta.NamespaceSystem).Get(ctx, "kubeadm-config", meta.GetOptions{})
	if err != nil {
		return o, err
	}
	for line := range strings.Lines(config.Data["ClusterConfiguration"]) {
		if version, ok := strings.CutPrefix(line, "kubernetesVersion: "); ok {
			o.Cluster = strings.TrimSpace(version)
		}
	}
	o.Machines = map[string]machineState{}
	for _, name := range machineNames() {
		if o.Machines[name], err = machineOf(env.bed.Sandbox.Machine(name), id); err != nil {
			return o, err
		}
	}
	return o, nil
}

func machineNames() []string {
	names := []string{"cp1"}
	for i := range clusterWorkers {
		names = append(names, fmt.Sprintf("w%d", i+1))
	}
	return names
}

func (env *environment) nodes(ctx context.Context, id string) (map[string]nodeState, error) {
	list, err := env.bed.Sandbox.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	states := map[string]nodeState{}
	for i := range list {
		n := &list[i]
		s := nodeState{Unschedulable: n.Spec.Unschedulable, Version: n.Status.NodeInfo.KubeletVersion, Marks: map[string]string{}}
		for _, c := range n.Status.Conditions {
			s.Ready = s.Ready || c.Type == core.NodeReady && c.Status == core.ConditionTrue
		}
		for _, marks := range []map[string]string{n.Labels, n.Annotations} {
			for key, value := range marks {
				if strings.HasPrefix(key, "ebb/") {
					s.Marks[key] = strings.ReplaceAll(value, id, "ID")
				}
			}
		}
		states[n.Name] = s
	}
	return states, nil
}

// readOnlyCommands begin the commands of checks, which are repeated when their response is lost.
var readOnlyCommands = []string{"kubeadm version", "kubelet --version"}

func machineOf(m *sandbox.Machine, id string) (machineState, error) {
	s := machineState{Destroyed: m.Destroyed(), Runs: map[string]scriptRun{}, Commands: map[string]int{}}
	for _, line := range m.Commands() {
		counts := true
		for _, prefix := range readOnlyCommands {
			counts = counts && !strings.HasPrefix(line, prefix)
		}
		if counts {
			s.Commands[withoutPaths(line)]++
		}
	}
	dirs, err := filepath.Glob(filepath.Join(m.Home(), "ebb/runs", id+"-*"))
	if err != nil {
		return s, err
	}
	for _, dir := range dirs {
		phase := strings.Join(lastTwo(strings.Split(filepath.Base(dir), "-")), "-")
		run := s.Runs[phase]
		if run.Ended == nil {
			run.Ended = map[string]int{}
		}
		if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
			run.Started++
		}
		code, err := os.ReadFile(filepath.Join(dir, "exit"))
		if err == nil {
			run.Ended[strings.TrimSpace(string(code))]++
		} else if !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		s.Runs[phase] = run
	}
	return s, nil
}

func lastTwo(parts []string) []string { return parts[max(0, len(parts)-2):] }

// withoutPaths leaves temporary directories out of a command.
func withoutPaths(line string) string {
	words := strings.Fields(line)
	for i, w := range words {
		if strings.HasPrefix(w, "/") {
			words[i] = "/…/" + filepath.Base(w)
		}
	}
	return strings.Join(words, " ")
}

// difference returns how a state differs from the expected one; "" = not at all.
func difference(expected, got endState) string {
	var text assertionText
	assert.Equal(&text, expected, got)
	return string(text)
}

// assertionText keeps what an assertion says.
type assertionText string

func (s *assertionText) Errorf(format string, args ...any) {
	*s += assertionText(fmt.Sprintf(format, args...))
}

func pretty(v any) string {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(body)
}
