package nodedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// DrivePath is the device of a node's drive for ISO images.
const DrivePath = "/dev/sr0"

// ISO returns the directory of what is on the ISO of a version, in the sandbox in the given
// directory.
func ISO(sandbox, version string) string { return filepath.Join(sandbox, "isos", version) }

// isoDelay is how long an ISO takes from its attachment until its device is there.
const isoDelay = time.Second

// ErrMounted is the error of an infrastructure that is to take an ISO out of a machine
// whose system has it mounted, and so its drive locked.
var ErrMounted = errors.New("the tray is locked by the guest: its system has the ISO mounted")

// Drive is a node's drive for ISO images.
type Drive struct {
	ISO     string    `json:"iso,omitempty"`     // the attached one: an image, or a directory in its place; empty = none
	Version string    `json:"version,omitempty"` // whose binaries it holds
	Since   time.Time `json:"since"`             // its attachment
	Ejected bool      `json:"ejected,omitempty"` // the tray is open
	Mounted string    `json:"mounted,omitempty"` // where the node has it mounted
}

// Visible reports whether the node sees an ISO in the drive.
func (d Drive) Visible(now time.Time) bool {
	return d.ISO != "" && !d.Ejected && !now.Before(d.Since.Add(isoDelay))
}

// Drive reads the state of the drive.
func (d Dir) Drive() (Drive, error) {
	drive, err := read[Drive](d.File("drive.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Drive{}, nil
	}
	return drive, err
}

// WriteDrive replaces the state of the drive.
func (d Dir) WriteDrive(v Drive) error { return write(d.File("drive.json"), v) }

// AttachISO puts an ISO into the drive, in place of that of another version; one of the same
// version that is there stays as it is.
func (d Dir) AttachISO(path, version string) error {
	drive, err := d.Drive()
	switch {
	case err != nil:
		return err
	case drive.ISO != "" && drive.Version == version:
		return nil
	case drive.Mounted != "":
		return ErrMounted
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("there is no ISO of %s: %w", version, err)
	}
	return d.WriteDrive(Drive{ISO: path, Version: version, Since: time.Now()})
}

// DetachISO empties the drive, unless the node has the ISO mounted.
func (d Dir) DetachISO() error {
	drive, err := d.Drive()
	if err == nil && drive.Mounted != "" {
		err = ErrMounted
	}
	if err != nil {
		return err
	}
	return d.WriteDrive(Drive{})
}
