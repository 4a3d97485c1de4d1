package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

func (i *Infrastructure) check(k checker) {
	k.oneOf("provider", i.Provider, InfraNone, InfraExec, InfraCloudStack)
	k.duration("timeout", i.Timeout)
	switch i.Provider {
	case InfraExec:
		if len(i.Command) == 0 || i.Command[0] == "" {
			k.fault("command", "is required with provider exec: the program and its arguments")
		}
	case InfraNone, "", InfraCloudStack:
		if len(i.Command) > 0 {
			k.fault("command", "is used only with provider: exec")
		}
	default:
		return // what belongs to a provider that is not known cannot be judged
	}
	if i.Provider == InfraCloudStack {
		i.checkCloudStack(k)
		return
	}
	for _, setting := range i.cloudStack() {
		if setting.value != "" {
			k.fault(setting.key, "is used only with provider: cloudstack")
		}
	}
	if i.Expunge {
		k.fault("expunge", "is used only with provider: cloudstack")
	}
}

type setting struct{ key, value string }

// cloudStack are the texts that only provider cloudstack uses.
func (i *Infrastructure) cloudStack() []setting {
	return []setting{
		{"endpoint", i.Endpoint}, {"credentialsFile", i.CredentialsFile}, {"caFile", i.CAFile},
		{"project", i.Project}, {"zone", i.Zone}, {"kubernetesCluster", i.KubernetesCluster},
	}
}

func (i *Infrastructure) checkCloudStack(k checker) {
	k.required("endpoint", i.Endpoint, "the URL of the CloudStack API, such as https://cloud.example.com/client/api")
	if i.Endpoint != "" {
		if err := CheckEndpoint(i.Endpoint); err != nil {
			k.fault("endpoint", "%v", err)
		} else if i.CAFile != "" && !strings.HasPrefix(strings.ToLower(i.Endpoint), "https:") {
			k.fault("caFile", "is used only with an https endpoint")
		}
	}
	k.required("credentialsFile", i.CredentialsFile, "the path of the file that holds apiKey and secretKey")
	for _, name := range []setting{{"project", i.Project}, {"zone", i.Zone}, {"kubernetesCluster", i.KubernetesCluster}} {
		if strings.TrimSpace(name.value) != name.value {
			k.fault(name.key, "must not begin or end with a space")
		}
	}
}

// CheckEndpoint says why an address is not fit to send signed requests to: they
// travel in clear text only to the same machine. The error does not repeat the
// address, which may hold a password.
func CheckEndpoint(endpoint string) error {
	at, err := url.Parse(endpoint)
	switch {
	case err != nil || at.Host == "" || at.Hostname() == "":
		return fmt.Errorf("must be a URL such as https://cloud.example.com/client/api")
	case at.User != nil:
		return fmt.Errorf("must not hold a user or password: the keys are in credentialsFile")
	case at.RawQuery != "" || at.ForceQuery || at.Fragment != "":
		return fmt.Errorf("must end with the path of the API, without ? or #")
	case at.Scheme == "https", at.Scheme == "http" && Loopback(at.Hostname()):
		return nil
	}
	return fmt.Errorf("must begin with https:// (http only to this machine itself)")
}

// Loopback reports whether a host is this machine itself, so that nobody listens in.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
