package freeport

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortsAreFreeAndDifferent(t *testing.T) {
	const n = 50
	ports, err := Find(t.Context(), "127.0.0.1", n)
	require.NoError(t, err)
	seen := map[int]bool{}
	for _, port := range ports {
		require.True(t, first <= port && port < last, "%d", port)
		seen[port] = true
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	require.Len(t, seen, n)
}

func TestAHostThatIsNotHere(t *testing.T) {
	_, err := One(t.Context(), "192.0.2.1") // a documentation address, RFC 5737
	require.ErrorContains(t, err, "192.0.2.1")
}
