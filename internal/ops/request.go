package ops

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"ebb/internal/operation"
	"ebb/internal/policy"
	"ebb/internal/version"
)

// Request says what an operation is to do.
type Request struct {
	ID            string         `json:"id"` // made by the caller, see NewID
	Kind          operation.Kind `json:"kind"`
	Cluster       string         `json:"cluster"`
	Nodes         []string       `json:"nodes,omitempty"`  // to drain, to remove or to uncordon
	Count         int            `json:"count,omitempty"`  // of workers to remove, when Nodes is empty
	Strict        bool           `json:"strict,omitempty"` // refuse when pods would find no room, be lost or be down, instead of warning
	version.Route                // of an upgrade
}

// words are the kinds as a person types them.
var words = map[operation.Kind]string{
	operation.KindDrain: "drain", operation.KindScaleDown: "scale-down", operation.KindUpgrade: "upgrade",
	operation.KindUncordon: "uncordon",
}

// Word is a kind of operation as a person types it: "scale-down".
func Word(k operation.Kind) string {
	if word, ok := words[k]; ok {
		return word
	}
	return string(k)
}

// Kinds lists the kinds of operations as a person types them, sorted.
func Kinds() []string {
	list := make([]string, 0, len(words))
	for _, word := range words {
		list = append(list, word)
	}
	slices.Sort(list)
	return list
}

// ParseKind is the kind that a word stands for.
func ParseKind(word string) (operation.Kind, error) {
	for kind, w := range words {
		if w == word || string(kind) == word {
			return kind, nil
		}
	}
	return "", &RequestError{Faults: []string{fmt.Sprintf("there is no kind of operation %q, only %s", word, strings.Join(Kinds(), ", "))}}
}

// NewID makes an operation ID that tells what, where and when:
// upgrade-prod-20261201-014711-3f9a. The last part is random.
func NewID(k operation.Kind, cluster string, now time.Time) (string, error) {
	var tail [2]byte
	if _, err := rand.Read(tail[:]); err != nil {
		return "", fmt.Errorf("make an operation ID: %w", err)
	}
	return fmt.Sprintf("%s-%s-%s-%s", Word(k), cluster, now.UTC().Format("20060102-150405"), hex.EncodeToString(tail[:])), nil
}

// idShape keeps IDs fit for what they become: a workflow ID (with /<node> added
// for children), an annotation, and part of a directory name on a node.
var idShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Validate reports everything that is wrong with a request, as a *RequestError.
func (r Request) Validate() error {
	var faults []string
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(!idShape.MatchString(r.ID), "operation ID %q: want up to 128 letters, digits, '.', '_' or '-'", r.ID)
	fault(r.Cluster == "", "no cluster is named")
	fault(slices.Contains(r.Nodes, ""), "a node name is empty")
	_, known := words[r.Kind]
	fault(!known, "there is no kind of operation %q", r.Kind)
	switch r.Kind {
	case operation.KindUpgrade:
		err := policy.CheckRoute(r.Route)
		fault(err != nil, "target %v", err)
	case operation.KindDrain:
		fault(len(r.Nodes) == 0, "no node to drain is named")
	case operation.KindUncordon:
		fault(len(r.Nodes) == 0, "no node to uncordon is named")
		fault(r.Strict, "there is nothing to be strict about in an uncordon")
	case operation.KindScaleDown:
		fault(len(r.Nodes) > 0 && r.Count != 0, "give node names or a count, not both")
		fault(len(r.Nodes) == 0 && r.Count < 1, "give the nodes to remove, or a count of at least 1")
	}
	if len(faults) > 0 {
		return &RequestError{Faults: faults}
	}
	return nil
}

// String is what was asked for, without the ID: "upgrade of prod to 1.37.2".
func (r Request) String() string {
	text := fmt.Sprintf("%s of %s", Word(r.Kind), r.Cluster)
	switch {
	case r.Target != "":
		text += " to " + string(r.Target)
		for i, hop := range r.Hops {
			if i == 0 {
				text += " by way of "
			} else {
				text += ", "
			}
			text += string(hop)
		}
	case len(r.Nodes) > 0:
		text += ", " + strings.Join(r.Nodes, ", ")
	case r.Count == 1:
		text += " by 1 node"
	case r.Count > 1:
		text += fmt.Sprintf(" by %d nodes", r.Count)
	}
	return text
}

// same reports whether two requests ask for the same thing.
func (r Request) same(other Request) bool {
	return r.Kind == other.Kind && r.Cluster == other.Cluster && r.Count == other.Count && r.Strict == other.Strict &&
		r.Equal(other.Route) &&
		slices.Equal(slices.Sorted(slices.Values(r.Nodes)), slices.Sorted(slices.Values(other.Nodes)))
}

// input is the input of the workflow that does it; the workflow type is the kind.
func (r Request) input() any {
	switch r.Kind {
	case operation.KindUpgrade:
		return operation.UpgradeInput{Cluster: r.Cluster, Route: r.Route, Strict: r.Strict}
	case operation.KindUncordon:
		return operation.UncordonInput{Cluster: r.Cluster, Nodes: r.Nodes}
	case operation.KindDrain:
		return operation.DrainInput{Cluster: r.Cluster, Nodes: r.Nodes, Strict: r.Strict}
	default:
		return operation.ScaleDownInput{Cluster: r.Cluster, Nodes: r.Nodes, Count: r.Count, Strict: r.Strict}
	}
}
