package sandbox

import (
	"fmt"
	"os"
	"strings"
)

// TrustHostKeys writes the host keys that the machines have now into the
// known_hosts file: what an operator does after RotateHostKey.
func (s *Sandbox) TrustHostKeys() error {
	var known strings.Builder
	for _, name := range s.order {
		known.WriteString(s.machines[name].ssh.knownHost())
	}
	if err := os.WriteFile(s.knownHosts(), []byte(known.String()), 0o600); err != nil {
		return fmt.Errorf("trust the host keys of the sandbox: %w", err)
	}
	return nil
}
