package nodefs

// Tools are the programs that sandbox-node stands in for on a node.
var Tools = []string{
	"apt-cache", "apt-config", "apt-get", "apt-mark", "cat", "crictl", "ctr", "df", "dpkg", "dpkg-deb", "dpkg-query",
	"kubeadm", "kubelet", "sudo", "systemctl", "systemd-run",
}
