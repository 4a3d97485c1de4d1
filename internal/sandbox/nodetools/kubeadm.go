package nodetools

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// versionVariable overrides the version that a program has.
const versionVariable = "SANDBOX_AS_VERSION"

// AsVersion returns an assignment that makes a program behave like a version other
// than the installed one, when it stands before the program in a shell command.
func AsVersion(version string) string { return versionVariable + "=" + version }

// images of a control plane, with the versions of what is not Kubernetes' own.
var images = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns/coredns:v1.14.2", "pause:3.11", "etcd:3.7.0-0"}

// versionOf returns the 1.37.2 of 1.37.2-1.1.
func versionOf(revision string) string {
	version, _, _ := strings.Cut(revision, "-")
	return version
}

// version returns the version of an installed package, or of the unpacked one that runs.
func (n node) version(pkg string) (string, error) {
	if as := os.Getenv(versionVariable); as != "" {
		return as, nil
	}
	if n.info.CKS {
		return n.optVersion(pkg)
	}
	p, err := n.Packages()
	if err != nil {
		return "", err
	}
	return versionOf(p.Installed[pkg].Version), nil
}

func kubeadm(n node, args []string) int {
	version, err := n.version("kubeadm")
	if err != nil {
		return fail("kubeadm", err)
	}
	words, flags := split(args)
	switch command := strings.Join(words[:min(2, len(words))], " "); command {
	case "version":
		if flags["o"] == "short" || flags["output"] == "short" {
			fmt.Printf("v%s\n", version)
		} else {
			fmt.Printf("kubeadm version: &version.Info{GitVersion:\"v%s\"}\n", version)
		}
	case "config images":
		return configImages(n, words, flags, version)
	case "upgrade apply":
		if err = checkFlags(flags, slices.Concat(upgradeFlags, applyFlags)); err == nil {
			err = n.apply(version, words, flags["ignore-preflight-errors"])
		}
	case "upgrade node":
		if err = checkFlags(flags, upgradeFlags); err == nil {
			err = n.upgradeNode(version)
		}
	case "reset":
		err = n.reset()
	default:
		err = fmt.Errorf("unknown command %q for \"kubeadm\"", strings.Join(words, " "))
	}
	return kubeadmExit(err)
}

// exitError is an error with the exit code that belongs to it.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// kubeadmExit prints an error as kubeadm does and returns the exit code.
func kubeadmExit(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "error: %v\nTo see the stack trace of this error execute with --v=5 or higher\n", err)
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

// The flags of kubeadm upgrade apply and node, and those of apply alone.
var (
	upgradeFlags = []string{"certificate-renewal", "config", "dry-run", "etcd-upgrade", "ignore-preflight-errors", "kubeconfig", "patches", "rootfs", "skip-phases", "v"}
	applyFlags   = []string{"allow-experimental-upgrades", "allow-release-candidate-upgrades", "f", "force", "print-config", "y", "yes"}
)

func checkFlags(given map[string]string, known []string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown flag: --%s", name)
		}
	}
	return nil
}

// split returns words and flags apart; a flag's value may be an argument of its own.
func split(args []string) (words []string, flags map[string]string) {
	flags = map[string]string{}
	valued := map[string]bool{"o": true, "output": true, "kubernetes-version": true, "image-repository": true, "config": true, "v": true, "patches": true}
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			words = append(words, args[i])
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if !given && valued[name] && i+1 < len(args) {
			i++
			value = args[i]
		}
		flags[name] = value
	}
	return words, flags
}

func configImages(n node, words []string, flags map[string]string, version string) int {
	if v := strings.TrimPrefix(flags["kubernetes-version"], "v"); v != "" {
		version = v
	}
	repository := flags["image-repository"]
	if repository == "" {
		repository = "registry.k8s.io"
	}
	for _, image := range images {
		if !strings.Contains(image, ":") {
			image += ":v" + version
		}
		name := repository + "/" + image
		switch {
		case len(words) > 2 && words[2] == "list":
			fmt.Println(name)
		case n.info.ControlPlane || strings.HasPrefix(image, "kube-proxy") || strings.HasPrefix(image, "pause"):
			fmt.Printf("[config/images] Pulled %s\n", name)
		}
	}
	return 0
}

// pullImage is crictl or ctr: an image is there as soon as it is asked for.
func pullImage(_ node, args []string) int {
	if len(args) > 0 {
		fmt.Printf("Image is up to date for %s\n", args[len(args)-1])
	}
	return 0
}

// apply upgrades the cluster's own version and this control plane. ignored are the checks
// whose errors are not.
func (n node) apply(version string, words []string, ignored string) error {
	if !n.info.ControlPlane {
		return errors.New(`couldn't create a Kubernetes client from file "/etc/kubernetes/admin.conf": failed to load admin kubeconfig: open /etc/kubernetes/admin.conf: no such file or directory`)
	}
	if len(words) < 3 {
		return errors.New("missing one or more required arguments. Required arguments: [version]")
	}
	target := "v" + strings.TrimPrefix(words[2], "v")
	fmt.Println("[upgrade] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace \"kube-system\"...")
	cluster, err := n.clusterVersion(n.info.Admin)
	if err != nil {
		return err
	}
	fmt.Println("[upgrade/preflight] Running preflight checks\n[upgrade] Running cluster health checks")
	fmt.Printf("[upgrade/preflight] You have chosen to upgrade the cluster version to %q\n[upgrade/versions] Cluster version: %s\n[upgrade/versions] kubeadm version: v%s\n", target, cluster, version)
	if err := checkTarget(cluster, target, version); err != nil {
		return err
	}
	if n.faults.CoreDNS && !strings.Contains(ignored, coreDNSCheck) {
		return preflightError(coreDNSCheck, "there are unsupported plugins in the CoreDNS Corefile")
	}
	if err := n.runPhase("[upgrade/staticpods] Waiting for the kubelet to restart the component"); err != nil {
		return err
	}
	if err := n.setClusterVersion(target); err != nil {
		return err
	}
	fmt.Printf("[upgrade] SUCCESS! A control plane node of your cluster was upgraded to %q.\n\n[upgrade] Now please proceed with upgrading the rest of the nodes by following the right order.\n", target)
	return nil
}

// coreDNSCheck is the check of the plugins of CoreDNS.
const coreDNSCheck = "CoreDNSUnsupportedPlugins"

// preflightError prints what a check has found and returns the error of kubeadm.
func preflightError(check, found string) error {
	fmt.Fprintf(os.Stderr, "[preflight] Some fatal errors occurred:\n\t[ERROR %s]: %s\n", check, found)
	return errors.New("error execution phase preflight: preflight checks failed; make a check non-fatal with `--ignore-preflight-errors=...`")
}

// checkTarget returns the error with which kubeadm refuses a target version.
func checkTarget(cluster, target, kubeadm string) error {
	refused := func(format string, args ...any) error {
		return fmt.Errorf("the version argument is invalid due to these fatal errors:\n\n\t- "+format+"\n\nPlease fix the misalignments highlighted above and try upgrading again", args...)
	}
	if target != "v"+kubeadm {
		return refused("Specified version to upgrade to %q does not match the kubeadm version \"v%s\". Upgrade kubeadm first using the tool you used to install kubeadm", target, kubeadm)
	}
	from, to := minorNumber(cluster), minorNumber(target)
	switch {
	case to > from+1:
		return refused("Specified version to upgrade to %q is too high; kubeadm can upgrade only 1 minor version at a time", target)
	case to < from:
		return refused("Specified version to upgrade to %q is too low; kubeadm does not downgrade (cluster version %s)", target, cluster)
	}
	return nil
}

func minorNumber(version string) int {
	match := regexp.MustCompile(`^v?\d+\.(\d+)`).FindStringSubmatch(version)
	if match == nil {
		return 0
	}
	minor, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return minor
}

// upgradeNode upgrades what is on this node to the cluster's version.
func (n node) upgradeNode(version string) error {
	fmt.Println("[upgrade] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace \"kube-system\"...")
	cluster, err := n.clusterVersion(n.info.Kubelet)
	if err != nil {
		return err
	}
	fmt.Println("[upgrade/preflight] Running pre-flight checks")
	line := "[upgrade/kubelet-config] Writing kubelet configuration to file \"/var/lib/kubelet/config.yaml\""
	if n.info.ControlPlane {
		line = fmt.Sprintf("[upgrade/control-plane] Upgrading your Static Pod-hosted control plane instance to version %q", cluster)
	} else {
		fmt.Println("[upgrade/control-plane] Skipping phase. Not a control plane node.")
	}
	if err := n.runPhase(line); err != nil {
		return err
	}
	fmt.Printf("[upgrade] The configuration for this node was successfully updated to %s with kubeadm v%s!\n[upgrade] Now you should go ahead and upgrade the kubelet package using your package manager.\n", cluster, version)
	return nil
}

func (n node) reset() error {
	fmt.Println("[preflight] Running pre-flight checks")
	if n.info.ControlPlane {
		fmt.Println("[reset] Removing etcd member from the cluster")
	}
	fmt.Println("[reset] Stopping the kubelet service\n[reset] Unmounting mounted directories in \"/var/lib/kubelet\"")
	return n.report(notReady("NodeStatusUnknown", "Kubelet stopped posting node status."))
}

// runPhase prints a line, takes as long as the node is set to take, and fails if it
// is set to.
func (n node) runPhase(line string) error {
	fmt.Println(line)
	time.Sleep(n.info.ScriptDelay + n.faults.Slow)
	if err := n.hang(); err != nil {
		return err
	}
	if n.faults.Exit != 0 {
		return &exitError{n.faults.Exit, preflightError("ContainerRuntime", "the node "+n.info.Name+" was told to fail").Error()}
	}
	return nil
}

// hang waits while the fault is set; it is an error when the sandbox, which could
// take it back, has ended.
func (n node) hang() error {
	for {
		faults, err := n.Faults()
		if err != nil || !faults.Hang {
			return err
		}
		if !n.sandboxRuns() {
			return errors.New("the sandbox has ended")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// sandboxRuns reports whether the sandbox's process is there: it holds a lock while it is.
func (n node) sandboxRuns() bool {
	f, err := os.Open(n.info.Sandbox + "/lock")
	if err != nil {
		return false
	}
	held := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil // #nosec G115 -- a descriptor is small
	return f.Close() == nil && held
}
