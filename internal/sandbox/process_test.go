package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// parentEnv makes the test program a parent with one child, in the directory it names.
const parentEnv = "EBB_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		parent(dir)
		return
	}
	os.Exit(m.Run())
}

func parent(dir string) {
	p, err := (&launcher{dir: dir, log: zap.NewNop()}).start("/bin/sleep", "300")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.cmd.Process.Pid)
	<-p.ended
}

// alive reports whether a process runs; one that has ended and was not waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "logs"), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append(os.Environ(), parentEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.True(t, alive(pid))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Second, 20*time.Millisecond)
}

func TestStartNamesWhatIsMissing(t *testing.T) {
	bin := t.TempDir()
	_, err := Start(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "s"), BinDir: bin})
	require.ErrorContains(t, err, "etcd, kube-apiserver")
	require.ErrorContains(t, err, "make tools")

	used := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(used, "kubeconfig"), nil, 0o600))
	_, err = Start(t.Context(), Options{Dir: used})
	require.ErrorContains(t, err, "is not empty")
}

// Programs that somebody has already come first; what their folder lacks is taken from ours.
func TestProgramsThatAreThereAlready(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	for _, name := range programNames {
		require.NoError(t, os.WriteFile(filepath.Join(ours, name), nil, 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "etcd"), nil, 0o700))
	t.Setenv("EBB_BIN", ours)
	t.Setenv("EBB_SANDBOX_BIN", theirs)
	programs, err := findPrograms("", programNames)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(theirs, "etcd"), programs["etcd"])
	require.Equal(t, filepath.Join(ours, "sandbox-node"), programs["sandbox-node"])
}

// A program that ends during the start fails it with the end of its log, and the others are ended.
func TestStartShowsTheLog(t *testing.T) {
	programs, err := findPrograms("", programNames)
	require.NoError(t, err)
	bin := t.TempDir()
	for name, path := range programs {
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	require.NoError(t, os.Remove(filepath.Join(bin, "kube-apiserver")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "kube-apiserver"), []byte("#!/bin/sh\necho the flag is unknown >&2\nexit 3\n"), 0o700))
	dir := filepath.Join(t.TempDir(), "s")
	_, err = Start(t.Context(), Options{Dir: dir, BinDir: bin})
	require.ErrorContains(t, err, "kube-apiserver has ended (exit status 3)")
	require.ErrorContains(t, err, "the flag is unknown")
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range commands {
		command, err := os.ReadFile(file)
		require.False(t, err == nil && strings.Contains(string(command), dir), "left behind: %s", command)
	}
}
