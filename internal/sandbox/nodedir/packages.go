package nodedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// published are the revisions that the community's repositories hold at first.
var published = []string{
	"1.40.1-1.1", "1.39.2-1.1", "1.38.3-1.1", "1.38.2-1.1", "1.38.1-1.1", "1.37.3-1.1", "1.37.2-1.1", "1.36.3-1.1",
}

// Versions returns the Kubernetes versions that there are, newest first.
func Versions() []string {
	versions := make([]string, len(published))
	for i, revision := range published {
		versions[i], _, _ = strings.Cut(revision, "-")
	}
	return versions
}

// Package is one installed package.
type Package struct {
	Version string `json:"version"` // such as 1.36.3-1.1
	Held    bool   `json:"held"`
}

// Packages is the state of a node's package manager.
type Packages struct {
	Installed   map[string]Package `json:"installed"`
	Published   []string           `json:"published"`             // revisions in the repositories, one repository a minor; newest first
	Lists       []string           `json:"lists"`                 // minors whose repository was read by the last apt-get update
	Interrupted bool               `json:"interrupted,omitempty"` // dpkg was: apt-get installs nothing before dpkg --configure
}

// initPackages gives a new node its packages and the repository of their minor.
func (d Dir) initPackages(version string) error {
	p := Packages{Installed: map[string]Package{}, Published: published}
	for _, name := range []string{"kubeadm", "kubectl", "kubelet"} {
		p.Installed[name] = Package{Version: version + "-1.1", Held: true}
	}
	for _, dir := range []string{d.Sources(), d.Archives()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	minor := minorOf(version)
	line := fmt.Sprintf("deb [signed-by=/etc/apt/keyrings/kubernetes-apt-keyring.gpg] %s /\n", RepositoryURL(minor))
	if err := replace(filepath.Join(d.Sources(), "kubernetes.list"), []byte(line)); err != nil {
		return err
	}
	p.Lists = []string{minor}
	return write(d.File("packages.json"), p)
}

// minorOf returns the 1.37 of 1.37.2 and of 1.37.2-1.1.
func minorOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// RepositoryURL returns the address of the community repository of a minor.
func RepositoryURL(minor string) string {
	return "https://pkgs.k8s.io/core:/stable:/v" + minor + "/deb/"
}

// Packages reads the state of the package manager.
func (d Dir) Packages() (Packages, error) { return read[Packages](d.File("packages.json")) }

// ChangePackages runs change under the package manager's lock and keeps what it did, unless it fails.
func (d Dir) ChangePackages(change func(*Packages) error) (err error) {
	lock, err := os.OpenFile(d.File("packages.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { // #nosec G115 -- a descriptor is small
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	p, err := d.Packages()
	if err != nil {
		return err
	}
	if err := change(&p); err != nil {
		return err
	}
	return write(d.File("packages.json"), p)
}

// SourceMinors returns the minors whose repositories the node's sources name.
func (d Dir) SourceMinors() ([]string, error) {
	named := regexp.MustCompile(`(?m)^[^#\n]*/core:/stable:/v(\d+\.\d+)/deb`)
	var minors []string
	files, err := os.ReadDir(d.Sources())
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if ext := filepath.Ext(file.Name()); ext != ".list" && ext != ".sources" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(d.Sources(), file.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, match := range named.FindAllStringSubmatch(string(data), -1) {
			minors = append(minors, match[1])
		}
	}
	return minors, nil
}

// Offer is one package revision that can be installed.
type Offer struct{ Revision, Repository string }

// Offers returns the revisions of a package that the lists hold, newest first.
func (p Packages) Offers(name string) []Offer {
	var offers []Offer
	if _, known := p.Installed[name]; known {
		for _, revision := range p.Published {
			if minor := minorOf(revision); slices.Contains(p.Lists, minor) {
				offers = append(offers, Offer{revision, RepositoryURL(minor)})
			}
		}
	}
	return offers
}
