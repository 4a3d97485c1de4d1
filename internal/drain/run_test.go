package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb/internal/cluster"
	"ebb/internal/operation"
)

func TestWithoutBudgetsAllGoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("b"), newPod("c"), agentDaemonSet(),
			newPod("agent-1", func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")} }),
			newPod("mirror", func(p *core.Pod) { p.Annotations = map[string]string{core.MirrorPodAnnotationKey: "x"} }),
			newPod("elsewhere", func(p *core.Pod) { p.Spec.NodeName = "w2" }),
			newPod("done", func(p *core.Pod) { p.Status.Phase, p.OwnerReferences = core.PodSucceeded, nil }))
		result, reports, err := s.drain(t.Context())
		require.NoError(t, err)
		s.requireEvictedOnce("a", "b", "c", "done")
		require.Equal(t, deleteDelay, result.Took)
		require.Equal(t, 4, result.Evicted)
		require.Equal(t, 4, result.Gone)
		require.Equal(t, 1, s.lists(), "lists of the node's pods")
		last := reports[len(reports)-1]
		require.Equal(t, operation.DrainProgress{Node: node, Total: 4, Evicted: 4, Gone: 4, Output: result.Output}, last)
		require.Contains(t, result.Output, "evicting pod app/a\n")
		require.Contains(t, result.Output, "pod app/a evicted")
	})
}

func TestBudgetLetsOneGoAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("b"), newPod("c"), budget("web", maxUnavailable(1)))
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		s.requireEvictedOnce("a", "b", "c")
		require.Zero(t, s.refused, "an eviction is sent when the budget allows it, not before")
		require.Equal(t, 2*readyDelay+deleteDelay, result.Took, "the moment the replacement is ready, the next one goes")
	})
}

func TestTwoDrainsShareOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := cordonedNode()
		other.Name, other.UID = "w3", "uid-w3"
		onOther := func(p *core.Pod) { p.Spec.NodeName = "w3" }
		s := newSim(t, other, newPod("a"), newPod("b"), newPod("c", onOther), newPod("d", onOther), budget("web", maxUnavailable(1)))
		c := cluster.New("sim", s.client, nil, zap.NewNop())
		defer c.Close()
		second := make(chan error)
		go func() {
			_, _, err := s.drainOf(t.Context(), c, func(r *Request) { r.Node = "w3" })
			second <- err
		}()
		_, _, err := s.drainOf(t.Context(), c)
		require.NoError(t, err)
		require.NoError(t, <-second)
		s.requireEvictedOnce("a", "b", "c", "d")
		require.Zero(t, s.refused)
	})
}

func TestWhatCannotWorkIsSaidAtOnce(t *testing.T) {
	crashing := func(p *core.Pod) {
		p.Status.Conditions = nil
		p.Status.ContainerStatuses = []core.ContainerStatus{{State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	}
	alwaysAllow := policy.AlwaysAllow
	for name, c := range map[string]struct {
		pod     *core.Pod
		budgets []*policy.PodDisruptionBudget
		want    operation.BlockedPod
	}{
		"two budgets": {newPod("a"), []*policy.PodDisruptionBudget{budget("x", maxUnavailable(1)), budget("y", maxUnavailable(1))},
			operation.BlockedPod{Budget: "app/x, app/y", Reason: "2 budgets select it", Advice: "change their selectors"}},
		"two budgets, though both free unready pods": {newPod("a", crashing), []*policy.PodDisruptionBudget{
			budget("x", func(s *policy.PodDisruptionBudgetSpec) {
				maxUnavailable(1)(s)
				s.UnhealthyPodEvictionPolicy = &alwaysAllow
			}),
			budget("y", maxUnavailable(1))},
			operation.BlockedPod{Budget: "app/x, app/y", Reason: "2 budgets select it", Advice: "change their selectors"}},
		"maxUnavailable 0": {newPod("a"), []*policy.PodDisruptionBudget{budget("x", maxUnavailable(0))},
			operation.BlockedPod{Budget: "app/x", Reason: "it never allows an eviction (maxUnavailable: 0, 1 pods expected)", Advice: "raise maxUnavailable"}},
		"minAvailable = replicas": {newPod("a"), []*policy.PodDisruptionBudget{budget("x", minAvailable(1))},
			operation.BlockedPod{Budget: "app/x", Reason: "it never allows an eviction (minAvailable: 1, 1 pods expected)", Advice: "lower minAvailable"}},
		"only crash-looping pods": {newPod("a", crashing), []*policy.PodDisruptionBudget{budget("x", func(s *policy.PodDisruptionBudgetSpec) { v := maxUnavailable(1); v(s) })},
			operation.BlockedPod{Budget: "app/x", Reason: "a (CrashLoopBackOff)", Advice: "unhealthyPodEvictionPolicy: AlwaysAllow"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, c.pod)
				for _, b := range c.budgets {
					require.NoError(t, s.client.Tracker().Add(b))
				}
				s.recount()
				var named time.Duration
				start := time.Now()
				_, _, err := s.drain(t.Context(), func(r *Request) {
					report := r.Report
					r.Report = func(p operation.DrainProgress) {
						if len(p.Blocked) > 0 && named == 0 {
							named = time.Since(start)
						}
						report(p)
					}
				})
				require.ErrorIs(t, err, ErrTimeout)
				require.LessOrEqual(t, named, time.Second)
				var failure *Error
				require.ErrorAs(t, err, &failure)
				require.Len(t, failure.Blocked, 1)
				require.Equal(t, "app/a", failure.Blocked[0].Pod)
				require.Equal(t, c.want.Budget, failure.Blocked[0].Budget)
				require.Contains(t, failure.Blocked[0].Reason, c.want.Reason)
				require.Contains(t, failure.Blocked[0].Advice, c.want.Advice)
				require.Contains(t, err.Error(), "drain node w1")
				require.Contains(t, err.Error(), c.want.Budget)
				require.Equal(t, time.Minute, time.Since(start), "tried until the attempt ends")
				require.GreaterOrEqual(t, s.asked["app/a"], 5, "a watch may be behind: asked all the same now and then")
				require.LessOrEqual(t, s.asked["app/a"], 20)
				require.Equal(t, 1, strings.Count(err.Error(), "evicting pod app/a"), "said once, however often it is asked")
			})
		})
	}
}

func TestUnreadyPodGoesWhenItsBudgetFreesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alwaysAllow := policy.AlwaysAllow
		s := newSim(t, newPod("a", func(p *core.Pod) { p.Status.Conditions = nil }),
			budget("x", func(s *policy.PodDisruptionBudgetSpec) {
				maxUnavailable(0)(s)
				s.UnhealthyPodEvictionPolicy = &alwaysAllow
			}))
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, deleteDelay, result.Took)
	})
}

func TestRepairedBudgetIsNoticedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), budget("x", maxUnavailable(1)), budget("y", maxUnavailable(1)))
		go func() {
			time.Sleep(20 * time.Second)
			s.locked(func() { require.NoError(t, s.client.Tracker().Delete(budgetsResource, "app", "y")) })
		}()
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 20*time.Second+deleteDelay, result.Took)
	})
}

func TestRefusedBySettingsBeforeAnythingIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("bare", func(p *core.Pod) { p.OwnerReferences = nil }),
			newPod("scratch", func(p *core.Pod) {
				p.Spec.Volumes = []core.Volume{{Name: "tmp", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
			}),
			newPod("orphan", func(p *core.Pod) { p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "lost")} }))
		strict := func(r *Request) { r.Settings.DeleteEmptyDir = false }
		_, _, err := s.drain(t.Context(), strict)
		require.ErrorIs(t, err, ErrForbidden)
		var failure *Error
		require.ErrorAs(t, err, &failure)
		require.Len(t, failure.Blocked, 3)
		require.Contains(t, failure.Blocked[0].String(), "app/bare: it has no controller")
		require.Contains(t, failure.Blocked[1].String(), "app/orphan: its DaemonSet lost does not exist")
		require.Contains(t, failure.Blocked[2].String(), "app/scratch: the data in its emptyDir volumes (tmp)")
		require.Empty(t, s.order)

		s.rebirth = nil
		_, _, err = s.drain(t.Context(), func(r *Request) { r.Settings.Force = true })
		require.NoError(t, err)
		s.requireEvictedOnce("a", "bare", "orphan", "scratch")
	})
}

func TestNodeChangesDuringTheDrain(t *testing.T) {
	blockedForEver := func(t *testing.T) *sim { return newSim(t, newPod("a"), budget("x", maxUnavailable(0))) }
	t.Run("uncordoned by an operator", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := blockedForEver(t)
			go func() { time.Sleep(5 * time.Second); s.changeNode(func(n *core.Node) { n.Spec.Unschedulable = false }) }()
			start := time.Now()
			_, _, err := s.drain(t.Context())
			require.ErrorIs(t, err, ErrUncordoned)
			require.ErrorContains(t, err, "somebody uncordoned the node")
			require.Equal(t, 5*time.Second, time.Since(start))
		})
	})
	t.Run("not cordoned at all", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"))
			s.changeNode(func(n *core.Node) { n.Spec.Unschedulable = false })
			_, _, err := s.drain(t.Context())
			require.ErrorIs(t, err, ErrUncordoned)
			require.Empty(t, s.order)
		})
	})
	t.Run("deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := blockedForEver(t)
			go func() { time.Sleep(5 * time.Second); _ = s.client.Tracker().Delete(nodesResource, "", node) }()
			result, _, err := s.drain(t.Context())
			require.NoError(t, err)
			require.True(t, result.NodeGone)
			require.Equal(t, 5*time.Second, result.Took)
		})
	})
}

func TestStuckTerminating(t *testing.T) {
	finalizer := func(p *core.Pod) { p.Finalizers = []string{"example.com/hold"} }
	notReady := func(n *core.Node) {
		n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionUnknown, Reason: "NodeStatusUnknown"}}
	}
	t.Run("named with its finalizer and the node's condition", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a", finalizer))
			_, reports, err := s.drain(t.Context())
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "app/a: still terminating 30s after its grace period; finalizers: example.com/hold; node Ready: True")
			require.Len(t, reports[len(reports)-1].Blocked, 1)
			require.Equal(t, 1, s.asked["app/a"])
		})
	})
	t.Run("not waited for on a node that is down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a", finalizer))
			s.changeNode(notReady)
			result, _, err := s.drain(t.Context(), func(r *Request) { r.Settings.SkipWaitForDelete = 5 * time.Second })
			require.NoError(t, err)
			require.Equal(t, []string{"app/a"}, result.Skipped)
			require.InDelta(t, 35, result.Took.Seconds(), 1)
		})
	})
	t.Run("waited for on a node that is up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a", finalizer))
			_, _, err := s.drain(t.Context(), func(r *Request) { r.Settings.SkipWaitForDelete = 5 * time.Second })
			require.ErrorIs(t, err, ErrTimeout)
		})
	})
	t.Run("waited for by default", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a", finalizer))
			s.changeNode(notReady)
			_, _, err := s.drain(t.Context())
			require.ErrorIs(t, err, ErrTimeout)
		})
	})
}

func failReturning(r *Request) { r.Settings.FailReturning = true }

// A drain is for the pods that were there; what comes back for good is left.
func TestPodsThatComeBackAreLeft(t *testing.T) {
	clingy := func(p *core.Pod) { p.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}} }
	t.Run("because they tolerate the cordon", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a", clingy), newPod("b", clingy), budget("web", maxUnavailable(1)))
			s.rebirth = func(old *core.Pod) *core.Pod { p := here(old); clingy(p); return p }
			result, reports, err := s.drain(t.Context())
			require.NoError(t, err)
			s.requireEvictedOnce("a", "b")
			warning := "pods of app/ReplicaSet/web come back to the cordoned node, which they tolerate, and are left there (drain.returning: leave)"
			require.Equal(t, []string{warning}, result.Warnings)
			require.Equal(t, 1, strings.Count(result.Output, warning))
			require.Equal(t, operation.DrainProgress{Node: node, Total: 2, Evicted: 2, Gone: 2, Output: result.Output}, reports[len(reports)-1])
		})
	})
	t.Run("because they are bound to the node by name", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"))
			s.rebirth = here
			start := time.Now()
			result, _, err := s.drain(t.Context(), func(r *Request) { r.Deadline = start.Add(10 * time.Minute) })
			require.NoError(t, err)
			require.GreaterOrEqual(t, result.Took, schedulerLag, "a scheduler may be behind")
			require.Less(t, result.Took, 2*schedulerLag)
			require.Len(t, result.Warnings, 1)
			require.Contains(t, result.Warnings[0], "though they do not tolerate it")
		})
	})
}

func TestPodsThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clingy := func(p *core.Pod) { p.Spec.Tolerations = []core.Toleration{{Operator: core.TolerationOpExists}} }
		s := newSim(t, newPod("a", clingy), newPod("b", clingy))
		s.rebirth = func(old *core.Pod) *core.Pod { p := here(old); clingy(p); return p }
		_, reports, err := s.drain(t.Context(), failReturning)
		require.ErrorIs(t, err, ErrRecreated)
		require.ErrorContains(t, err, "pods of ReplicaSet/web come back to the cordoned node (3 times so far)")
		require.GreaterOrEqual(t, len(s.order), 6, "two pods, and at least twice what came back for them")
		require.Less(t, len(s.order), 8)
		require.Contains(t, reports[len(reports)-1].Output, "pods of app/ReplicaSet/web have come back")
	})
}

// A scheduler whose watch was cut does not know of the cordon for a while.
func TestSchedulerThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("b"))
		hears := time.Now().Add(8 * time.Second)
		s.rebirth = func(old *core.Pod) *core.Pod {
			if time.Now().Before(hears) {
				return here(old)
			}
			return elsewhere(old)
		}
		result, reports, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Less(t, result.Took, 20*time.Second)
		require.Less(t, len(s.order), 12, "what comes back is evicted after a pause, not at once")
		require.Contains(t, reports[len(reports)-1].Output, "have come back")
	})
}

// Pods that were made for the node by name tolerate nothing and come back for good.
func TestPodsThatComeBackForLongerThanASchedulerIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"))
		s.rebirth = here
		start := time.Now()
		_, reports, err := s.drain(t.Context(), failReturning, func(r *Request) { r.Deadline = start.Add(10 * time.Minute) })
		require.ErrorIs(t, err, ErrRecreated)
		require.GreaterOrEqual(t, time.Since(start), schedulerLag)
		require.Less(t, time.Since(start), 2*schedulerLag)
		require.Contains(t, fmt.Sprint(reports[len(reports)-1].Blocked), "come back to the cordoned node", "said while it is waited for")
	})
}

func TestAPIServerDown(t *testing.T) {
	refused := &url.Error{Op: "Post", URL: "https://api", Err: errors.New("connection refused")}
	t.Run("refused connections are tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"), newPod("b"), newPod("c"))
			start := time.Now()
			s.failWith = func(*core.Pod) (error, error) {
				if time.Since(start) < 200*time.Millisecond {
					return refused, nil
				}
				return nil, nil
			}
			result, _, err := s.drain(t.Context())
			require.NoError(t, err)
			s.requireEvictedOnce("a", "b", "c")
			require.Contains(t, result.Output, "no answer from the API server")
			require.Less(t, result.Took, 3*time.Second)
		})
	})
	t.Run("an eviction that was done but not answered is not sent again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"), newPod("b"))
			s.failWith = func(*core.Pod) (error, error) { return nil, &url.Error{Op: "Post", URL: "https://api", Err: io.EOF} }
			_, _, err := s.drain(t.Context())
			require.NoError(t, err)
			s.requireEvictedOnce("a", "b")
			require.Equal(t, map[string]int{"app/a": 1, "app/b": 1}, s.asked)
		})
	})
	t.Run("Retry-After of priority and fairness is kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"))
			first := true
			s.failWith = func(*core.Pod) (error, error) {
				if first {
					first = false
					return apierrors.NewTooManyRequests("too many requests", 7), nil
				}
				return nil, nil
			}
			result, _, err := s.drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 7*time.Second+deleteDelay, result.Took)
		})
	})
	t.Run("an error of the server is tried again and named", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, newPod("a"), newPod("b"))
			s.failWith = func(p *core.Pod) (error, error) {
				if p.Name == "a" {
					return apierrors.NewInternalError(errors.New("failed calling webhook guard")), nil
				}
				return nil, nil
			}
			_, _, err := s.drain(t.Context())
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "app/a: Internal error occurred: failed calling webhook guard")
			s.requireEvictedOnce("b")
			require.Greater(t, s.asked["app/a"], 5)
		})
	})
}

// A webhook's 429 is the trouble of its own pod: the API server has time for the others.
func TestWebhookRefusesItsOwnPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a-vm"), newPod("b"), newPod("c"), newPod("d"))
		migrated := time.Now().Add(20 * time.Second)
		s.failWith = func(p *core.Pod) (error, error) {
			if p.Name == "a-vm" && time.Now().Before(migrated) {
				return deniedBy("evacuation.kubevirt.io", http.StatusTooManyRequests, 0), nil
			}
			return nil, nil
		}
		result, reports, err := s.drain(t.Context(), func(r *Request) { r.Settings.Parallel = 1 })
		require.NoError(t, err)
		require.Equal(t, []string{"b", "c", "d", "a-vm"}, s.order)
		require.NotContains(t, result.Output, "too much to do")
		for _, p := range reports {
			if p.Evicted > 0 && p.Evicted < 4 {
				require.Equal(t, []operation.BlockedPod{{Pod: "app/a-vm",
					Reason: `admission webhook "evacuation.kubevirt.io" denied the request: it moves`}}, p.Blocked)
			}
		}
	})
}

// An operator that takes the refused request as the signal gets one for each of its pods.
func TestBudgetThatNeverAllowsIsAskedOnceForEachPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("b"), newPod("c"), budget("x", maxUnavailable(0)))
		start := time.Now()
		moved := map[string]bool{}
		s.failWith = func(p *core.Pod) (error, error) {
			if !moved[p.Name] {
				moved[p.Name] = true
				require.Less(t, time.Since(start), time.Second, p.Name)
				s.running.Go(func() { time.Sleep(time.Second); s.locked(func() { s.terminate(p) }) })
			}
			return nil, nil
		}
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Second+deleteDelay, result.Took)
		require.Equal(t, map[string]int{"app/a": 1, "app/b": 1, "app/c": 1}, s.asked)
	})
}

func TestReplacedPodIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("db-0"), budget("x", maxUnavailable(0)))
		go func() { // somebody deletes it, and it comes back elsewhere under its name
			time.Sleep(10 * time.Second)
			s.locked(func() {
				require.NoError(t, s.client.Tracker().Delete(podsResource, "app", "db-0"))
				require.NoError(t, s.client.Tracker().Add(newPod("db-0", func(p *core.Pod) { p.UID, p.Spec.NodeName = "second", "w2" })))
			})
		}()
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, result.Took)
		require.Empty(t, s.order)
	})
}

func TestCriticalPodsGoLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		priority := int32(criticalPriority)
		s := newSim(t, newPod("a-dns", func(p *core.Pod) { p.Spec.Priority = &priority }),
			newPod("b-dns", func(p *core.Pod) { p.Spec.PriorityClassName = "system-node-critical" }), newPod("c"), newPod("d"))
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"c", "d"}, s.order[:2])
		require.ElementsMatch(t, []string{"a-dns", "b-dns"}, s.order[2:])
		require.Equal(t, 2*deleteDelay, result.Took)
	})
}

// Two pods that go one at a time take longer than three that may all go at once.
func TestLongestWayGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide := func(p *core.Pod) { p.Labels = map[string]string{"app": "wide"} }
		wideBudget := budget("wide", maxUnavailable(3))
		wideBudget.Spec.Selector.MatchLabels = map[string]string{"app": "wide"}
		s := newSim(t, newPod("a1", wide), newPod("a2", wide), newPod("a3", wide), wideBudget,
			newPod("z1"), newPod("z2"), budget("narrow", maxUnavailable(1)))
		_, _, err := s.drain(t.Context(), func(r *Request) { r.Settings.Parallel = 1 })
		require.NoError(t, err)
		require.Contains(t, []string{"z1", "z2"}, s.order[0])
	})
}

func TestTerminatingPodsAreWaitedForNotEvictedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("bare", func(p *core.Pod) { p.OwnerReferences = nil }))
		s.rebirth = nil
		for _, p := range s.pods() {
			s.locked(func() { s.terminate(p) })
		}
		result, _, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Empty(t, s.asked)
		require.Equal(t, deleteDelay, result.Took)
	})
}

func TestNamespaceTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns := namespace("app")
		ns.Name, ns.Status.Phase = "ending", core.NamespaceTerminating
		s := newSim(t, ns, newPod("a", func(p *core.Pod) { p.Namespace = "ending" }))
		go func() {
			time.Sleep(15 * time.Second)
			s.locked(func() { s.terminate(s.pod("ending", "a")) })
		}()
		s.rebirth = nil
		result, reports, err := s.drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 15*time.Second+deleteDelay, result.Took)
		require.Empty(t, s.asked)
		require.Contains(t, reports[3].Blocked[0].Reason, "its namespace is being deleted")
	})
}

func TestVolumes(t *testing.T) {
	claim := &core.PersistentVolumeClaim{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: meta.ObjectMeta{Namespace: "app", Name: "logs"}, Spec: core.PersistentVolumeClaimSpec{VolumeName: "pv-logs"}}
	agent := newPod("agent-1", func(p *core.Pod) {
		p.OwnerReferences = []meta.OwnerReference{controller("DaemonSet", "agent")}
		p.Spec.Volumes = []core.Volume{{Name: "logs", VolumeSource: core.VolumeSource{PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: "logs"}}}}
	})
	setup := func(t *testing.T) *sim {
		return newSim(t, newPod("db-0"), agentDaemonSet(), agent.DeepCopy(), claim.DeepCopy(), attachment("va-1", "pv-db"), attachment("va-2", "pv-logs"))
	}
	t.Run("waits until they are detached", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := setup(t)
			go func() {
				time.Sleep(9 * time.Second)
				_ = s.client.Tracker().Delete(storage.SchemeGroupVersion.WithResource("volumeattachments"), "", "va-1")
			}()
			result, _, err := s.drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 9*time.Second, result.Took)
			require.Empty(t, result.Warnings)
		})
	})
	t.Run("a volume that stays is a warning", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			result, _, err := setup(t).drain(t.Context(), func(r *Request) { r.Settings.VolumeDetachTimeout = 20 * time.Second })
			require.NoError(t, err)
			require.Equal(t, []string{"volumes still attached to node w1 after its pods have ended: pv-db"}, result.Warnings)
			require.Equal(t, 21*time.Second, result.Took)
		})
	})
	t.Run("even when the deadline comes first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			result, _, err := setup(t).drain(t.Context(), func(r *Request) { r.Deadline = time.Now().Add(5 * time.Second) })
			require.NoError(t, err)
			require.Len(t, result.Warnings, 1)
			require.Equal(t, 5*time.Second, result.Took)
		})
	})
	t.Run("not waited for when switched off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			result, _, err := setup(t).drain(t.Context(), func(r *Request) { r.Settings.WaitForVolumeDetach = false })
			require.NoError(t, err)
			require.Equal(t, deleteDelay, result.Took)
		})
	})
}

func TestNoTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"))
		_, _, err := s.drain(t.Context(), func(r *Request) { r.Deadline = time.Now() })
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "no time was left")
		require.Empty(t, s.asked)
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), budget("x", maxUnavailable(0)))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(2 * time.Second); cancel() }()
		start := time.Now()
		_, _, err := s.drain(ctx)
		require.Equal(t, context.Canceled, err)
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestReportsComeEachSecondAndNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, newPod("a"), newPod("b"), newPod("c"), budget("x", maxUnavailable(1)))
		var times []time.Time
		_, _, err := s.drain(t.Context(), func(r *Request) { r.Report = func(operation.DrainProgress) { times = append(times, time.Now()) } })
		require.NoError(t, err)
		for i := 1; i < len(times)-1; i++ { // the last one is sent at the end, whenever that is
			require.GreaterOrEqual(t, times[i].Sub(times[i-1]), reportAtMost)
			require.LessOrEqual(t, times[i].Sub(times[i-1]), reportAtLeast)
		}
	})
}

func TestErrorHoldsTheEndOfTheOutput(t *testing.T) {
	var o output
	o.log = zap.NewNop()
	o.printf("%s", strings.Repeat("ä", 3000))
	o.printf("the end")
	require.Equal(t, 1999, len([]rune(o.tail())))
	require.True(t, strings.HasSuffix(o.tail(), "ä\nthe end"))
}
