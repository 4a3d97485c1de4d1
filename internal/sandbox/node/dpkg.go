package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// dpkg has nothing to repair in the sandbox.
func dpkg(node, []string) int { return 0 }

// dpkgQuery answers `dpkg-query -W -f FORMAT PACKAGE...`.
func dpkgQuery(n node, args []string) int {
	format, names := "${Package}\\t${Version}\\n", []string{}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-f" && i+1 < len(args):
			i++
			format = args[i]
		case strings.HasPrefix(arg, "--showformat="):
			format = strings.TrimPrefix(arg, "--showformat=")
		case strings.HasPrefix(arg, "-f"):
			format = strings.TrimPrefix(strings.TrimPrefix(arg, "-f"), "=")
		case !strings.HasPrefix(arg, "-"):
			names = append(names, arg)
		}
	}
	p, err := n.Packages()
	if err != nil {
		return fail("dpkg-query", err)
	}
	exit := 0
	for _, name := range names {
		pkg, known := p.Installed[name]
		if !known {
			fmt.Fprintf(os.Stderr, "dpkg-query: no packages found matching %s\n", name)
			exit = 1
			continue
		}
		want, abbrev := "install", "ii "
		if pkg.Held {
			want, abbrev = "hold", "hi "
		}
		fmt.Print(strings.NewReplacer(
			"${Package}", name, "${binary:Package}", name, "${Version}", pkg.Version, "${Status}", want+" ok installed",
			"${db:Status-Abbrev}", abbrev, "${db:Status-Status}", "installed", "${db:Status-Want}", want,
			`\n`, "\n", `\t`, "\t").Replace(format))
	}
	return exit
}

// dpkgDeb answers `dpkg-deb -x ARCHIVE DIR`: it unpacks a program that behaves
// like the archive's version, whatever is installed.
func dpkgDeb(_ node, args []string) int {
	if len(args) != 3 || (args[0] != "-x" && args[0] != "--extract") {
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
	script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", asVersion, versionOf(strings.TrimSpace(string(revision))), parts[0])
	// #nosec G306 G703 -- as above, and a program has to be executable
	if err := os.WriteFile(filepath.Join(bin, parts[0]), []byte(script), 0o700); err != nil {
		return fail("dpkg-deb", err)
	}
	return 0
}
