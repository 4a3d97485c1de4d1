package config

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Marshal returns YAML that Load reads as the same configuration, dollar signs escaped.
func Marshal(c *Config) ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(c); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	escapeNode(&root)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&root); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return out.Bytes(), nil
}

func escapeNode(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "$") {
		n.Value = escape(n.Value)
	}
	for _, child := range n.Content {
		escapeNode(child)
	}
}
