package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that systems use for outgoing
// connections (32768 and up on Linux), so that one that is free for a moment,
// while a server restarts, is not handed out by the kernel.
const (
	firstPort = 20000
	lastPort  = 32000
)

// freePorts finds that many free loopback ports, all different.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	var held []net.Listener
	for range 100 * n {
		if len(ports) == n {
			break
		}
		port := firstPort + rand.IntN(lastPort-firstPort) // #nosec G404 -- not a secret
		if l, err := listen(ctx, port); err == nil {
			held, ports = append(held, l), append(ports, port)
		}
	}
	var err error
	for _, l := range held {
		err = errors.Join(err, l.Close())
	}
	if err == nil && len(ports) < n {
		err = fmt.Errorf("no free loopback ports between %d and %d", firstPort, lastPort)
	}
	return ports, err
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
}
