package tunnel

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// network is a network namespace with nothing in it but its own loopback: what listens there
// is reached by what runs there, and by nothing else. Where none can be made, it is this host.
type network struct {
	path  string // of the namespace; "" = this host
	tasks chan func()
}

func newNetwork() *network {
	n := &network{tasks: make(chan func())}
	made := make(chan string)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		made <- isolate()
		for task := range n.tasks {
			task()
		}
	}()
	n.path = <-made
	return n
}

// isolate gives the thread a network of its own and returns its path, "" when it may not.
func isolate() string {
	if unix.Unshare(unix.CLONE_NEWNET) != nil {
		return ""
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return ""
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	own, err := unix.NewIfreq("lo:1") // its netmask is that of class A: all of 10.0.0.0/8 is local
	if err != nil || own.SetInet4Addr([]byte{10, 77, 0, 1}) != nil {
		return ""
	}
	if unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up) != nil || unix.IoctlIfreq(fd, unix.SIOCSIFADDR, own) != nil {
		return ""
	}
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
}

func (n *network) close() { close(n.tasks) }

// isolated reports whether there is no way into the network but through agents.
func (n *network) isolated() bool { return n.path != "" }

// address returns an address in the network; on this host, one of loopback.
func (n *network) address(last ...byte) string {
	prefix := "10.77"
	if !n.isolated() {
		prefix = "127.20"
	}
	for _, b := range last {
		prefix += fmt.Sprintf(".%d", b)
	}
	return prefix
}

// listen listens in the network.
func (n *network) listen(ctx context.Context, address string) (l net.Listener, err error) {
	done := make(chan struct{})
	n.tasks <- func() {
		defer close(done)
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	<-done
	return l, err
}

// command returns what runs a program in the network.
func (n *network) command(program string, args ...string) (string, []string) {
	if !n.isolated() {
		return program, args
	}
	return "nsenter", append([]string{"--net=" + n.path, "--", program}, args...)
}

// relay carries what it accepts to the first of its targets that takes it, beginning with
// another one each time.
type relay struct {
	listeners []net.Listener
	targets   atomic.Pointer[[]string]
	turn      atomic.Int64
	carrying  sync.WaitGroup
}

func newRelay(targets ...string) *relay {
	r := &relay{}
	r.targets.Store(&targets)
	return r
}

func (r *relay) serve(l net.Listener) {
	r.listeners = append(r.listeners, l)
	r.carrying.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.carrying.Go(func() { r.carry(c.(*net.TCPConn)) })
		}
	})
}

func (r *relay) carry(from *net.TCPConn) {
	defer func() { _ = from.Close() }()
	to := r.dial()
	if to == nil {
		return
	}
	defer func() { _ = to.Close() }()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{from, to}, {to, from}} {
		both.Go(func() {
			if _, err := io.Copy(way[1], way[0]); err != nil {
				_ = way[0].Close()
				_ = way[1].Close()
			}
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}

func (r *relay) dial() *net.TCPConn {
	targets, turn := *r.targets.Load(), int(r.turn.Add(1))
	for i := range targets {
		if c, err := net.Dial("tcp", targets[(turn+i)%len(targets)]); err == nil { //nolint:noctx // on this host it answers at once
			return c.(*net.TCPConn)
		}
	}
	return nil
}

func (r *relay) close() {
	for _, l := range r.listeners {
		_ = l.Close()
	}
}
