package operations

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"

	"ebb/internal/testbed"
)

// record looks for secrets in the histories of an operation that has ended and of
// its nodes and, when EBB_RECORD names a directory, writes them there for
// tests/replay, one for each workflow type and ending of each test.
func record(t *testing.T, id string) {
	t.Helper()
	recordIn(t, shared, id)
}

func recordIn(t *testing.T, bed *testbed.Bed, id string) {
	t.Helper()
	for _, child := range save(t, bed, id, "", id) {
		save(t, bed, child.GetWorkflowId(), child.GetRunId(), id)
	}
}

func save(t *testing.T, bed *testbed.Bed, workflowID, runID, operation string) (children []*commonpb.WorkflowExecution) {
	t.Helper()
	history := &historypb.History{Events: eventsOfRun(t, bed, workflowID, runID)}
	for _, event := range history.Events {
		if child := event.GetChildWorkflowExecutionStartedEventAttributes(); child != nil {
			children = append(children, child.GetWorkflowExecution())
		}
	}
	body, err := temporalproto.CustomJSONMarshalOptions{Indent: " "}.Marshal(history)
	require.NoError(t, err)
	requireNoSecret(t, bed, history)
	if dir := os.Getenv("EBB_RECORD"); dir != "" && worthKeeping(workflowID, history) {
		body = bytes.ReplaceAll(body, []byte(filepath.Dir(bed.Config)), []byte("/sandbox"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, fileName(t, history, workflowID, operation)), body, 0o644))
	}
	return children
}

// events is the history of a workflow.
func events(t *testing.T, workflowID string) []*historypb.HistoryEvent {
	t.Helper()
	return eventsIn(t, shared, workflowID)
}

func eventsIn(t *testing.T, bed *testbed.Bed, workflowID string) []*historypb.HistoryEvent {
	t.Helper()
	return eventsOfRun(t, bed, workflowID, "")
}

// eventsOfRun is the history of one run; "" = the last one.
func eventsOfRun(t *testing.T, bed *testbed.Bed, workflowID, runID string) []*historypb.HistoryEvent {
	t.Helper()
	var all []*historypb.HistoryEvent
	pages := bed.Client.GetWorkflowHistory(t.Context(), workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for pages.HasNext() {
		event, err := pages.Next()
		require.NoError(t, err)
		all = append(all, event)
	}
	return all
}

// worthKeeping leaves out the nodes of an upgrade that went well and whose histories
// say the same as those of the first ones.
func worthKeeping(workflowID string, h *historypb.History) bool {
	_, node, child := strings.Cut(workflowID, "/")
	well := h.GetEvents()[len(h.GetEvents())-1].GetWorkflowExecutionCompletedEventAttributes() != nil
	return !child || !well || slices.Contains([]string{"cp1", "w1", "w2", "w5"}, node)
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9]+`)

// fileName is the same for the same step of the same test, so that a new
// recording replaces the old one: <test>-<type>[-<node>]-<ending>.json.
func fileName(t *testing.T, h *historypb.History, workflowID, operation string) string {
	started := h.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()
	ending := strings.TrimPrefix(h.GetEvents()[len(h.GetEvents())-1].GetEventType().String(), "WorkflowExecution")
	node := strings.TrimPrefix(workflowID, operation)
	parts := []string{t.Name(), started, strings.Trim(node, "/"), ending}
	return strings.Trim(unsafe.ReplaceAllString(strings.Join(parts, "-"), "-"), "-") + ".json"
}

// requireNoSecret looks for the very SSH key, kubeconfig and token that the run used.
func requireNoSecret(t *testing.T, bed *testbed.Bed, h *historypb.History) {
	t.Helper()
	dump := h.String()
	for _, file := range []string{bed.Sandbox.Cluster(testbed.ClusterName).SSH.IdentityFile, bed.Sandbox.Kubeconfig(), bed.Kubeconfig} {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(body)) {
			if line = strings.TrimSpace(line); len(line) > 60 { // keys and certificates, not headings
				secret := line[max(0, len(line)-60):]
				require.NotContains(t, dump, secret, "a line of %s is in a history", filepath.Base(file))
			}
		}
	}
}
