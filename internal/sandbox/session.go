package sandbox

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/crypto/ssh"

	"ebb/internal/sandbox/nodedir"
)

// signals are those that RFC 4254 names and a client may send.
var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM,
}

// session is one SSH session: it runs one command in the node's directory. As
// with sshd without a terminal, a command whose client goes away loses its pipes
// and is not killed.
type session struct {
	dir     nodedir.Dir
	log     *zap.Logger
	channel ssh.Channel
	ended   func() // called when the command has ended, before the client is told
	cmd     *exec.Cmd
}

func (s *session) serve(requests <-chan *ssh.Request) {
	for req := range requests {
		ok := false
		switch req.Type {
		case "exec", "shell":
			var body struct{ Command string }
			ok = s.cmd == nil && (req.Type == "shell" || ssh.Unmarshal(req.Payload, &body) == nil) && s.start(body.Command) == nil
		case "signal":
			var body struct{ Name string }
			if s.cmd != nil && ssh.Unmarshal(req.Payload, &body) == nil && signals[body.Name] != 0 {
				ok = s.cmd.Process.Signal(signals[body.Name]) == nil
			}
		}
		if req.WantReply {
			if err := req.Reply(ok, nil); err != nil {
				return
			}
		}
		if ok && req.Type != "signal" {
			go s.finish(s.cmd) // not before the reply: a fast command would overtake it
		}
	}
}

// start runs the command; without one, a shell that reads its commands from the client.
func (s *session) start(command string) error {
	args := []string{"sh"}
	if command != "" {
		args = append(args, "-c", command)
	}
	// #nosec G204 -- an SSH server runs what its user asks for
	//nolint:noctx // it outlives its connection
	cmd := exec.Command("sh", args[1:]...)
	cmd.Dir = string(s.dir)
	cmd.Env = []string{
		"PATH=" + s.dir.Bin() + ":" + os.Getenv("PATH"), "HOME=" + string(s.dir), "USER=" + sshUser, "LOGNAME=" + sshUser, "SHELL=/bin/sh",
		"EBB_KUBERNETES_DIR=" + s.dir.Kubernetes(), "EBB_OPT_DIR=" + s.dir.Opt(),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as sshd does
	cmd.Stdout, cmd.Stderr = s.channel, s.channel.Stderr()
	// A pipe of our own: with cmd.Stdin the end of the command would wait for the client's.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		s.log.Warn("sandbox: start a command", zap.Error(err))
		return err
	}
	s.cmd = cmd
	go func() {
		_, copyErr := io.Copy(stdin, s.channel)
		if err := errors.Join(copyErr, stdin.Close()); err != nil {
			s.log.Debug("sandbox: input of a command", zap.Error(err))
		}
	}()
	return nil
}

// finish reports how the command ended. Errors mean that the client has gone.
func (s *session) finish(cmd *exec.Cmd) {
	defer func() { _ = s.channel.Close() }()
	if err := cmd.Wait(); cmd.ProcessState == nil {
		s.log.Warn("sandbox: wait for a command", zap.Error(err))
		return
	}
	s.ended()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		for name, signal := range signals {
			if signal == status.Signal() {
				body := struct {
					Name    string
					Core    bool
					Message string
					Lang    string
				}{Name: name}
				_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(body))
				return
			}
		}
	}
	code := uint32(max(0, cmd.ProcessState.ExitCode())) // #nosec G115 -- an exit code is 0 to 255
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
}
