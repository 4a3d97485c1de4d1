package tunnel

// Metadata of an agent's stream, as konnectivity has it.
const (
	HeaderAgentID     = "agentid"          // exactly one
	HeaderIdentifiers = "agentidentifiers" // at most one
	HeaderServerID    = "serverid"         // exactly one; sent at once
	HeaderServerCount = "servercount"      // exactly one: to how many servers an agent connects
)

// AgentMethod is the full name of the method that agents call, a stream of packets in both
// directions.
const AgentMethod = "/AgentService/Connect"

// HeaderCluster names the cluster that an agent with a token is of, and the one that a client
// dials in when it may dial in several: metadata of gRPC, or a header of HTTP CONNECT. It is
// Ebb's own.
const HeaderCluster = "ebb-cluster"
