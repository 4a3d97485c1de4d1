package nodetools

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"ebb/internal/sandbox/nodedir"
)

func kubelet(n node, args []string) int {
	if len(args) != 1 || args[0] != "--version" {
		return fail("kubelet", fmt.Errorf("the sandbox knows kubelet --version only, not %q", strings.Join(args, " ")))
	}
	version, err := n.version("kubelet")
	if err != nil {
		return fail("kubelet", err)
	}
	fmt.Printf("Kubernetes v%s\n", version)
	return 0
}

// startKubelet does what the first status of a new kubelet does: it reports its
// version and that it is not ready yet. The simulated kubelet makes the node
// Ready half a second later. One that dies reports nothing, and its node's Ready is
// Unknown at once, not after the 40 s that the node controller would take.
func (n node) startKubelet() error {
	if n.faults.KubeletDies != "" {
		return n.dyingKubelet()
	}
	if err := n.setKubeletLabel("running"); err != nil {
		return err
	}
	version, err := n.version("kubelet")
	if err != nil {
		return err
	}
	status := notReady("KubeletNotReady", "container runtime status check may not have completed yet")
	status["nodeInfo"] = map[string]any{"kubeletVersion": "v" + version}
	return n.report(status)
}

func (n node) dyingKubelet() error {
	log, err := os.OpenFile(n.KubeletLog(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(log, n.faults.KubeletDies)
	if err = errors.Join(err, log.Close(), n.setKubeletLabel(nil)); err != nil {
		return err
	}
	status := notReady("NodeStatusUnknown", "Kubelet stopped posting node status.")
	status["conditions"].([]any)[0].(map[string]any)["status"] = "Unknown"
	return n.report(status)
}

// setKubeletLabel has the node's kubelet simulated, or with nil no more.
func (n node) setKubeletLabel(value any) error {
	c, err := n.api(n.info.Kubelet)
	if err != nil {
		return err
	}
	code, body, err := c.call(http.MethodPatch, "/api/v1/nodes/"+n.info.Name, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{nodedir.KubeletLabel: value}},
	})
	if err == nil && code != http.StatusOK && code != http.StatusNotFound {
		err = fmt.Errorf("label node %s: HTTP %d: %s", n.info.Name, code, body)
	}
	return err
}

// journalctl prints what the kubelet has written.
func journalctl(n node, _ []string) int {
	log, err := os.ReadFile(n.KubeletLog())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail("journalctl", err)
	}
	fmt.Print(string(log))
	return 0
}

func notReady(reason, message string) map[string]any {
	now := time.Now().UTC().Format(time.RFC3339)
	return map[string]any{"conditions": []any{map[string]any{
		"type": "Ready", "status": "False", "reason": reason, "message": message, "lastHeartbeatTime": now, "lastTransitionTime": now,
	}}}
}

// report patches the node's status with the kubelet's own certificate. A node
// that is no longer in the cluster has nothing to report to.
func (n node) report(status map[string]any) error {
	c, err := n.api(n.info.Kubelet)
	if err != nil {
		return err
	}
	code, body, err := c.call(http.MethodPatch, "/api/v1/nodes/"+n.info.Name+"/status", map[string]any{"status": status})
	if err != nil {
		return err
	}
	if code != http.StatusOK && code != http.StatusNotFound {
		return fmt.Errorf("report the status of node %s: HTTP %d: %s", n.info.Name, code, body)
	}
	return nil
}

const kubeadmConfig = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"

var versionLine = regexp.MustCompile(`(?m)^kubernetesVersion: *(\S+)$`)

// configMap is the part of kubeadm-config that is used here.
type configMap struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

func (n node) readConfig(c *api) (m configMap, err error) {
	code, body, err := c.call(http.MethodGet, kubeadmConfig, nil)
	if err != nil {
		return m, err
	}
	if code != http.StatusOK {
		return m, fmt.Errorf("failed to get config map kubeadm-config: HTTP %d: %s", code, body)
	}
	return m, json.Unmarshal(body, &m)
}

// clusterVersion returns the version that kubeadm-config says the cluster has.
func (n node) clusterVersion(as nodedir.KeyPair) (string, error) {
	c, err := n.api(as)
	if err != nil {
		return "", err
	}
	m, err := n.readConfig(c)
	if err != nil {
		return "", err
	}
	match := versionLine.FindStringSubmatch(m.Data["ClusterConfiguration"])
	if match == nil {
		return "", fmt.Errorf("kubeadm-config has no kubernetesVersion")
	}
	return match[1], nil
}

// setClusterVersion records the new version in kubeadm-config.
func (n node) setClusterVersion(target string) error {
	c, err := n.api(n.info.Admin)
	if err != nil {
		return err
	}
	for {
		m, err := n.readConfig(c)
		if err != nil {
			return err
		}
		text := versionLine.ReplaceAllString(m.Data["ClusterConfiguration"], "kubernetesVersion: "+target)
		code, body, err := c.call(http.MethodPatch, kubeadmConfig, map[string]any{
			"metadata": map[string]any{"resourceVersion": m.Metadata.ResourceVersion},
			"data":     map[string]any{"ClusterConfiguration": text},
		})
		switch {
		case err != nil:
			return err
		case code == http.StatusConflict:
			continue
		case code != http.StatusOK:
			return fmt.Errorf("update kubeadm-config: HTTP %d: %s", code, body)
		}
		return nil
	}
}
