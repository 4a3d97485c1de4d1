// Package randomised tests the workflows with random clusters, requests, faults and
// interference, against invariants. README.md maps it.
package randomised

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// regressions are seeds that once failed, and what they found, or that show what
// hardly another does. They run first.
var regressions = []struct {
	seed  uint64
	found string
}{
	{24, "cancelled while it cleaned up after a dead operation, whose cordons then stayed for good"},
	{2169, "the same, cancelled while it took the cluster"},
	{323, "a lock that could not be released after all went well was an error without a type"},
	{395, "the retry was refused when the last node had reached the target and was not Ready"},
	{503, "the same, with the operator's second run"},
	{611, "a claim that was done without an answer, and then forbidden, kept the lock"},
	{1988, "the same in a scale-down"},
	{2343, "the reconciler lost a node between its two looks, and recorded the target as reached all the same, so that the retry was refused"},
	{3836, "a fault of the invariant: a reconciler that takes over from a dead one was taken for one that meddles"},
	{4541, "a drain that was cut off by its timeout is tried again, though its last error was of another kind"},
	{2183, "a fault of the invariant: a node that is found done does not count as touched"},
	{1051, "shows a cordon that could not be taken back"},
	{1129, "of two control planes that leave, the cordon of the second was taken for a fault when the first was looked at again"},
	{3536, "a node whose kubelet lives was left cordoned when the look at it was forbidden"},
	{3802, "a fault of the invariant: there may be other warnings beside the one of missing capacity"},
	{5101, "a newer patch was refused as the retry when somebody had brought all nodes there by hand"},
	{5797, "a fault of the invariant: a node whose script asks to be run again is not done, whatever its kubelet reports"},
}

// defaultSeeds is how many seeds a plain go test runs.
const defaultSeeds = 400

// TestRandomisedOperations runs operations on random clusters with random faults,
// and again without faults after those that failed, and checks every invariant.
// EBB_SEEDS=5000 runs more seeds, EBB_SEED=17 only that one and prints its trace.
// A seed that fails belongs in regressions.
func TestRandomisedOperations(t *testing.T) {
	if seed := seedsFrom(t, "EBB_SEED", 0); seed > 0 {
		report := runSeed(seed)
		t.Log(report.trace)
		require.Empty(t, report.violations)
		return
	}
	for _, r := range regressions {
		report := runSeed(r.seed)
		require.Empty(t, report.violations, "seed %d is back (%s)\n%s", r.seed, r.found, report.trace)
	}
	seeds := seedsFrom(t, "EBB_SEEDS", defaultSeeds)
	ends := runSeeds(t, seeds)
	t.Logf("%d seeds ended %v", seeds, ends)
	if seeds < defaultSeeds {
		return
	}
	for _, end := range []string{"Upgrade done", "ScaleDown done", "Drain done", "Upgrade Refused", "ScaleDown Refused", "Drain Refused",
		"Upgrade RolledBack", "ScaleDown RolledBack", "Drain RolledBack", "Upgrade Failed", "ScaleDown Failed", "Upgrade cancelled Failed", "ScaleDown cancelled RolledBack"} {
		require.NotZero(t, ends[end], "no seed ended as %q: the scenarios show too little; there were %v", end, ends)
	}
}

func seedsFrom(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return otherwise
	}
	seeds, err := strconv.ParseUint(value, 10, 64)
	require.NoError(t, err, variable)
	return seeds
}

// FuzzOperations lets the fuzzer choose the seeds.
func FuzzOperations(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		report := runSeed(seed)
		require.Empty(t, report.violations, "seed %d\n%s", seed, report.trace)
	})
}

// TestReadmeListsTheInvariants: the tables in README.md name every invariant and no other.
func TestReadmeListsTheInvariants(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-zA-Z]+)` \\|").FindAllSubmatch(readme, -1) {
		listed = append(listed, string(row[1]))
	}
	invariants := slices.Concat(invariantNames(invariantsDuring), invariantNames(invariantsAfter), invariantNames(invariantsOfReconciler), []string{"secondRunGoesThrough"})
	require.ElementsMatch(t, invariants, listed)
}

// invariantNames returns the field name of each element of a table of invariants.
func invariantNames(table any) (names []string) {
	v := reflect.ValueOf(table)
	for i := range v.Len() {
		names = append(names, v.Index(i).FieldByName("name").String())
	}
	return names
}
