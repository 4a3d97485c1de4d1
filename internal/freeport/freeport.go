// Package freeport chooses ports for servers that are started a moment later, or that
// come back after a restart.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that systems use for outgoing connections (32768
// and up on Linux), so that the kernel gives none away while its server is not there yet.
const (
	first = 12000
	last  = 32000
)

// tries is how many ports are tried for each one that is wanted.
const tries = 100

// Find returns n different TCP ports that nobody listens on at the host now.
func Find(ctx context.Context, host string, n int) (ports []int, err error) {
	held := make([]net.Listener, 0, n) // until all are found, so that they differ
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for range tries * n {
		if len(ports) == n {
			break
		}
		port := first + rand.IntN(last-first) // #nosec G404 -- not a secret
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			held, ports = append(held, l), append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no %d free ports between %d and %d on %s", n, first, last, host)
	}
	return ports, nil
}

// One returns a TCP port that nobody listens on at the host now.
func One(ctx context.Context, host string) (int, error) {
	ports, err := Find(ctx, host, 1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}
