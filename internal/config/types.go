// Package config reads ebb.yaml: the clusters Ebb manages and how it may touch them.
//
// The file holds no secrets, only where they are: keys, kubeconfigs and tokens
// are read by the worker from the paths named here and never travel in a
// workflow.
package config

import "time"

// Config is the whole of ebb.yaml.
type Config struct {
	Clusters []Cluster `yaml:"clusters"`
	Gateway  Gateway   `yaml:"gateway,omitempty"`
}

// Cluster is one managed cluster. Workflows carry its Name and nothing else of it.
type Cluster struct {
	Name           string         `yaml:"name"`
	Kubeconfig     string         `yaml:"kubeconfig"`
	Context        string         `yaml:"context,omitempty"` // empty = the kubeconfig's current context
	SSH            SSH            `yaml:"ssh,omitempty"`
	Addressing     Addressing     `yaml:"addressing,omitempty"`
	Tunnel         ClusterTunnel  `yaml:"tunnel,omitempty"`
	Infrastructure Infrastructure `yaml:"infrastructure,omitempty"`
	Drain          Drain          `yaml:"drain,omitempty"`
	Scale          Scale          `yaml:"scale,omitempty"`
	Upgrade        Upgrade        `yaml:"upgrade,omitempty"`
}

// SSH says how to log in to the nodes of a cluster.
type SSH struct {
	User            string   `yaml:"user,omitempty"`            // default root
	Port            int      `yaml:"port,omitempty"`            // default 22
	IdentityFile    string   `yaml:"identityFile,omitempty"`    // private key, OpenSSH or PEM
	CertificateFile string   `yaml:"certificateFile,omitempty"` // OpenSSH user certificate for IdentityFile
	PassphraseFile  string   `yaml:"passphraseFile,omitempty"`  // file that holds the key's passphrase
	Agent           bool     `yaml:"agent,omitempty"`           // also offer the keys of SSH_AUTH_SOCK
	KnownHosts      string   `yaml:"knownHosts,omitempty"`      // OpenSSH known_hosts file; host keys are always verified
	AcceptNew       bool     `yaml:"acceptNew,omitempty"`       // pin a host that has no known key yet
	Sudo            bool     `yaml:"sudo,omitempty"`            // run scripts through sudo -n
	Jump            string   `yaml:"jump,omitempty"`            // [user@]host[:port] of a jump host
	RunDir          string   `yaml:"runDir,omitempty"`          // default /var/lib/ebb/runs; relative = under the login directory
	ConnectTimeout  Duration `yaml:"connectTimeout,omitempty"`  // default 15s: TCP connect and handshake together
	KeepAlive       Duration `yaml:"keepAlive,omitempty"`       // default 5s; three unanswered = the connection is dead
}

// Addressing modes.
const (
	AddressNode      = "node"      // each node on its own InternalIP
	AddressForwarded = "forwarded" // each node behind its port-forwarding rule on PublicAddress
	AddressTunnel    = "tunnel"    // each node on its own InternalIP, through agents in its network
)

// Addressing says at which address each node answers SSH.
type Addressing struct {
	Mode          string           `yaml:"mode,omitempty"` // default node
	PublicAddress string           `yaml:"publicAddress,omitempty"`
	BasePort      int              `yaml:"basePort,omitempty"` // fallback for a node without a rule: BasePort + its index
	Rules         []ForwardingRule `yaml:"rules,omitempty"`
}

// ForwardingRule forwards one port of the public address to one node's SSH port.
type ForwardingRule struct {
	Node  string `yaml:"node"`
	Port  int    `yaml:"port"`
	State string `yaml:"state,omitempty"` // only Active (the default) rules are used
}

// Infrastructure providers.
const (
	InfraNone       = "none"       // machines are not touched
	InfraExec       = "exec"       // a command that takes a JSON request on stdin
	InfraCloudStack = "cloudstack" // the API of Apache CloudStack
)

// Infrastructure says what owns the machines behind the nodes.
type Infrastructure struct {
	Provider string   `yaml:"provider,omitempty"` // default none
	Command  []string `yaml:"command,omitempty"`  // exec: the program and its arguments
	States   bool     `yaml:"states,omitempty"`   // exec: the program tells the states of many machines in one call, default false
	Timeout  Duration `yaml:"timeout,omitempty"`  // for one call, default 2m

	Endpoint          string `yaml:"endpoint,omitempty"`          // cloudstack: URL of the API
	CredentialsFile   string `yaml:"credentialsFile,omitempty"`   // cloudstack: holds apiKey and secretKey
	CAFile            string `yaml:"caFile,omitempty"`            // cloudstack: PEM, in place of the system's authorities
	Project           string `yaml:"project,omitempty"`           // cloudstack: name or ID; empty = the account itself
	Zone              string `yaml:"zone,omitempty"`              // cloudstack: name or ID; empty = any
	KubernetesCluster string `yaml:"kubernetesCluster,omitempty"` // cloudstack: name or ID of the CKS cluster; only its machines are touched
	Expunge           bool   `yaml:"expunge,omitempty"`           // cloudstack: destroy for good at once, default false = after the cloud's delay
}

// Drain are the settings of one drain attempt. They are read again for every
// attempt, so a change to the file applies to the next one.
type Drain struct {
	Timeout                  Duration `yaml:"timeout,omitempty"`                  // default 300s; below 1s = the default
	RetryInterval            Duration `yaml:"retryInterval,omitempty"`            // default 30s, between attempts
	GracePeriod              *int64   `yaml:"gracePeriod,omitempty"`              // seconds; default -1 = each pod's own
	Force                    bool     `yaml:"force,omitempty"`                    // also evict pods that no controller will re-create
	DeleteEmptyDir           *bool    `yaml:"deleteEmptyDir,omitempty"`           // default true
	SkipWaitForDeleteTimeout Duration `yaml:"skipWaitForDeleteTimeout,omitempty"` // default 0 = always wait
	Parallel                 int      `yaml:"parallel,omitempty"`                 // evictions in flight, default 16
	Jobs                     string   `yaml:"jobs,omitempty"`                     // evict (default), or wait until the pods of Jobs complete
	Returning                string   `yaml:"returning,omitempty"`                // leave (default) pods that come back to the cordoned node, or fail the drain
	WaitForVolumeDetach      *bool    `yaml:"waitForVolumeDetach,omitempty"`      // default true
	VolumeDetachTimeout      Duration `yaml:"volumeDetachTimeout,omitempty"`      // default 60s
}

// What a drain does with the pods of Jobs.
const (
	JobsEvict = "evict"
	JobsWait  = "wait"
)

// What a drain does with pods that come back to the cordoned node.
const (
	ReturningLeave = "leave"
	ReturningFail  = "fail"
)

// Scale are the settings of a scale-down.
type Scale struct {
	Timeout     Duration `yaml:"timeout,omitempty"`     // default 1h, until every node is drained
	Attempts    int      `yaml:"attempts,omitempty"`    // drain attempts per node, default 3
	MaxParallel int      `yaml:"maxParallel,omitempty"` // nodes drained at once, default 1
	MinWorkers  int      `yaml:"minWorkers,omitempty"`  // never go below, default 1
	// A machine with volumes attached is destroyed only when they are detached in time, or
	// when destroyAttached says that it does not matter.
	VolumeDetachTimeout Duration `yaml:"volumeDetachTimeout,omitempty"` // default 5m
	DestroyAttached     bool     `yaml:"destroyAttached,omitempty"`     // default false
}

// Shipped upgrade scripts.
const (
	ScriptKubeadmApt    = "kubeadm-apt"
	ScriptKubeadmBundle = "kubeadm-bundle"
	ScriptCKSISO        = "cks-iso"
)

// Upgrade are the settings of an upgrade.
type Upgrade struct {
	Script            string   `yaml:"script,omitempty"`            // kubeadm-apt (default), kubeadm-bundle, cks-iso, or a path on the worker
	KubeadmFlags      []string `yaml:"kubeadmFlags,omitempty"`      // added to kubeadm upgrade apply and, those that it knows, to node
	KubeadmApplyFlags []string `yaml:"kubeadmApplyFlags,omitempty"` // added to kubeadm upgrade apply only
	KubeadmNodeFlags  []string `yaml:"kubeadmNodeFlags,omitempty"`  // added to kubeadm upgrade node only
	ISO               string   `yaml:"iso,omitempty"`               // name or ID of the ISO that is attached to each machine; {version} in it is the target's; default with cks-iso: the infrastructure's own
	BundleDir         string   `yaml:"bundleDir,omitempty"`         // kubeadm-bundle: directory on the node, default /opt/ebb/bundle
	Retries           *int     `yaml:"retries,omitempty"`           // default 3: drain attempts = retries + 1; also retries of exit 75
	NodeTimeout       Duration `yaml:"nodeTimeout,omitempty"`       // default 30m, for the drain of one node, and once more for its script
	Timeout           Duration `yaml:"timeout,omitempty"`           // default 0 = the sum of the nodes' timeouts
	ReadyTimeout      Duration `yaml:"readyTimeout,omitempty"`      // default 10m, for a node to be Ready after its upgrade
	SteadyInterval    Duration `yaml:"steadyInterval,omitempty"`    // default 1s, between the 20 good answers that make an API server steady
	MaxUnavailable    string   `yaml:"maxUnavailable,omitempty"`    // workers at once: a number or a percentage, default 1
}

// Duration is a time.Duration written as "300s" or "1h30m".
type Duration time.Duration
