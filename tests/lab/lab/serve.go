package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// What the switch offers to machines and operators.
const (
	packagesAddress   = Gateway + ":8000"
	registryAddress   = Gateway + ":5000"
	apiServersAddress = Gateway + ":6443" // the API servers, the first that takes a connection
	sshPort           = 2200              // machine number n is forwarded at this + n
)

// ForwardedPort returns the port of Gateway behind which a machine's SSH is found.
func (m *Machine) ForwardedPort() int { return sshPort + m.number }

// Serve serves packages and images, forwards SSH and balances the API servers.
// It runs inside the switch and ends with ctx.
func (l *Lab) Serve(ctx context.Context) error {
	content, err := read(l.imagesDir() + "/refs.json")
	if err != nil {
		return err
	}
	refs := map[string]string{}
	if err := json.Unmarshal([]byte(content), &refs); err != nil {
		return err
	}
	registry := http.NewServeMux()
	registry.HandleFunc("GET /v2/{path...}", func(w http.ResponseWriter, r *http.Request) { l.serveImage(w, r, refs) })

	failed := make(chan error, maxMachines+4)
	for address, handler := range map[string]http.Handler{
		packagesAddress: http.FileServer(http.Dir(l.packagesDir())),
		registryAddress: registry,
	} {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: logRequests(handler), ReadHeaderTimeout: 10 * time.Second}
		go func() { failed <- server.Serve(listener) }()
	}
	forwards := map[string][]string{apiServersAddress: {machineAddress(1) + ":6443", machineAddress(2) + ":6443"}}
	for number := 1; number <= maxMachines; number++ {
		forwards[fmt.Sprintf("%s:%d", Gateway, sshPort+number)] = []string{machineAddress(number) + ":22"}
	}
	for address, targets := range forwards {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		go func() { failed <- forward(ctx, listener, targets) }()
	}
	if err := write(l.Path("served"), "", 0o600); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func logRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s %s", r.RemoteAddr, r.Method, r.URL.Path) // #nosec G706 -- a log of the lab's own machines
		next.ServeHTTP(w, r)
	})
}

// serveImage is the part of a registry that a pull needs. containerd asks for
// registry.k8s.io/NAME as /v2/NAME?ns=registry.k8s.io.
func (l *Lab) serveImage(w http.ResponseWriter, r *http.Request, refs map[string]string) {
	name, kind, what := parseRegistryPath(r.PathValue("path"))
	if name == "" { // the ping
		return
	}
	if kind == "manifests" && !strings.HasPrefix(what, "sha256:") {
		what = refs[r.URL.Query().Get("ns")+"/"+name+":"+what]
	}
	if !strings.HasPrefix(what, "sha256:") || strings.Contains(what, "/") {
		http.NotFound(w, r)
		return
	}
	media := "application/octet-stream"
	if kind == "manifests" {
		media = mediaManifest
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Docker-Content-Digest", what)
	http.ServeFile(w, r, l.blob(what))
}

// parseRegistryPath takes "NAME/manifests/TAG" and "NAME/blobs/DIGEST" apart.
func parseRegistryPath(path string) (name, kind, what string) {
	parts := strings.Split(path, "/")
	if n := len(parts); n >= 3 {
		return strings.Join(parts[:n-2], "/"), parts[n-2], parts[n-1]
	}
	return "", "", ""
}

// forward connects each connection with the first target that takes it.
func forward(ctx context.Context, listener net.Listener, targets []string) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = client.Close() }() // as far as it is open
			for _, target := range targets {
				dialer := net.Dialer{Timeout: 2 * time.Second}
				server, err := dialer.DialContext(ctx, "tcp", target)
				if err == nil {
					proxyConns(client, server)
					return
				}
			}
		}()
	}
}

// proxyConns copies both ways until both are done.
func proxyConns(a, b net.Conn) {
	defer func() { _ = b.Close() }() // as far as it is open
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, err := io.Copy(way[0], way[1])
			if err != nil && !errors.Is(err, net.ErrClosed) {
				_ = way[1].Close() // ends the other way, too
			}
			if tcp, ok := way[0].(*net.TCPConn); ok {
				_ = tcp.CloseWrite() // it may be closed
			}
		})
	}
	both.Wait()
}

// startServing starts the process that serves, inside the switch.
func (l *Lab) startServing(ctx context.Context) error {
	if err := l.daemon("serve", "nsenter", "--net="+SwitchNamespace, l.Program("ebblab"), "serve", l.repository); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return pollUntil(waiting, "packages and images are not served, see "+l.Path("logs", "serve.log"), func() error {
		_, err := os.Stat(l.Path("served"))
		return err
	})
}
