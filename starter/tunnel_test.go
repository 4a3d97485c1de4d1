package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/forecast"
	"ebb/internal/tunnel/dialer"
)

func TestAgentsOfATunnel(t *testing.T) {
	agents := func(states ...string) (all []dialer.Agent) {
		for i, s := range states {
			all = append(all, dialer.Agent{ID: "w" + string(rune('1'+i)), State: s, Streams: i, Since: time.Unix(0, 0), Offers: "host=w"})
		}
		return all
	}
	for name, c := range map[string]struct {
		agents      []dialer.Agent
		told, fault string
	}{
		"none":       {nil, "", "no agent is connected"},
		"one drains": {agents("Ready", "Draining", "Cordoned"), "3 agents: w1, w2 (Draining), w3 (Cordoned)", ""},
		"all drain":  {agents("Draining", "Cordoned"), "", "every agent drains or is on a cordoned node: 2 agents: w1 (Draining), w2 (Cordoned)"},
	} {
		t.Run(name, func(t *testing.T) {
			told, fault := describeAgents(c.agents)
			require.Equal(t, c.told, told)
			require.Contains(t, fault, c.fault)
			require.Equal(t, c.fault == "", fault == "")
		})
	}
	require.Empty(t, agentLines(forecast.Overview{}))
	require.Contains(t, agentLines(forecast.Overview{AgentsError: "refused"}), "agents of the tunnel are not known: refused")
	require.Contains(t, agentLines(forecast.Overview{Agents: []dialer.Agent{}}), "no agent of the tunnel is connected")
	text := strings.Join(agentLines(forecast.Overview{Agents: agents("Ready", "Draining")}), "\n")
	require.Regexp(t, `w2 +Draining +1 +1970-01-01T00:00:00Z +host=w`, text)
}
