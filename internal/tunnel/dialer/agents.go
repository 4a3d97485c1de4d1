package dialer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"ebb/internal/tunnel"
)

// AgentsPath is where a gateway lists the agents of a cluster.
const AgentsPath = "/v1/agents"

// Ready is the state of an agent that neither drains nor is on a cordoned node.
const Ready = "Ready"

// Agent is a connection of an agent to the gateway.
type Agent struct {
	ID      string    `json:"agentID"`
	Offers  string    `json:"offers"` // as agentIdentifiers has it
	Since   time.Time `json:"since"`
	State   string    `json:"state"`   // Ready, Cordoned or Draining
	Streams int       `json:"streams"` // dials under way and connections
}

// Agents returns the agents of the cluster that are connected to the gateway that answers.
func (d *Dialer) Agents(ctx context.Context) ([]Agent, error) {
	config, err := d.opts.tls()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.opts.Address+AgentsPath, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set(tunnel.HeaderCluster, d.opts.Cluster)
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	if answer.StatusCode != http.StatusOK {
		return nil, problem(answer)
	}
	var all []Agent
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		return nil, fmt.Errorf("the gateway's list of agents: %w", err)
	}
	return all, nil
}
