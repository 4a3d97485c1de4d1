package drain

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
)

const (
	reportAtLeast = time.Second
	reportAtMost  = 200 * time.Millisecond // between two reports
	outputTail    = 2000                   // characters of the output that are kept
)

// reported is the last report.
type reported struct {
	at       time.Time
	looked   time.Time // when a report was last found to be needed or not
	progress Progress
}

// report publishes what has changed, and returns when it is due next.
func (r *run) report(now time.Time) (next time.Time) {
	if now.Sub(r.reported.looked) < reportAtMost {
		return r.reported.looked.Add(reportAtMost)
	}
	r.reported.looked = now
	p := r.progress()
	if now.Sub(r.reported.at) >= reportAtLeast || !reflect.DeepEqual(p, r.reported.progress) {
		r.deliver(now, p)
	}
	return r.reported.at.Add(reportAtLeast)
}

// publish reports at once, whatever was reported last.
func (r *run) publish() { r.deliver(time.Now(), r.progress()) }

func (r *run) deliver(now time.Time, p Progress) {
	r.reported = reported{at: now, looked: now, progress: p}
	if r.req.Report != nil {
		r.req.Report(p)
	}
}

func (r *run) progress() Progress {
	p := Progress{Node: r.req.Node, Output: r.out.tail(), Blocked: r.blocked(false)}
	for _, pod := range r.pods {
		p.Total++
		if pod.evicted {
			p.Evicted++
		}
		if pod.left() {
			p.Gone++
		} else {
			p.Waiting++
		}
	}
	return p
}

// left are all pods that have not left, each with the reason.
func (r *run) left() []BlockedPod { return r.blocked(true) }

// blocked are the pods that something keeps; with all, also those that only
// need more time.
func (r *run) blocked(all bool) (list []BlockedPod) {
	now, node, tier := time.Now(), r.node(), r.tier()
	api := r.api.keeps(now)
	for _, p := range r.sorted() {
		if p.left() {
			continue
		}
		b := BlockedPod{Pod: podName(p.Pod)}
		switch {
		case p.fate == refused:
			b = refusal(p.Pod, r.settings)
		case p.DeletionTimestamp != nil && overdue(p.Pod, now) > stuckAfter:
			b = stuck(p.Pod, node, now)
		case p.DeletionTimestamp != nil || p.evicted:
			b.Reason = waiting(p, now, all)
		case len(p.budgets) > 0 || p.trouble != "":
			b = r.refusedBy(p)
		case api != "" && tierOf(p.Pod) == tier:
			b.Reason = api
		case all:
			b.Reason = "not evicted yet"
			if tierOf(p.Pod) == critical {
				b.Reason = "not evicted yet: critical pods go after all others have ended"
			}
		}
		if b.Reason != "" {
			list = append(list, b)
		}
	}
	if !all {
		list = append(list, r.returning(func(*owner) bool { return true })...)
	}
	return list
}

// waiting describes a pod that is terminating in its time; "" when only those
// that something keeps are asked for.
func waiting(p *pod, now time.Time, all bool) string {
	switch {
	case !all:
		return ""
	case p.DeletionTimestamp == nil:
		return "evicted, not terminating yet"
	}
	return fmt.Sprintf("terminating, %s of its grace period left", max(0, -overdue(p.Pod, now)).Round(time.Second))
}

// peers are the pods that a budget selects.
func (r *run) peers(b *policy.PodDisruptionBudget) []*core.Pod {
	return r.watch.PodsMatching(b.Namespace, r.selectors.of(b))
}

// output is what the drain says, line by line, like kubectl's. Its end goes
// into reports and errors, all of it to the log.
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

func (o *output) tail() string { return strings.TrimSuffix(o.text, "\n") }

// lastCharacters is the end of s, at most n characters of it, none cut in two.
func lastCharacters(s string, n int) string {
	if len(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[max(0, len(runes)-n):])
}
