package endpoints

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // in the documentation's example
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"        // in the documentation's example
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"ebb/internal/config"
	"ebb/internal/endpoints"
)

// example returns the block of docs/endpoints.md in that language that has some text in it.
func example(t *testing.T, language, text string) []byte {
	t.Helper()
	page, err := os.ReadFile("../../docs/endpoints.md")
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(page, -1) {
		if regexp.MustCompile(text).Match(block[1]) {
			return block[1]
		}
	}
	require.Fail(t, "no such example", text)
	return nil
}

// What the documentation tells users to write is what their clients read.
func TestExamples(t *testing.T) {
	data, err := yaml.YAMLToJSON(example(t, "yaml", "static_resources"))
	require.NoError(t, err)
	var envoy bootstrap.Bootstrap
	require.NoError(t, protojson.Unmarshal(data, &envoy))
	require.NoError(t, envoy.ValidateAll())
	_, err = endpoints.ParseResourceName(envoy.GetStaticResources().GetClusters()[0].GetEdsClusterConfig().GetServiceName())
	require.NoError(t, err)

	grpc := example(t, "json", "xds_servers")
	require.True(t, json.Valid(grpc))
	_, err = xds.NewXDSResolverWithConfigForTesting(grpc)
	require.NoError(t, err)

	path := t.TempDir() + "/ebb.yaml"
	require.NoError(t, os.WriteFile(path, example(t, "yaml", "clientCAFile"), 0o600))
	_, err = config.Load(path)
	require.NoError(t, err)
}
