package endpoints

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	xdscache "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// versioned is a resource as it is sent.
type versioned struct {
	packed  *anypb.Any
	version string // hash of the content, so the same in every gateway
}

// newVersioned packs a resource.
func newVersioned(r types.Resource) (*versioned, error) {
	packed, err := marshalAny(r)
	if err != nil {
		return nil, err
	}
	return &versioned{packed: packed, version: xdscache.HashResource(packed.GetValue())}, nil
}

// absent is in place of the version of a name that has no resource.
const absent = "absent"

// answer is what a stream is to be told next of the names that it asks for.
type answer struct {
	changed []string          // names whose resource is sent
	absent  []string          // names that have no resource, and it does not know yet
	told    map[string]string // version or absent by name, of what it knows after this
}

// newAnswer compares what a stream was told (version or absent by name) of the names that
// it asks for with what find returns now: the resource, or an error when there is none
// for this stream, or neither when that is not known yet. Of such a name it is told
// nothing, and what it knows of it stays.
func newAnswer(names []string, told map[string]string, find func(name string) (*versioned, error)) answer {
	a := answer{told: make(map[string]string, len(names))}
	for _, name := range names {
		known, wasTold := told[name]
		found, err := find(name)
		switch {
		case err != nil:
			a.told[name] = absent
			if known != absent {
				a.absent = append(a.absent, name)
			}
		case found != nil:
			a.told[name] = found.version
			if known != found.version {
				a.changed = append(a.changed, name)
			}
		case wasTold:
			a.told[name] = known
		}
	}
	slices.Sort(a.changed)
	slices.Sort(a.absent)
	return a
}

// isEmpty reports whether there is nothing to tell.
func (a answer) isEmpty() bool { return len(a.changed)+len(a.absent) == 0 }
