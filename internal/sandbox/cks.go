package sandbox

import (
	"context"
	"fmt"

	"ebb/internal/sandbox/nodedir"
	"ebb/internal/sandbox/nodetools"
)

// addISOs makes the binaries ISOs of all versions, and has the cluster run what that of its
// own version brings.
func (s *Sandbox) addISOs(ctx context.Context) error {
	if !s.opts.CKS {
		return nil
	}
	for _, version := range nodedir.Versions() {
		if err := nodetools.WriteISO(nodedir.ISO(s.opts.Dir, version), version, s.opts.programs["sandbox-node"]); err != nil {
			return fmt.Errorf("make the ISO of %s: %w", version, err)
		}
	}
	if err := s.Apply(ctx, nodetools.NetworkManifest(s.opts.Version)); err != nil {
		return fmt.Errorf("make the network: %w", err)
	}
	return nil
}

// layOut gives a node its programs of a version.
func (s *Sandbox) layOut(d nodedir.Dir) error {
	if !s.opts.CKS {
		return nil
	}
	return nodetools.LayOutCKS(d, s.opts.Version, s.opts.programs["sandbox-node"])
}

// Drive returns what is in the machine's drive for ISO images.
func (m *Machine) Drive() (nodedir.Drive, error) { return m.dir.Drive() }

// SetISO puts the ISO of a version into the machine's drive, or with "" empties it: what an
// infrastructure does other than that of the sandbox.
func (m *Machine) SetISO(version string) error {
	if version == "" {
		return m.dir.DetachISO()
	}
	return m.dir.AttachISO(nodedir.ISO(m.info.Sandbox, version), version)
}
