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
