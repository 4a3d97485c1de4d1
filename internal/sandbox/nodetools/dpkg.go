package nodetools

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ebb/internal/sandbox/nodedir"
)

// dpkg answers `dpkg --configure -a`: it finishes an interrupted installation.
func dpkg(n node, _ []string) int {
	err := n.ChangePackages(func(p *nodedir.Packages) error { p.Interrupted = false; return nil })
	if err != nil {
		return fail("dpkg", err)
	}
	return 0
}

// dpkgQuery answers `dpkg-query -W -f FORMAT PACKAGE...` for formats of the fields
// db:Status-Abbrev and Version.
func dpkgQuery(n node, args []string) int {
	if len(args) < 3 || args[0] != "-W" || args[1] != "-f" {
		fmt.Fprintln(os.Stderr, "dpkg-query: error: the sandbox knows -W -f FORMAT PACKAGE... only")
		return 2
	}
	p, err := n.Packages()
	if err != nil {
		return fail("dpkg-query", err)
	}
	exit := 0
	for _, name := range args[3:] {
		pkg, known := p.Installed[name]
		if !known {
			fmt.Fprintf(os.Stderr, "dpkg-query: no packages found matching %s\n", name)
			exit = 1
			continue
		}
		status := "ii " // wanted, installed, no error
		if pkg.Held {
			status = "hi "
		}
		fmt.Print(strings.NewReplacer("${db:Status-Abbrev}", status, "${Version}", pkg.Version, `\n`, "\n").Replace(args[2]))
	}
	return exit
}

// dpkgDeb answers `dpkg-deb -x ARCHIVE DIR`: it unpacks a program that behaves like
// the archive's version, whatever is installed.
func dpkgDeb(_ node, args []string) int {
	if len(args) != 3 || args[0] != "-x" {
		fmt.Fprintln(os.Stderr, "dpkg-deb: error: the sandbox knows -x ARCHIVE DIR only")
		return 2
	}
	parts := strings.Split(filepath.Base(args[1]), "_")
	// #nosec G703 -- whoever runs it may read and write these files without it
	revision, err := os.ReadFile(args[1])
	if err != nil || len(parts) != 3 {
		fmt.Fprintf(os.Stderr, "dpkg-deb: error: %s is not a Debian format archive\n", args[1])
		return 2
	}
	bin := filepath.Join(args[2], "usr", "bin")
	// #nosec G703 -- as above
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return fail("dpkg-deb", err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s exec %s \"$@\"\n", AsVersion(versionOf(strings.TrimSpace(string(revision)))), parts[0])
	// #nosec G306 G703 -- as above, and a program has to be executable
	if err := os.WriteFile(filepath.Join(bin, parts[0]), []byte(script), 0o700); err != nil {
		return fail("dpkg-deb", err)
	}
	return 0
}
