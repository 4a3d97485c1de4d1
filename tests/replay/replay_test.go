// Package replay proves that this version of the workflows continues what
// earlier ones began: it replays histories that `make record` took from real runs.
package replay

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"ebb/internal/operation"
	"ebb/internal/workers"
)

// histories are the recorded runs, by file name.
func histories(t *testing.T) map[string]*historypb.History {
	t.Helper()
	files, err := filepath.Glob("histories/*/*.json") // a folder a recording
	require.NoError(t, err)
	require.NotEmpty(t, files, "no recorded histories: run make record")
	all := map[string]*historypb.History{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		history := &historypb.History{}
		require.NoError(t, temporalproto.CustomJSONUnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, history), file)
		all[file] = history
	}
	return all
}

func workflowType(h *historypb.History) string {
	return h.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()
}

func TestReplay(t *testing.T) {
	for file, history := range histories(t) {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			replayer := worker.NewWorkflowReplayer()
			workers.RegisterWorkflows(replayer)
			started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
			require.NoError(t, replayer.ReplayWorkflowHistoryWithOptions(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), history, worker.ReplayWorkflowHistoryOptions{
				// The operation ID is the workflow ID, and children are named after it.
				OriginalExecution: workflow.Execution{ID: started.GetWorkflowId(), RunID: started.GetOriginalExecutionRunId()},
			}))
		})
	}
}

// endings are the ways in which each workflow ends that must have been recorded:
// done, resumed (an upgrade that found finished nodes), canceled, or the type of
// its error.
var endings = map[string][]string{
	"Drain":       {"done", "canceled", operation.TypeRolledBack},
	"ScaleDown":   {"done", "canceled", operation.TypeRolledBack, operation.TypeFailed, operation.TypeRefused},
	"Upgrade":     {"done", "resumed", "canceled", operation.TypeRolledBack, operation.TypeFailed, operation.TypeRefused},
	"Uncordon":    {"done", operation.TypeRefused},
	"UpgradeNode": {"done", "canceled", operation.TypeFailed},
	"StageNode":   {"done", operation.TypeScript},
	"Reconcile":   {"done"},
}

// ending tells how a recorded run ended.
func ending(h *historypb.History) string {
	last := h.GetEvents()[len(h.GetEvents())-1]
	if done := last.GetWorkflowExecutionCompletedEventAttributes(); done != nil {
		for _, p := range done.GetResult().GetPayloads() {
			if workflowType(h) == "Upgrade" && strings.Contains(string(p.GetData()), `"skipped":`) {
				return "resumed"
			}
		}
		return "done"
	}
	if failed := last.GetWorkflowExecutionFailedEventAttributes(); failed != nil {
		return failed.GetFailure().GetApplicationFailureInfo().GetType()
	}
	return strings.ToLower(strings.TrimPrefix(last.GetEventType().String(), "WorkflowExecution"))
}

func TestEveryEndingOfEveryWorkflowHasAHistory(t *testing.T) {
	recorded := map[string]bool{}
	for _, history := range histories(t) {
		recorded[workflowType(history)+" "+ending(history)] = true
	}
	for _, name := range workers.WorkflowTypes() {
		require.NotEmpty(t, endings[name], "say how %s may end", name)
		for _, how := range endings[name] {
			assert.True(t, recorded[name+" "+how], "no recorded history of %s that ended %s: run make record", name, how)
		}
	}
}

// secret matches what only a key, a kubeconfig or a token contains. (The
// recording run itself also looks for the very key and kubeconfig it used.)
var secret = regexp.MustCompile(`PRIVATE KEY|client-key-data|client-certificate-data|certificate-authority-data|eyJhbGciOi|(?i:bearer )`)

func TestHistoriesHoldNoSecret(t *testing.T) {
	for file, history := range histories(t) {
		texts := 0
		eachText(history.ProtoReflect(), func(text string) {
			texts++
			require.NotRegexp(t, secret, text, file)
		})
		require.Greater(t, texts, 10, "payloads of %s were looked at", file)
	}
}

func TestSecretsAreFoundInPayloads(t *testing.T) {
	for _, history := range histories(t) {
		tainted := proto.Clone(history).(*historypb.History)
		input := tainted.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes().GetInput().GetPayloads()
		input[0].Data = append(input[0].Data, "-----BEGIN OPENSSH PRIVATE KEY-----"...)
		found := false
		eachText(tainted.ProtoReflect(), func(text string) { found = found || secret.MatchString(text) })
		require.True(t, found)
	}
}

// eachText visits every string and every byte string of a message, which is
// where payloads are.
func eachText(m protoreflect.Message, visit func(string)) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				eachValue(field.MapValue(), v, visit)
				return true
			})
		case field.IsList():
			for i := range value.List().Len() {
				eachValue(field, value.List().Get(i), visit)
			}
		default:
			eachValue(field, value, visit)
		}
		return true
	})
}

func eachValue(field protoreflect.FieldDescriptor, value protoreflect.Value, visit func(string)) {
	switch field.Kind() {
	case protoreflect.StringKind:
		visit(value.String())
	case protoreflect.BytesKind:
		visit(string(value.Bytes()))
	case protoreflect.MessageKind, protoreflect.GroupKind:
		eachText(value.Message(), visit)
	default: // numbers hold no secret
	}
}
