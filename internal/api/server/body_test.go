package server

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ebb/internal/api/wire"
)

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	const known = "; known here: kind, cluster, nodes, count, strict, target, hops"
	for name, c := range map[string]struct {
		body   string
		faults []string
	}{
		"good":            {drainW1, nil},
		"space around":    {" \n" + drainW1 + "\n ", nil},
		"null is absent":  {`{"kind":"drain","cluster":"prod","nodes":null}`, nil},
		"empty":           {"", []string{"the body is empty: send a JSON object"}},
		"blank":           {" \n", []string{"the body is empty: send a JSON object"}},
		"list":            {`[]`, []string{"the body must be a JSON object"}},
		"text":            {`"drain"`, []string{"the body must be a JSON object"}},
		"cut":             {`{"kind":"drain"`, []string{"the body is not JSON: it ends too early"}},
		"cut in a value":  {`{"kind":"dra`, []string{"the body is not JSON: it ends too early"}},
		"comma":           {`{"kind":"drain",}`, []string{"the body is not JSON: invalid character '}'"}},
		"unknown":         {`{"knd":"drain"}`, []string{`unknown field "knd"` + known}},
		"other case":      {`{"Kind":"drain"}`, []string{`unknown field "Kind"` + known}},
		"twice":           {`{"kind":"drain","kind":"upgrade"}`, []string{`field "kind" comes twice`}},
		"trailing":        {drainW1 + "{}", []string{"something follows the JSON object"}},
		"trailing rubble": {drainW1 + "]", []string{"something follows the JSON object"}},
		"not UTF-8":       {"{\"kind\":\"\xff\"}", []string{"the body is not UTF-8"}},
		"types": {`{"kind":1,"nodes":"w1","count":1.5,"strict":"yes","hops":[1]}`, []string{
			`field "kind" must be text`, `field "nodes" must be a list, each item text`, `field "count" must be a whole number`,
			`field "strict" must be true or false`, `field "hops" must be a list, each item text`}},
		"several": {`{"a":1,"count":"2","b":{}}`, []string{`unknown field "a"` + known, `field "count" must be a whole number`, `unknown field "b"` + known}},
		"id":      {`{"id":"x"}`, []string{`unknown field "id"` + known}},
	} {
		t.Run(name, func(t *testing.T) {
			var s wire.Submission
			faults := decodeJSON([]byte(c.body), &s)
			require.Len(t, faults, len(c.faults), "%q", faults)
			for i := range faults {
				require.Contains(t, faults[i], c.faults[i])
			}
			if c.faults == nil {
				require.Equal(t, "drain", s.Kind)
				require.Equal(t, "prod", s.Cluster)
			}
		})
	}
}

// What is accepted is JSON, has only known names, each once, and means the same
// when it is written and read again; everything else is told in words that are
// not longer than what was sent would justify.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		drainW1, "", "{", "{}", "null", "[]", `{"kind":"upgrade","target":"1.37.2","hops":["1.36.3"],"strict":true,"cluster":"c"}`,
		`{"kind":"scale-down","count":3,"cluster":"c"}`, `{"count":1e3}`, `{"count":99999999999999999999}`, `{"kind":"\ud800"}`, `{"":1}`,
		`{"kind":"a","kind":"b"}`, `{"KIND":"a"}`, `{"nodes":[null,"a"]}`, `{"kind":"a"} x`, "{\"kind\":\"\xff\"}", `{"nodes":[[[[[[]]]]]]}`,
		strings.Repeat("[", 20_000), `{"x":` + strings.Repeat(`{"x":`, 20_000), `{"node":"w1"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s wire.Submission
		faults := decodeJSON(data, &s)
		for _, fault := range faults {
			if len(fault) > 1000 {
				t.Fatalf("%d bytes to say what is wrong: %.100s", len(fault), fault)
			}
		}
		if len(faults) > 0 {
			return
		}
		var plain map[string]json.RawMessage
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what is no JSON object: %v", err)
		}
		known, _ := jsonFields(&s)
		for name := range plain {
			if _, ok := known[name]; !ok {
				t.Fatalf("accepted the unknown name %q", name)
			}
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var second wire.Submission
		if faults := decodeJSON(again, &second); len(faults) > 0 {
			t.Fatalf("%s is not accepted again: %q", again, faults)
		}
		normal(&s)
		normal(&second)
		if !reflect.DeepEqual(s, second) {
			t.Fatalf("%+v became %+v", s, second)
		}
	})
}

// normal drops the difference between no list and an empty one.
func normal(s *wire.Submission) {
	if len(s.Nodes) == 0 {
		s.Nodes = nil
	}
	if len(s.Hops) == 0 {
		s.Hops = nil
	}
}
