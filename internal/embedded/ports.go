package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"go.temporal.io/server/common/primitives"

	"ebb/internal/freeport"
)

// servicePorts are the ports that the server's services listen on.
type servicePorts map[primitives.ServiceName]int

// choosePorts checks that the configured ports are free and chooses free ones for the
// rest; it sets those of o, too.
func choosePorts(ctx context.Context, o *Options) (ports servicePorts, err error) {
	var held []net.Listener // until the others are chosen, so that they differ
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for flag, port := range map[string]int{"--port": o.Port, "--ui-port": o.UIPort} {
		if port <= 0 {
			continue
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(o.Host, strconv.Itoa(port)))
		if err != nil {
			return nil, portError(o.Host, port, flag, err)
		}
		held = append(held, l)
	}
	free, err := freeport.Find(ctx, "", 5)
	if err != nil {
		return nil, err
	}
	if o.Port == 0 {
		o.Port = free[0]
	}
	if o.UIPort == 0 {
		o.UIPort = free[1]
	}
	return servicePorts{
		primitives.FrontendService: o.Port, primitives.HistoryService: free[2], primitives.MatchingService: free[3], primitives.WorkerService: free[4],
	}, nil
}

func portError(host string, wanted int, flag string, err error) error {
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
