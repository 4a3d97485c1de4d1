package workers

import (
	"reflect"
	"runtime"
	"slices"
	"strings"

	"go.temporal.io/sdk/activity"

	"ebb/activities"
)

// ActivityTypes returns the types of the activities that a worker runs, sorted.
func ActivityTypes() []string {
	var seen types
	registerActivities(&seen, &activities.Activities{})
	slices.Sort(seen)
	return seen
}

// types is a registry that only keeps the names, which are those that the SDK
// gives: of a function, or of every exported method of a struct.
type types []string

func (t *types) RegisterActivity(a any) { t.RegisterActivityWithOptions(a, activity.RegisterOptions{}) }

func (t *types) RegisterActivityWithOptions(a any, o activity.RegisterOptions) {
	value := reflect.ValueOf(a)
	if value.Kind() == reflect.Func {
		name := o.Name
		if name == "" {
			name = runtime.FuncForPC(value.Pointer()).Name()
			name = strings.TrimSuffix(name[strings.LastIndex(name, ".")+1:], "-fm")
		}
		*t = append(*t, name)
		return
	}
	for i := range value.NumMethod() {
		*t = append(*t, o.Name+value.Type().Method(i).Name)
	}
}

func (*types) RegisterDynamicActivity(any, activity.DynamicRegisterOptions) {}
