package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"go.temporal.io/server/common/primitives"
)

// servicePorts are the ports that the server's services listen on.
type servicePorts map[primitives.ServiceName]int

// choosePorts checks that the configured ports are free and chooses free ones for the
// rest; it sets those of o, too. It listens on all of them until the last is chosen, so
// that none is chosen twice, and then closes them for the server's own listeners.
func choosePorts(ctx context.Context, o *Options) (ports servicePorts, err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	reserve := func(host string, wanted int, flag string) (int, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(wanted)))
		if err != nil {
			return 0, portError(host, wanted, flag, err)
		}
		listeners = append(listeners, l)
		return l.Addr().(*net.TCPAddr).Port, nil
	}

	if o.Port, err = reserve(o.Host, o.Port, "--port"); err != nil {
		return nil, err
	}
	if o.UIPort != -1 {
		if o.UIPort, err = reserve(o.Host, o.UIPort, "--ui-port"); err != nil {
			return nil, err
		}
	}
	ports = servicePorts{primitives.FrontendService: o.Port}
	for _, service := range []primitives.ServiceName{primitives.HistoryService, primitives.MatchingService, primitives.WorkerService} {
		if ports[service], err = reserve("127.0.0.1", 0, ""); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

func portError(host string, wanted int, flag string, err error) error {
	if wanted == 0 {
		return fmt.Errorf("find a free port on %s: %w", host, err)
	}
	return fmt.Errorf("port %d on %s cannot be used (%w): is another `ebb dev` or Temporal running? Stop it, or choose another port with %s", wanted, host, err, flag)
}

// dialHost returns the host that a client on this machine dials for a listener on host:
// the loopback address for an unspecified one.
func dialHost(host string) string {
	ip := net.ParseIP(host)
	switch {
	case ip == nil || !ip.IsUnspecified():
		return host
	case ip.To4() != nil:
		return "127.0.0.1"
	default:
		return "::1"
	}
}
