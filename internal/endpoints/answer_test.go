package endpoints

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewAnswer(t *testing.T) {
	now := map[string]*versioned{"a": {version: "1"}, "b": {version: "2"}}
	find := func(name string) (*versioned, error) {
		if name == "no" {
			return nil, errors.New("not for you")
		}
		return now[name], nil
	}
	for title, c := range map[string]struct {
		names []string
		told  map[string]string
		want  answer
	}{
		"nothing asked":      {want: answer{told: map[string]string{}}},
		"first":              {names: []string{"b", "a"}, want: answer{changed: []string{"a", "b"}, told: map[string]string{"a": "1", "b": "2"}}},
		"one is known":       {names: []string{"a", "b"}, told: map[string]string{"a": "1"}, want: answer{changed: []string{"b"}, told: map[string]string{"a": "1", "b": "2"}}},
		"one has changed":    {names: []string{"a"}, told: map[string]string{"a": "0"}, want: answer{changed: []string{"a"}, told: map[string]string{"a": "1"}}},
		"nothing changed":    {names: []string{"a"}, told: map[string]string{"a": "1"}, want: answer{told: map[string]string{"a": "1"}}},
		"refused by itself":  {names: []string{"a", "no"}, want: answer{changed: []string{"a"}, absent: []string{"no"}, told: map[string]string{"a": "1", "no": absent}}},
		"told of once":       {names: []string{"no"}, told: map[string]string{"no": absent}, want: answer{told: map[string]string{"no": absent}}},
		"taken away":         {names: []string{"no"}, told: map[string]string{"no": "1"}, want: answer{absent: []string{"no"}, told: map[string]string{"no": absent}}},
		"given":              {names: []string{"a"}, told: map[string]string{"a": absent}, want: answer{changed: []string{"a"}, told: map[string]string{"a": "1"}}},
		"not known yet":      {names: []string{"later"}, want: answer{told: map[string]string{}}},
		"a client's, so far": {names: []string{"later"}, told: map[string]string{"later": "7"}, want: answer{told: map[string]string{"later": "7"}}},
		"unsubscribed":       {names: []string{"a"}, told: map[string]string{"a": "1", "b": "1"}, want: answer{told: map[string]string{"a": "1"}}},
	} {
		t.Run(title, func(t *testing.T) {
			got := newAnswer(c.names, c.told, find)
			require.Equal(t, c.want, got)
			require.Equal(t, len(c.want.changed)+len(c.want.absent) == 0, got.isEmpty())
		})
	}
}

func TestVersionIsOfTheContent(t *testing.T) {
	version := func(name string) string {
		v, err := newVersioned(loadAssignment(name, "", nil))
		require.NoError(t, err)
		return v.version
	}
	require.Equal(t, version("prod/default/web:80"), version("prod/default/web:80"))
	require.NotEqual(t, version("prod/default/web:80"), version("prod/default/web:81"))
}
