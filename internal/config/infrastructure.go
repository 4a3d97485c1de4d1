package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

func (i *Infrastructure) validate(v validator) {
	v.oneOf("provider", i.Provider, InfraNone, InfraExec, InfraCloudStack)
	v.duration("timeout", i.Timeout)
	switch i.Provider {
	case InfraExec:
		if len(i.Command) == 0 || i.Command[0] == "" {
			v.errorf("command", "is required with provider exec: the program and its arguments")
		}
	case InfraNone, "", InfraCloudStack:
		if len(i.Command) > 0 {
			v.errorf("command", "is used only with provider: exec")
		}
		if i.States {
			v.errorf("states", "is used only with provider: exec")
		}
	default:
		return // the settings of an unknown provider cannot be validated
	}
	if i.Provider == InfraCloudStack {
		i.validateCloudStack(v)
		return
	}
	for _, setting := range i.cloudStackSettings() {
		if setting.value != "" {
			v.errorf(setting.key, "is used only with provider: cloudstack")
		}
	}
	if i.Expunge {
		v.errorf("expunge", "is used only with provider: cloudstack")
	}
}

type setting struct{ key, value string }

// cloudStackSettings returns the settings that only provider cloudstack uses.
func (i *Infrastructure) cloudStackSettings() []setting {
	return []setting{
		{"endpoint", i.Endpoint}, {"credentialsFile", i.CredentialsFile}, {"caFile", i.CAFile},
		{"project", i.Project}, {"zone", i.Zone}, {"kubernetesCluster", i.KubernetesCluster},
	}
}

func (i *Infrastructure) validateCloudStack(v validator) {
	v.required("endpoint", i.Endpoint, "the URL of the CloudStack API, such as https://cloud.example.com/client/api")
	if i.Endpoint != "" {
		if err := ValidateEndpoint(i.Endpoint); err != nil {
			v.errorf("endpoint", "%v", err)
		} else if i.CAFile != "" && !strings.HasPrefix(strings.ToLower(i.Endpoint), "https:") {
			v.errorf("caFile", "is used only with an https endpoint")
		}
	}
	v.required("credentialsFile", i.CredentialsFile, "the path of the file that holds apiKey and secretKey")
	for _, name := range []setting{{"project", i.Project}, {"zone", i.Zone}, {"kubernetesCluster", i.KubernetesCluster}} {
		if strings.TrimSpace(name.value) != name.value {
			v.errorf(name.key, "must not begin or end with a space")
		}
	}
}

// ValidateEndpoint returns an error unless signed requests may be sent to a URL: https,
// or http to this machine. The error does not quote the URL, which may hold a password.
func ValidateEndpoint(endpoint string) error {
	at, err := url.Parse(endpoint)
	switch {
	case err != nil || at.Host == "" || at.Hostname() == "":
		return fmt.Errorf("must be a URL such as https://cloud.example.com/client/api")
	case at.User != nil:
		return fmt.Errorf("must not hold a user or password: the keys are in credentialsFile")
	case at.RawQuery != "" || at.ForceQuery || at.Fragment != "":
		return fmt.Errorf("must end with the path of the API, without ? or #")
	case at.Scheme == "https", at.Scheme == "http" && IsLoopback(at.Hostname()):
		return nil
	}
	return fmt.Errorf("must begin with https:// (http only to this machine itself)")
}

// IsLoopback reports whether a host is "localhost" or a loopback address.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
