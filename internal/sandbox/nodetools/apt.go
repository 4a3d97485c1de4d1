package nodetools

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ebb/internal/sandbox/nodedir"
)

// aptFailed is the exit code of apt-get for any failure.
const aptFailed = 100

// aptCall is a parsed command line of apt-get, apt-cache or apt-mark.
type aptCall struct {
	command      string
	words        []string
	downloadOnly bool // --download-only
	changeHeld   bool // --allow-change-held-packages
}

func parseApt(args []string) (c aptCall) {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-o":
			i++ // its value is an argument of its own
		case arg == "--download-only":
			c.downloadOnly = true
		case arg == "--allow-change-held-packages":
			c.changeHeld = true
		case strings.HasPrefix(arg, "-"):
		case c.command == "":
			c.command = arg
		default:
			c.words = append(c.words, arg)
		}
	}
	return c
}

// aptExit prints an error as apt does and returns the exit code.
func aptExit(err error) int {
	if err != nil {
		fmt.Fprintf(os.Stderr, "E: %v\n", err)
		return aptFailed
	}
	return 0
}

// The texts of these errors are apt's own.
//
//nolint:revive,staticcheck // a capital letter or a dot at the end, as apt prints them
var (
	errLocked      = errors.New("Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)")
	errInterrupted = errors.New("dpkg was interrupted, you must manually run 'sudo dpkg --configure -a' to correct the problem.")
	errHeld        = errors.New("Held packages were changed and -y was used without --allow-change-held-packages.")
	errHeldBack    = errors.New("Unable to correct problems, you have held broken packages.")
	errDowngrade   = errors.New("Packages were downgraded and -y was used without --allow-downgrades.")
)

const unreachable = "Temporary failure resolving 'pkgs.k8s.io'"

func unknownPackage(name string) error {
	return fmt.Errorf("Unable to locate package %s", name) //nolint:staticcheck // apt's own words
}

func unknownOperation(name string) error {
	return fmt.Errorf("Invalid operation %s", name) //nolint:staticcheck // apt's own words
}

func aptGet(n node, args []string) int {
	c := parseApt(args)
	if n.faults.AptLocked {
		return aptExit(errLocked)
	}
	switch c.command {
	case "update":
		return aptExit(n.ChangePackages(n.update))
	case "install":
		return aptExit(n.ChangePackages(func(p *nodedir.Packages) error { return n.install(p, c) }))
	default:
		return aptExit(unknownOperation(c.command))
	}
}

// update reads the lists of the repositories in the sources. As with apt-get, lists
// that cannot be fetched are a warning, and the old ones stay in use.
func (n node) update(p *nodedir.Packages) error {
	minors, err := n.SourceMinors()
	if err != nil {
		return err
	}
	if n.faults.MirrorDown {
		for i, minor := range minors {
			url := nodedir.RepositoryURL(minor)
			fmt.Printf("Err:%d %s InRelease\n  %s\n", i+1, url, unreachable)
			fmt.Fprintf(os.Stderr, "W: Failed to fetch %sInRelease  %s\n", url, unreachable)
		}
		fmt.Fprintln(os.Stderr, "W: Some index files failed to download. They have been ignored, or old ones used instead.")
		return nil
	}
	if n.faults.KeyExpired {
		refuseKey(minors)
		return nil
	}
	for i, minor := range minors {
		fmt.Printf("Get:%d %s InRelease\n", i+1, nodedir.RepositoryURL(minor))
	}
	p.Lists = minors
	fmt.Println("Reading package lists... Done")
	return nil
}

// refuseKey prints what apt-get says of repositories whose key has expired: to it, too,
// that is a warning as long as there are old lists.
func refuseKey(minors []string) {
	const expired = "The following signatures were invalid: EXPKEYSIG 234654DA9A296436 isv:kubernetes OBS Project <isv:kubernetes@build.opensuse.org>"
	for i, minor := range minors {
		url := nodedir.RepositoryURL(minor)
		fmt.Printf("Err:%d %s InRelease\n  %s\n", i+1, url, expired)
		fmt.Fprintf(os.Stderr, "W: An error occurred during the signature verification. The repository is not updated and the previous index files will be used. GPG error: %s InRelease: %s\n", url, expired)
		fmt.Fprintf(os.Stderr, "W: Failed to fetch %sInRelease  %s\n", url, expired)
	}
	fmt.Fprintln(os.Stderr, "W: Some index files failed to download. They have been ignored, or old ones used instead.")
}

// upgrade is a package with the revision that it is to have.
type upgrade struct {
	name  string
	offer nodedir.Offer
}

func (n node) install(p *nodedir.Packages, c aptCall) error {
	if p.Interrupted {
		return errInterrupted
	}
	fmt.Print("Reading package lists... Done\nBuilding dependency tree... Done\nReading state information... Done\n")
	upgrades, err := chooseAll(*p, c)
	if err != nil {
		return err
	}
	if n.faults.HeldBack && slices.ContainsFunc(upgrades, func(u upgrade) bool { return u.name == "kubelet" }) {
		fmt.Print("The following packages have unmet dependencies:\n kubelet : Depends: kubernetes-cni (>= 1.6.0) but 1.2.0-2.1 is to be installed\n")
		return errHeldBack
	}
	fmt.Printf("%d upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n", len(upgrades))
	if err := n.download(upgrades); err != nil {
		return err
	}
	if c.downloadOnly {
		fmt.Println("Download complete and in download only mode")
		return nil
	}
	for _, u := range upgrades {
		old := p.Installed[u.name]
		fmt.Printf("Unpacking %s (%s) over (%s) ...\nSetting up %s (%s) ...\n", u.name, u.offer.Revision, old.Version, u.name, u.offer.Revision)
		p.Installed[u.name] = nodedir.Package{Version: u.offer.Revision, Held: old.Held}
	}
	return nil
}

// chooseAll returns what a call of apt-get install changes, or why it may not.
func chooseAll(p nodedir.Packages, c aptCall) ([]upgrade, error) {
	var upgrades []upgrade
	for _, word := range c.words {
		name, wanted, _ := strings.Cut(word, "=")
		old, known := p.Installed[name]
		if !known {
			return nil, unknownPackage(name)
		}
		if old.Version == wanted {
			fmt.Printf("%s is already the newest version (%s).\n", name, wanted)
			continue
		}
		offer, found := find(p.Offers(name), wanted)
		switch {
		case !found:
			return nil, fmt.Errorf("Version '%s' for '%s' was not found", wanted, name) //nolint:staticcheck // apt's own words
		case old.Held && !c.changeHeld:
			return nil, errHeld
		case wanted < old.Version:
			return nil, errDowngrade
		}
		upgrades = append(upgrades, upgrade{name, offer})
	}
	return upgrades, nil
}

func find(offers []nodedir.Offer, revision string) (nodedir.Offer, bool) {
	for _, offer := range offers {
		if offer.Revision == revision {
			return offer, true
		}
	}
	return nodedir.Offer{}, false
}

// download puts the packages into apt's cache.
func (n node) download(upgrades []upgrade) error {
	for i, u := range upgrades {
		deb := fmt.Sprintf("%s_%s_amd64.deb", u.name, u.offer.Revision)
		if n.faults.MirrorDown {
			return fmt.Errorf("Failed to fetch %samd64/%s  %s", u.offer.Repository, deb, unreachable) //nolint:staticcheck // apt's own words
		}
		fmt.Printf("Get:%d %s  %s %s\n", i+1, u.offer.Repository, u.name, u.offer.Revision)
		if err := os.WriteFile(filepath.Join(n.Archives(), deb), []byte(u.offer.Revision+"\n"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// aptCache answers `apt-cache madison PACKAGE...`.
func aptCache(n node, args []string) int {
	c := parseApt(args)
	if c.command != "madison" {
		return aptExit(unknownOperation(c.command))
	}
	p, err := n.Packages()
	if err != nil {
		return fail("apt-cache", err)
	}
	for _, name := range c.words {
		for _, offer := range p.Offers(name) {
			fmt.Printf("%10s | %s | %s  Packages\n", name, offer.Revision, strings.TrimSuffix(offer.Repository, "/"))
		}
	}
	return 0
}

// aptMark answers `apt-mark hold|unhold PACKAGE...`.
func aptMark(n node, args []string) int {
	c := parseApt(args)
	if c.command != "hold" && c.command != "unhold" {
		return aptExit(unknownOperation(c.command))
	}
	return aptExit(n.ChangePackages(func(p *nodedir.Packages) error {
		for _, name := range c.words {
			pkg, known := p.Installed[name]
			if !known {
				return unknownPackage(name)
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
	}))
}

// aptConfig answers `apt-config shell NAME KEY/d`: a directory of this node.
func aptConfig(n node, args []string) int {
	if len(args) != 3 || args[0] != "shell" {
		return aptExit(errors.New("the sandbox knows apt-config shell NAME KEY only"))
	}
	dirs := map[string]string{"Dir::Etc::sourceparts/d": n.Sources(), "Dir::Cache::archives/d": n.Archives()}
	if dir, known := dirs[args[2]]; known {
		fmt.Printf("%s='%s/'\n", args[1], strings.ReplaceAll(dir, "'", `'\''`))
	}
	return 0
}
