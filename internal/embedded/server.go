package embedded

import (
	"context"
	"fmt"
	"net"
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

// retention is how long a closed operation can still be looked at, and its ID
// cannot be used again. The server's own default is one day.
const retention = 30 * 24 * time.Hour

const clusterName = "ebb"

// pollsPerSecond is how often a task queue of the history service may be read.
// The server's default of 20 a second, with a burst of 20, is per history shard
// and meant for thousands of them: with one shard every step of an operation
// after the first twenty waits 1/20 s to be dispatched.
const pollsPerSecond = 100_000

func tuning() dynamicconfig.Client {
	return dynamicconfig.StaticClient{
		dynamicconfig.TransferProcessorMaxPollRPS.Key():   pollsPerSecond,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():      pollsPerSecond,
		dynamicconfig.VisibilityProcessorMaxPollRPS.Key(): pollsPerSecond,
		dynamicconfig.OutboundProcessorMaxPollRPS.Key():   pollsPerSecond,
		dynamicconfig.EnableServerVersionCheck.Key():      false, // it would call home
	}
}

func newServer(ctx context.Context, o Options) (temporal.Server, error) {
	ports := map[primitives.ServiceName]int{primitives.FrontendService: o.Port}
	for _, service := range []primitives.ServiceName{primitives.HistoryService, primitives.MatchingService, primitives.WorkerService} {
		free, err := port(ctx, "127.0.0.1", 0, "")
		if err != nil {
			return nil, err
		}
		ports[service] = free
	}
	cfg, hosts := serverConfig(o, ports)
	if err := prepareStore(o, cfg); err != nil {
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
		temporal.WithDynamicConfigClient(tuning()),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
	)
}

func serverConfig(o Options, ports map[primitives.ServiceName]int) (*config.Config, map[primitives.ServiceName]static.Hosts) {
	cfg := &config.Config{Services: map[string]config.Service{}}
	hosts := map[primitives.ServiceName]static.Hosts{}
	for service, p := range ports {
		host := "127.0.0.1"
		if service == primitives.FrontendService {
			host = o.Host
		}
		address := net.JoinHostPort(host, strconv.Itoa(p))
		cfg.Services[string(service)] = config.Service{RPC: config.RPC{GRPCPort: p, BindOnIP: host}}
		hosts[service] = static.Hosts{All: []string{address}, Self: address}
	}
	frontend := net.JoinHostPort(o.Host, strconv.Itoa(o.Port))
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
			DatabaseName: filepath.Join(o.Dir, "temporal.db"),
			// WAL with synchronous=full survives the death of the process and of the machine.
			ConnectAttributes: map[string]string{"mode": "rwc", "journal_mode": "wal", "synchronous": "full", "busy_timeout": "10000"},
		}}},
	}
	return cfg, hosts
}

// prepareStore makes the file with its schema and the namespace, once.
func prepareStore(o Options, cfg *config.Config) error {
	store := cfg.Persistence.DataStores[sqlite.PluginName].SQL
	if _, err := os.Stat(store.DatabaseName); os.IsNotExist(err) {
		if err := createStore(store); err != nil {
			return fmt.Errorf("create %s: %w", store.DatabaseName, err)
		}
	}
	namespace, err := sqliteschema.NewNamespaceConfig(clusterName, o.Namespace, false, nil)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	namespace.Detail.Config.Retention = durationpb.New(retention)
	if err := sqliteschema.CreateNamespaces(store, namespace); err != nil {
		return fmt.Errorf("open %s: %w", store.DatabaseName, err)
	}
	return nil
}

// createStore sets the schema up in a file beside the real one and moves it into
// place, so that a crash in the middle leaves no half-made file.
func createStore(store *config.SQL) error {
	draft := *store
	draft.DatabaseName = store.DatabaseName + ".new"
	draft.ConnectAttributes = map[string]string{"mode": "rwc"}
	if err := os.Remove(draft.DatabaseName); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(draft.DatabaseName, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := sqliteschema.SetupSchema(&draft); err != nil {
		return err
	}
	return os.Rename(draft.DatabaseName, store.DatabaseName)
}
