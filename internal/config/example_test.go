package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const example = "../../deployments/ebb.example.yaml"

// everyPath lists the path of each key of a configuration type; lists count with their first item.
func everyPath(t reflect.Type, at string) []string {
	switch {
	case t.Kind() == reflect.Struct:
		var paths []string
		for i, key := range yamlKeys(t) {
			paths = append(paths, everyPath(t.Field(i).Type, join(at, key))...)
		}
		if at != "" {
			paths = append(paths, at)
		}
		return paths
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return append(everyPath(t.Elem(), at+"[0]"), at)
	}
	return []string{at}
}

func TestExampleHasEveryKey(t *testing.T) {
	data, err := os.ReadFile(example)
	require.NoError(t, err)
	_, lines, faults := decode(data, os.LookupEnv)
	require.Empty(t, faults)
	text := strings.Split(string(data), "\n")
	key := regexp.MustCompile(`^ *(- )?\w+:`)
	paths := everyPath(reflect.TypeFor[Config](), "")
	require.Greater(t, len(paths), 50)
	for _, path := range paths {
		line, ok := lines[path]
		for i := 1; !ok && i <= strings.Count(string(data), "- name:"); i++ { // what excludes another key is in a cluster of its own
			line, ok = lines[strings.Replace(path, "clusters[0]", fmt.Sprintf("clusters[%d]", i), 1)]
		}
		if !ok {
			t.Errorf("%s is missing from the example", path)
			continue
		}
		this, above := text[line-1], ""
		if line > 1 {
			above = text[line-2]
		}
		if key.MatchString(this) && path != "clusters" {
			require.True(t, strings.Contains(this, " # ") || strings.HasPrefix(strings.TrimSpace(above), "#"),
				"%s on line %d has no comment", path, line)
		}
	}
}

// The example says that the values it shows are the defaults.
func TestExampleShowsTheDefaults(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	cfg, err := Load(example)
	require.NoError(t, err)
	prod, staging, defaults := cfg.Clusters[0], cfg.Clusters[1], Cluster{}.WithDefaults()
	require.Equal(t, defaults.Drain, prod.Drain)
	require.Equal(t, defaults.Scale, prod.Scale)
	prod.Upgrade.KubeadmFlags, prod.Upgrade.KubeadmApplyFlags, prod.Upgrade.KubeadmNodeFlags = nil, nil, nil
	require.Equal(t, defaults.Upgrade, prod.Upgrade)
	prod.SSH.IdentityFile, prod.SSH.CertificateFile, prod.SSH.PassphraseFile, prod.SSH.KnownHosts = "", "", "", ""
	require.Equal(t, defaults.SSH, prod.SSH)
	require.Equal(t, defaults.Addressing.Mode, prod.Addressing.Mode)
	require.Equal(t, defaults.Infrastructure.Timeout, prod.Infrastructure.Timeout)

	require.Equal(t, "/home/me/.ssh/id_ed25519", staging.SSH.IdentityFile)
	require.Equal(t, 2, staging.Upgrade.MaxUnavailableWorkers(5))

	cks := cfg.Clusters[2]
	require.Equal(t, InfraCloudStack, cks.Infrastructure.Provider)
	require.Equal(t, defaults.Infrastructure.Expunge, cks.Infrastructure.Expunge)
	require.Empty(t, cks.Addressing.Rules, "they are asked for")
}
