package embedded

import (
	"context"
	"fmt"
	"net/http"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"

	"ebb/internal/wait"
)

// startUI starts the Web UI and returns when it answers.
func (s *Server) startUI(ctx context.Context) error {
	s.ui = uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		TemporalGRPCAddress: s.Address(),
		Host:                s.options.Host,
		Port:                s.options.UIPort,
		EnableUI:            true,
		DefaultNamespace:    s.options.Namespace,
		DisableNewsFetch:    true,
		HideLogs:            true,
		// It is plain HTTP on loopback; a browser would drop secure cookies.
		CORS: uiconfig.CORS{CookieInsecure: true},
	}))
	go func() {
		_ = s.ui.Start() // it ends when it is stopped; that it serves is checked below
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := wait.Poll(ctx, probeInterval, func() (bool, error) { return isHealthy(ctx, s.UI()+"/healthz"), nil })
	if err != nil {
		return fmt.Errorf("the Web UI at %s does not answer: %w", s.UI(), err)
	}
	return nil
}

func isHealthy(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close() // nothing was read
	return response.StatusCode == http.StatusOK
}
