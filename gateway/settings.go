package main

import (
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"

	"ebb/internal/api"
	"ebb/internal/config"
)

// checkSettings refuses what would let in anybody, or let anybody listen in. The
// error has everything and says what to do.
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

func checkListen(address string, tls config.TLS, path string) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return fmt.Errorf("listen on %q: want host:port, such as 127.0.0.1:8470", address)
	case !config.Loopback(host) && tls.CertificateFile == "":
		return fmt.Errorf("listening on %s without TLS would send tokens in the clear: set gateway.tls in %s, "+
			"or listen on 127.0.0.1 behind a proxy that has TLS", address, path)
	}
	return nil
}

// authenticators are those that are configured.
func authenticators(g config.Gateway, log *zap.Logger) (api.Authenticators, error) {
	var all api.Authenticators
	if g.TokensFile != "" {
		tokens, err := api.OpenTokens(g.TokensFile, log)
		if err != nil {
			return nil, err
		}
		all = append(all, tokens)
	}
	if g.OIDC.Issuer != "" {
		o := api.OIDCOptions{Issuer: g.OIDC.Issuer, Audience: g.OIDC.Audience, UsernameClaim: g.OIDC.UsernameClaim}
		for _, b := range g.OIDC.Bindings {
			o.Bindings = append(o.Bindings, api.Binding{
				Claim: b.Claim, Value: b.Value, Grant: api.Grant{Role: api.Role(b.Role), Clusters: b.Clusters},
			})
		}
		all = append(all, api.NewOIDC(o))
	}
	return all, nil
}
