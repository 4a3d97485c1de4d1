package embedded

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/types/known/durationpb"
)

// retention is how long closed workflows are kept; as long, their IDs cannot be used
// again. The server's own default is one day.
const retention = 30 * 24 * time.Hour

const clusterName = "ebb"

// maxPollRPS is how often a task queue of the history service may be read.
// The server's default of 20 a second, with a burst of 20, is per history shard
// and meant for thousands of them: with one shard every step of an operation
// after the first twenty waits 1/20 s to be dispatched.
const maxPollRPS = 100_000

// timerMaxTimeShift is the shortest timer, and so the shortest backoff of a retry, that
// the history service keeps to. The server's default of 1 s allows for the
// clocks of many hosts to differ; here there is one clock.
const timerMaxTimeShift = 20 * time.Millisecond

// dynamicConfig returns the server's dynamic configuration for a single host.
func dynamicConfig() dynamicconfig.Client {
	return dynamicconfig.StaticClient{
		dynamicconfig.TransferProcessorMaxPollRPS.Key():   maxPollRPS,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():      maxPollRPS,
		dynamicconfig.VisibilityProcessorMaxPollRPS.Key(): maxPollRPS,
		dynamicconfig.OutboundProcessorMaxPollRPS.Key():   maxPollRPS,
		dynamicconfig.TimerProcessorMaxTimeShift.Key():    timerMaxTimeShift,
		dynamicconfig.EnableServerVersionCheck.Key():      false, // it would call home

		// A worker that stops has its open polls answered, so that no task is handed
		// to a poll that nobody waits for: such a task is lost until it times out,
		// 10 s for a workflow task, its start-to-close timeout for an activity.
		dynamicconfig.EnableCancelWorkerPollsOnShutdown.Key(): true,

		// Partitions spread a task queue over hosts; there is one host.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
	}
}

func newServer(o Options, ports servicePorts) (temporal.Server, error) {
	cfg, hosts := serverConfig(o, ports)
	if err := ensureDatabase(o, cfg); err != nil {
		return nil, err
	}
	logger := log.NewZapLogger(o.Log.Named("temporal").WithOptions(zap.IncreaseLevel(zapcore.ErrorLevel)))
	claims, err := authorization.GetClaimMapperFromConfig(&cfg.Global.Authorization, logger)
	if err != nil {
		return nil, err
	}
	return temporal.NewServer(
		temporal.WithConfig(cfg),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(hosts),
		temporal.WithLogger(logger),
		temporal.WithDynamicConfigClient(dynamicConfig()),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
	)
}

func serverConfig(o Options, ports servicePorts) (*config.Config, map[primitives.ServiceName]static.Hosts) {
	cfg := &config.Config{Services: map[string]config.Service{}}
	hosts := map[primitives.ServiceName]static.Hosts{}
	for service, p := range ports {
		host := "127.0.0.1"
		if service == primitives.FrontendService {
			host = o.Host
		}
		address := net.JoinHostPort(dialHost(host), strconv.Itoa(p))
		cfg.Services[string(service)] = config.Service{RPC: config.RPC{GRPCPort: p, BindOnIP: host}}
		hosts[service] = static.Hosts{All: []string{address}, Self: address}
	}
	frontend := net.JoinHostPort(dialHost(o.Host), strconv.Itoa(o.Port))
	cfg.Global.Membership = config.Membership{MaxJoinDuration: startTimeout, BroadcastAddress: "127.0.0.1"}
	cfg.PublicClient = config.PublicClient{HostPort: frontend}
	cfg.DCRedirectionPolicy = config.DCRedirectionPolicy{Policy: "noop"}
	cfg.ClusterMetadata = &cluster.Config{
		FailoverVersionIncrement: 10, MasterClusterName: clusterName, CurrentClusterName: clusterName,
		ClusterInformation: map[string]cluster.ClusterInformation{
			clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: frontend},
		},
	}
	cfg.Archival = config.Archival{
		History:    config.HistoryArchival{State: config.ArchivalDisabled},
		Visibility: config.VisibilityArchival{State: config.ArchivalDisabled},
	}
	cfg.NamespaceDefaults = config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
		History:    config.HistoryArchivalNamespaceDefaults{State: config.ArchivalDisabled},
		Visibility: config.VisibilityArchivalNamespaceDefaults{State: config.ArchivalDisabled},
	}}
	cfg.Persistence = config.Persistence{
		DefaultStore: sqlite.PluginName, VisibilityStore: sqlite.PluginName, NumHistoryShards: 1,
		DataStores: map[string]config.DataStore{sqlite.PluginName: {SQL: &config.SQL{
			PluginName:   sqlite.PluginName,
			DatabaseName: uriPath(databasePath(o.Dir)),
			// WAL with synchronous=full survives the death of the process and of the machine.
			ConnectAttributes: map[string]string{"mode": "rwc", "journal_mode": "wal", "synchronous": "full", "busy_timeout": "10000"},
		}}},
	}
	return cfg, hosts
}

// ensureDatabase creates the database with its schema, and the namespace, if they do not
// exist.
func ensureDatabase(o Options, cfg *config.Config) error {
	store := cfg.Persistence.DataStores[sqlite.PluginName].SQL
	path := databasePath(o.Dir)
	if _, err := os.Stat(path); os.IsNotExist(err) {
		if err := createDatabase(store, path); err != nil {
			return fmt.Errorf("create %s: %w", path, err)
		}
	}
	namespace, err := sqliteschema.NewNamespaceConfig(clusterName, o.Namespace, false, nil)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	namespace.Detail.Config.Retention = durationpb.New(retention)
	if err := sqliteschema.CreateNamespaces(store, namespace); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return nil
}

// createDatabase sets up the schema in a file beside path and renames it, so that a crash
// leaves no incomplete database.
func createDatabase(store *config.SQL, path string) error {
	draft, draftPath := *store, path+".new"
	draft.DatabaseName = uriPath(draftPath)
	draft.ConnectAttributes = map[string]string{"mode": "rwc"}
	if err := os.Remove(draftPath); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(draftPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // #nosec G304 -- the state directory is configuration
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := sqliteschema.SetupSchema(&draft); err != nil {
		return err
	}
	return os.Rename(draftPath, path)
}

func databasePath(dir string) string { return filepath.Join(dir, "temporal.db") }

// uriPath returns path with the characters escaped that have a meaning in a SQLite URI
// (?, #, %): the plugin inserts the name of the database unescaped.
func uriPath(path string) string { return (&url.URL{Path: path}).EscapedPath() }
