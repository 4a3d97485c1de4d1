package main

import (
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"

	"ebb/internal/api/auth"
	"ebb/internal/config"
)

// checkSettings returns an error for settings with which nobody could authenticate, or
// tokens would be sent unencrypted. It lists everything that is wrong and what to do;
// path is the file of the settings.
func checkSettings(g config.Gateway, path string) error {
	var faults []error
	if g.TokensFile == "" && g.OIDC.Issuer == "" {
		faults = append(faults, fmt.Errorf("nobody could prove who they are: set gateway.tokensFile or gateway.oidc in %s. "+
			"`ebb-gateway token --name NAME --role operator --clusters CLUSTER` makes a token and the line for the tokens file", path))
	}
	faults = append(faults, checkListen(g.Listen, g.TLS, path))
	if g.Endpoints.Listen != "" {
		faults = append(faults, checkListen(g.Endpoints.Listen, g.TLS, path))
	}
	return errors.Join(faults...)
}

// checkListen returns an error for an address beyond loopback without TLS.
func checkListen(address string, tls config.TLS, path string) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return fmt.Errorf("listen on %q: want host:port, such as 127.0.0.1:8470", address)
	case !config.IsLoopback(host) && tls.CertificateFile == "":
		return fmt.Errorf("listening on %s without TLS would send tokens in the clear: set gateway.tls in %s, "+
			"or listen on 127.0.0.1 behind a proxy that has TLS", address, path)
	}
	return nil
}

// authenticators returns those that are configured.
func authenticators(g config.Gateway, log *zap.Logger) (auth.Union, error) {
	var all auth.Union
	if g.TokensFile != "" {
		tokens, err := auth.OpenTokenFile(g.TokensFile, log)
		if err != nil {
			return nil, err
		}
		all = append(all, tokens)
	}
	if g.OIDC.Issuer != "" {
		o := auth.OIDCOptions{Issuer: g.OIDC.Issuer, Audience: g.OIDC.Audience, UsernameClaim: g.OIDC.UsernameClaim}
		for _, b := range g.OIDC.Bindings {
			o.Bindings = append(o.Bindings, auth.Binding{
				Claim: b.Claim, Value: b.Value, Grant: auth.Grant{Role: auth.Role(b.Role), Clusters: b.Clusters},
			})
		}
		all = append(all, auth.NewOIDC(o))
	}
	return all, nil
}
