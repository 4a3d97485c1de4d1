package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// collectScript prints what tells how a machine fared, as far as it is there.
const collectScript = `
show() { echo; echo "===== $*"; "$@" 2>&1 || true; }
show df -k /
show systemctl --failed --no-pager
show ctr --namespace k8s.io containers list
for run in /var/lib/ebb/runs/*/; do
    [ -d "$run" ] || continue
    show cat "$run/output"
    show cat "$run/exit"
done
for log in /var/log/pods/kube-system_*/*/*.log; do
    [ -f "$log" ] && show tail -n 200 "$log"
done
show journalctl --no-pager --output=short-precise
`

// Collect writes the logs of every machine that is on, and the lab's own, into a folder.
func (l *Lab) Collect(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	var errs []error
	for _, name := range machineNames {
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		if !m.Running() {
			continue
		}
		text, err := m.Run(ctx, collectScript)
		errs = append(errs, err, write(filepath.Join(dir, name+".log"), text, 0o600))
	}
	found, err := filepath.Glob(l.Path("logs", "*"))
	consoles, more := filepath.Glob(l.Path("machines", "*", "console.log"))
	errs = append(errs, err, more)
	for _, path := range append(found, consoles...) {
		content, err := read(path)
		name := filepath.Base(path)
		if name == "console.log" {
			name = filepath.Base(filepath.Dir(path)) + "-console.log"
		}
		errs = append(errs, err, write(filepath.Join(dir, name), content+"\n", 0o600))
	}
	return errors.Join(errs...)
}
