package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// shown are the modules whose version matters to a user.
var shown = map[string]string{
	"go.temporal.io/server": "temporalServer", "go.temporal.io/sdk": "temporalSDK", "k8s.io/client-go": "kubernetesClient",
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version and what it was built from", Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			facts := buildFacts()
			if a.json() {
				return json.NewEncoder(a.out).Encode(facts)
			}
			_, err := fmt.Fprintf(a.out, "ebb %s (%s, commit %s)\nTemporal server %s, SDK %s; Kubernetes client %s\n", facts["version"],
				facts["go"], facts["commit"], facts["temporalServer"], facts["temporalSDK"], facts["kubernetesClient"])
			return err
		},
	}
}

func buildFacts() map[string]string {
	facts := map[string]string{"version": version, "go": runtime.Version(), "commit": "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return facts
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			facts["commit"] = s.Value
		}
	}
	for _, m := range info.Deps {
		if name, ok := shown[m.Path]; ok {
			facts[name] = m.Version
		}
	}
	return facts
}
