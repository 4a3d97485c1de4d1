package drain

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"ebb/internal/operation"

	"go.uber.org/zap"
)

const (
	reportAtLeast = time.Second
	reportAtMost  = 200 * time.Millisecond // between two reports
	outputTail    = 2000                   // characters of the output that are kept
)

// reported is the last report.
type reported struct {
	at       time.Time
	checked  time.Time // when a report was last found to be due or not
	progress operation.DrainProgress
}

// report reports what has changed, and returns when a report is due next.
func (r *run) report(s snapshot, now time.Time) (next time.Time) {
	if now.Sub(r.reported.checked) < reportAtMost {
		return r.reported.checked.Add(reportAtMost)
	}
	r.reported.checked = now
	p := s.progress(now)
	p.Output = r.out.tail()
	if now.Sub(r.reported.at) >= reportAtLeast || !reflect.DeepEqual(p, r.reported.progress) {
		r.deliver(p, now)
	}
	return r.reported.at.Add(reportAtLeast)
}

// reportNow reports, whatever was reported last.
func (r *run) reportNow() {
	now := time.Now()
	p := r.snapshot(now).progress(now)
	p.Output = r.out.tail()
	r.deliver(p, now)
}

func (r *run) deliver(p operation.DrainProgress, now time.Time) {
	r.reported = reported{at: now, checked: now, progress: p}
	if r.req.Report != nil {
		r.req.Report(p)
	}
}

// say writes to the output why pods are held and which volumes are waited for, once for
// each reason, and how the attempt ends.
func (r *run) say(s snapshot, d decision, now time.Time) {
	for _, h := range d.held {
		p, about := r.pods[h.pod], h.message
		if about == "" {
			about = budgetNames(h.budgets)
		}
		if p.said == about {
			continue
		}
		p.said = about
		if h.message != "" {
			r.out.printf("pod %s: %s", podName(p.Pod), h.message)
		} else {
			r.out.printf("pod %s", blockedBy(p.Pod, h.budgets, s.neighbours[p.Namespace], now.Add(s.ahead)))
		}
	}
	if volumes := strings.Join(s.volumes, ", "); !s.emptied.IsZero() && r.saidVolumes != volumes && s.waitsForVolumes() {
		r.saidVolumes = volumes
		r.out.printf("waiting for volumes to be detached: %s", volumes)
	}
	if d.verdict.nodeGone {
		r.out.printf("node %s is gone", s.name)
	}
	if d.verdict.warning != "" {
		r.out.printf("%s", d.verdict.warning)
	}
}

// output is what the drain says, line by line, like kubectl's. Its end goes into reports
// and errors, all of it to the log.
type output struct {
	text string
	log  *zap.Logger
}

func newOutput(req Request) output {
	log := req.Log
	if log == nil {
		log = zap.NewNop()
	}
	return output{log: log.With(zap.String("operation", req.Operation), zap.String("node", req.Node))}
}

func (o *output) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	o.log.Info(line)
	o.text = lastCharacters(o.text+line+"\n", outputTail)
}

// tail returns the end of the output.
func (o *output) tail() string { return strings.TrimSuffix(o.text, "\n") }

// lastCharacters returns the last n characters of s.
func lastCharacters(s string, n int) string {
	if len(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[max(0, len(runes)-n):])
}
