package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"ebb/internal/sandbox/nodefs"
)

// aptFailed is the exit code of apt-get for any failure.
const aptFailed = 100

// call is a parsed command line of apt-get.
type call struct {
	command  string
	words    []string
	download bool // --download-only
	held     bool // --allow-change-held-packages
	down     bool // --allow-downgrades
}

func parseApt(args []string) (c call) {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-o" || arg == "-t" || arg == "-c":
			i++ // its value is an argument of its own
		case arg == "--download-only" || arg == "-d":
			c.download = true
		case arg == "--allow-change-held-packages":
			c.held = true
		case arg == "--allow-downgrades":
			c.down = true
		case strings.HasPrefix(arg, "-"):
		case c.command == "":
			c.command = arg
		default:
			c.words = append(c.words, arg)
		}
	}
	return c
}

func aptGet(n node, args []string) int {
	c := parseApt(args)
	var err error
	switch c.command {
	case "update", "install":
		if n.mirrorFails() {
			url := nodefs.RepositoryURL("1.37")
			fmt.Fprintf(os.Stderr, "Err:1 %s InRelease\n  Temporary failure resolving 'pkgs.k8s.io'\n", url)
			fmt.Fprintf(os.Stderr, "E: Failed to fetch %sInRelease  Temporary failure resolving 'pkgs.k8s.io'\n", url)
			return aptFailed
		}
		if c.command == "update" {
			err = n.ChangePackages(n.update)
		} else {
			err = n.ChangePackages(func(p *nodefs.Packages) error { return n.install(p, c) })
		}
	case "clean", "autoremove":
	default:
		err = fmt.Errorf("Invalid operation %s", c.command) //nolint:staticcheck // apt's own words
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "E: %v\n", err)
		return aptFailed
	}
	return 0
}

// mirrorFails says whether the fault of exit code 75 is on. Staging is spared:
// the fault is for the upgrade itself.
func (n node) mirrorFails() bool {
	return n.faults.Exit == 75 && os.Getenv("EBB_PHASE") != "stage"
}

func (n node) update(p *nodefs.Packages) error {
	minors, err := n.SourceMinors()
	if err != nil {
		return err
	}
	for i, minor := range minors {
		fmt.Printf("Get:%d %s InRelease\n", i+1, nodefs.RepositoryURL(minor))
	}
	p.Lists = minors
	fmt.Println("Reading package lists... Done")
	return nil
}

func (n node) install(p *nodefs.Packages, c call) error {
	fmt.Print("Reading package lists... Done\nBuilding dependency tree... Done\nReading state information... Done\n")
	chosen := map[string]string{}
	var order []string
	for _, word := range c.words {
		name, revision, err := choose(*p, word)
		if err != nil {
			return err
		}
		old := p.Installed[name]
		if old.Version == revision {
			fmt.Printf("%s is already the newest version (%s).\n", name, revision)
			continue
		}
		if old.Held && !c.held {
			return errors.New("Held packages were changed and -y was used without --allow-change-held-packages.") //nolint:revive,staticcheck // apt's own words
		}
		if revision < old.Version && !c.down {
			return errors.New("Packages were downgraded and -y was used without --allow-downgrades.") //nolint:revive,staticcheck // apt's own words
		}
		chosen[name] = revision
		order = append(order, name)
	}
	fmt.Printf("%d upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n", len(order))
	for i, name := range order {
		deb := fmt.Sprintf("%s_%s_amd64.deb", name, chosen[name])
		fmt.Printf("Get:%d %s  %s %s\n", i+1, nodefs.RepositoryURL(minorOf(chosen[name])), name, chosen[name])
		if err := os.WriteFile(filepath.Join(n.Archives(), deb), []byte(chosen[name]+"\n"), 0o600); err != nil {
			return err
		}
	}
	if c.download {
		fmt.Println("Download complete and in download only mode")
		return nil
	}
	for _, name := range order {
		old := p.Installed[name]
		fmt.Printf("Unpacking %s (%s) over (%s) ...\nSetting up %s (%s) ...\n", name, chosen[name], old.Version, name, chosen[name])
		p.Installed[name] = nodefs.Package{Version: chosen[name], Held: old.Held}
	}
	return nil
}

// choose finds the revision that a word such as kubeadm=1.37.2-* means.
func choose(p nodefs.Packages, word string) (name, revision string, err error) {
	name, wanted, given := strings.Cut(word, "=")
	if _, known := p.Installed[name]; !known {
		return "", "", fmt.Errorf("Unable to locate package %s", name) //nolint:staticcheck // apt's own words
	}
	if !given {
		wanted = "*"
	}
	if installed := p.Installed[name].Version; installed == wanted {
		return name, installed, nil
	}
	for _, offer := range p.Offers(name) {
		if ok, err := path.Match(wanted, offer.Revision); err == nil && ok {
			return name, offer.Revision, nil
		}
	}
	return "", "", fmt.Errorf("Version '%s' for '%s' was not found", wanted, name) //nolint:staticcheck // apt's own words
}

// minorOf is the 1.37 of 1.37.2-1.1.
func minorOf(revision string) string {
	parts := strings.SplitN(revision, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func aptCache(n node, args []string) int {
	c := parseApt(args)
	p, err := n.Packages()
	if err != nil {
		return fail("apt-cache", err)
	}
	if c.command != "madison" && c.command != "policy" {
		fmt.Fprintf(os.Stderr, "E: Invalid operation %s\n", c.command)
		return aptFailed
	}
	for _, name := range c.words {
		if c.command == "policy" {
			fmt.Printf("%s:\n  Installed: %s\n  Version table:\n", name, p.Installed[name].Version)
		}
		for _, offer := range p.Offers(name) {
			if c.command == "policy" {
				fmt.Printf("     %s 500\n        500 %s  Packages\n", offer.Revision, offer.Repository)
			} else {
				fmt.Printf("%10s | %s | %s  Packages\n", name, offer.Revision, strings.TrimSuffix(offer.Repository, "/"))
			}
		}
	}
	return 0
}

func aptMark(n node, args []string) int {
	c := parseApt(args)
	if c.command == "showhold" {
		p, err := n.Packages()
		if err != nil {
			return fail("apt-mark", err)
		}
		var held []string
		for name, pkg := range p.Installed {
			if pkg.Held {
				held = append(held, name)
			}
		}
		slices.Sort(held)
		for _, name := range held {
			fmt.Println(name)
		}
		return 0
	}
	if c.command != "hold" && c.command != "unhold" {
		fmt.Fprintf(os.Stderr, "E: Invalid operation %s\n", c.command)
		return aptFailed
	}
	err := n.ChangePackages(func(p *nodefs.Packages) error {
		for _, name := range c.words {
			pkg, known := p.Installed[name]
			if !known {
				return fmt.Errorf("Unable to locate package %s", name) //nolint:staticcheck // apt's own words
			}
			pkg.Held = c.command == "hold"
			p.Installed[name] = pkg
			if pkg.Held {
				fmt.Printf("%s set on hold.\n", name)
			} else {
				fmt.Printf("Canceled hold on %s.\n", name)
			}
		}
		return nil
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "E: %v\n", err)
		return aptFailed
	}
	return 0
}

// aptConfig answers `apt-config shell NAME KEY/d`: the directories of this node.
func aptConfig(n node, args []string) int {
	if len(args) == 0 || args[0] != "shell" || len(args)%2 == 0 {
		fmt.Fprintln(os.Stderr, "E: the sandbox knows apt-config shell NAME KEY only")
		return aptFailed
	}
	dirs := map[string]string{
		"Dir::Etc::sourceparts": n.Sources(), "Dir::Cache::archives": n.Archives(),
	}
	for i := 1; i+1 < len(args); i += 2 {
		if dir, known := dirs[strings.TrimSuffix(args[i+1], "/d")]; known {
			fmt.Printf("%s='%s/'\n", args[i], strings.ReplaceAll(dir, "'", `'\''`))
		}
	}
	return 0
}
