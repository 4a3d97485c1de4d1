package nodetools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"ebb/internal/sandbox/nodedir"
)

const (
	blkidNothing = 2  // exit code of blkid when no device matches
	mountFailed  = 32 // exit code of mount and umount
)

// blkid knows one device, the drive, and one question: where is there an ISO 9660?
func blkid(n node, args []string) int {
	if !slices.Contains(args, "TYPE=iso9660") {
		return fail("blkid", errors.New("the sandbox knows -t TYPE=iso9660 only"))
	}
	drive, err := n.Drive()
	switch {
	case err != nil:
		return fail("blkid", err)
	case !drive.Visible(time.Now()):
		return blkidNothing
	}
	fmt.Println(nodedir.DrivePath)
	return 0
}

// mount answers `mount -t iso9660 -o ro DEVICE DIR`: what the ISO holds is in DIR then.
func mount(n node, args []string) int {
	if len(args) != 6 || !slices.Equal(args[:4], []string{"-t", "iso9660", "-o", "ro"}) {
		return fail("mount", errors.New("the sandbox knows -t iso9660 -o ro DEVICE DIR only"))
	}
	device, at := args[4], args[5]
	drive, err := n.Drive()
	switch {
	case err != nil:
		return fail("mount", err)
	case device != nodedir.DrivePath || !drive.Visible(time.Now()):
		fmt.Fprintf(os.Stderr, "mount: %s: no medium found on %s.\n", at, device)
		return mountFailed
	}
	if err := n.show(drive.ISO, at); err != nil {
		return fail("mount", err)
	}
	drive.Mounted = at
	if err := n.WriteDrive(drive); err != nil {
		return fail("mount", err)
	}
	return 0
}

// show puts what an ISO holds into the place of an empty directory.
func (n node) show(iso, at string) error {
	info, err := os.Stat(iso)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if err := os.Remove(at); err != nil {
			return err
		}
		return os.Symlink(iso, at)
	}
	xorriso, err := hostProgram(n, "xorriso")
	if err != nil {
		return fmt.Errorf("xorriso: %w", err)
	}
	out, err := exec.CommandContext(context.Background(), xorriso, "-osirrox", "on", "-indev", iso, "-extract", "/", at).CombinedOutput() // #nosec G204 G702 -- the host's own xorriso
	if err != nil {
		return fmt.Errorf("xorriso: %w: %s", err, out)
	}
	return nil
}

// umount answers `umount DIR`.
func umount(n node, args []string) int {
	drive, err := n.Drive()
	switch {
	case err != nil:
		return fail("umount", err)
	case len(args) != 1 || drive.Mounted == "" || drive.Mounted != args[0]:
		fmt.Fprintf(os.Stderr, "umount: %s: not mounted.\n", args[len(args)-1])
		return mountFailed
	}
	if err := errors.Join(os.RemoveAll(args[0]), os.Mkdir(args[0], 0o700)); err != nil {
		return fail("umount", err)
	}
	drive.Mounted = ""
	if err := n.WriteDrive(drive); err != nil {
		return fail("umount", err)
	}
	return 0
}

// eject answers `eject DEVICE`.
func eject(n node, args []string) int {
	drive, err := n.Drive()
	switch {
	case err != nil:
		return fail("eject", err)
	case len(args) != 1 || args[0] != nodedir.DrivePath:
		return fail("eject", fmt.Errorf("the sandbox knows %s only", nodedir.DrivePath))
	case drive.Mounted != "":
		return fail("eject", fmt.Errorf("unable to eject, last error: %s is mounted", filepath.Clean(drive.Mounted)))
	}
	drive.Ejected = true
	if err := n.WriteDrive(drive); err != nil {
		return fail("eject", err)
	}
	return 0
}
