package pods

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// count is how many writes of a kind the API has seen.
func (b *bench) count(verb string) int {
	n := 0
	for _, w := range b.api.Writes() {
		if w.Verb == verb && w.Resource == "pods" {
			n++
		}
	}
	return n
}

// wake lets the controller look at the pod as often as its volumes might.
func (b *bench) wake(times int) {
	for range times {
		b.c.Wake("uid-a")
		synctest.Wait()
	}
}

// TestDeletedOnce: the API has taken the deletion, but the watch has not brought it yet.
func TestDeletedOnce(t *testing.T) {
	cases := map[string]struct {
		reason    string
		finalizer []string
		deletes   int
	}{
		"Gone":    {reason: "a second deletion could only find nothing", deletes: 1},
		"Lingers": {reason: "somebody's finalizer keeps it, which deleting again does not change", finalizer: []string{"x.example/f"}, deletes: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published = true })
				b.add(testPod(func(p *corev1.Pod) { p.Finalizers = tc.finalizer }))
				before := b.count("delete")
				b.remove(30)
				b.wake(5)
				if got := b.count("delete") - before - 1; got != tc.deletes {
					t.Errorf("%s: %d deletions were sent, want %d", tc.reason, got, tc.deletes)
				}
			})
		})
	}
}

// TestDeletionIsSentAgain: what the API has refused was not taken.
func TestDeletionIsSentAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published, b.stuck = true, true })
		b.add(testPod())
		b.remove(30)
		b.api.Fail("delete", "pods", errors.New("away"), 2)
		b.set(func() { b.stuck = false })
		b.wake(1)
		if b.pod() == nil {
			t.Fatal("the pod went although the API was away")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.pod() != nil {
			t.Error("the pod is still there after the API has come back")
		}
	})
}

// TestEndedOnce: each volume that is unpublished wakes the pod, which must not be reported as ended
// each time.
func TestEndedOnce(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod())
		b.set(func() { b.stuck = true })
		b.show()
		before := b.count("patch")
		b.remove(30)
		b.wake(5)
		if got := b.count("patch") - before; got != 1 {
			t.Errorf("the end was reported %d times, want once", got)
		}
	})
}

// TestEndIsReportedAgain: a report that the API did not take is sent again, and nothing is taken
// down before it was.
func TestEndIsReportedAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod())
		b.api.Fail("patch", "pods", errors.New("away"), 2)
		b.remove(30)
		b.expectLog("not before the end is known")
		time.Sleep(time.Minute)
		synctest.Wait()
		b.expectLog("afterwards", "drop uid-a", "clean uid-a")
		if b.pod() != nil {
			t.Error("the pod is still there")
		}
	})
}

// TestReplacedPod: answers about another pod of the same name mean that ours is gone, and are no
// reason to keep its volumes.
func TestReplacedPod(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := map[string]struct {
		reason string
		verb   string
		err    error
	}{
		"StatusNotFound": {reason: "deleted by force", verb: "patch", err: apierrors.NewNotFound(pods, "a")},
		"StatusConflict": {reason: "made again", verb: "patch", err: apierrors.NewConflict(pods, "a", errors.New("uid"))},
		"DeleteNotFound": {reason: "deleted by force", verb: "delete", err: apierrors.NewNotFound(pods, "a")},
		"DeleteConflict": {reason: "made again", verb: "delete", err: apierrors.NewConflict(pods, "a", errors.New("uid"))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published, b.busy["uid-a"] = true, true })
				now := metav1.Now()
				b.api.Fail(tc.verb, "pods", tc.err, 0)
				b.c.Changed(nil, testPod(isRunning, func(p *corev1.Pod) { p.DeletionTimestamp = &now }))
				synctest.Wait()
				b.expectLog(tc.reason, "drop uid-a", "clean uid-a")
				b.set(func() {
					if b.logged.Len() > 0 && strings.Contains(b.logged.String(), "trying again") {
						t.Errorf("%s: tried again: %s", tc.reason, b.logged.String())
					}
				})
			})
		})
	}
}

// TestOnlyItsOwnPodIsDeleted: a pod that is to be deleted was replaced by one of its name, which the watch has not brought yet.
func TestOnlyItsOwnPodIsDeleted(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		if err := b.api.Apply(testPod(isRunning, func(p *corev1.Pod) { p.UID = "uid-b" })); err != nil {
			t.Fatal(err)
		}
		ended := testPod(isRunning, deleting, func(p *corev1.Pod) { p.Status = Ended(p, now) })
		b.c.Changed(nil, ended)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := b.pod(); p == nil || p.UID != "uid-b" || p.Status.Phase != corev1.PodRunning {
			t.Errorf("the other pod is %+v, want it as it was", p)
		}
		if b.count("delete") == 0 {
			t.Error("no deletion was sent: the test shows nothing")
		}
	})
}

// TestLag is about what an operator reads and the API server gets while the authorizer has not seen
// the pod: that is expected after every scheduling, and passes.
func TestLag(t *testing.T) {
	lag := &resolve.Problem{Volume: "v", Reason: "FailedMount", Err: errors.New("no relationship found"), Transient: true}
	other := &resolve.Problem{Volume: "w", Reason: "FailedMount", Err: errors.New("not bound")}
	cases := map[string]struct {
		reason   string
		problems []*resolve.Problem
		after    time.Duration
		logged   bool
	}{
		"Fresh":     {reason: "nothing is wrong yet", problems: []*resolve.Problem{lag}, after: transientGrace - time.Millisecond},
		"Permanent": {reason: "a refusal that stays is an error", problems: []*resolve.Problem{lag}, after: 2 * transientGrace, logged: true},
		"Mixed":     {reason: "another volume has a real problem", problems: []*resolve.Problem{lag, other}, logged: true},
		"Other":     {reason: "no refusal at all", problems: []*resolve.Problem{other}, logged: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published, b.problems = true, tc.problems })
				b.add(testPod())
				time.Sleep(tc.after)
				synctest.Wait()
				b.set(func() {
					if got := b.logged.Len() > 0; got != tc.logged {
						t.Errorf("%s: logged %q", tc.reason, b.logged.String())
					}
					b.problems = nil
				})
			})
		})
	}
}

func TestLagIsShort(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() {
			b.published = true
			b.problems = []*resolve.Problem{{Volume: "v", Err: errors.New("no relationship found"), Transient: true}}
		})
		b.add(testPod())
		time.Sleep(time.Second)
		synctest.Wait()
		b.set(func() { b.problems = nil })
		time.Sleep(transientRetry)
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodRunning {
			t.Errorf("phase is %s, want Running %v after the authorizer has seen the pod", p.Status.Phase, transientRetry)
		}
	})
}

// TestLagGraceIsGivenOnce: a pod that is refused for long is not asked for every 50 ms again each
// time its users were told that it waits.
func TestLagGraceIsGivenOnce(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.problems = []*resolve.Problem{{Volume: "v", Err: errors.New("forbidden"), Transient: true}} })
		b.add(testPod())
		time.Sleep(time.Minute)
		synctest.Wait()
		var before int
		b.set(func() { before = b.resolves })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		b.set(func() {
			if n := b.resolves - before; n > 40 {
				t.Errorf("claims were read %d times in ten minutes, want no more than every 15 seconds or so", n)
			}
		})
	})
}

// TestToldAgain: users are told from time to time, not only once.
func TestToldAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.add(testPod())
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		b.set(func() {
			if n := len(b.events); n < 4 || n > 5 {
				t.Errorf("users were told %d times in ten minutes, want every two minutes: %v", n, b.events)
			}
		})
	})
}

func TestTable(t *testing.T) {
	first, second := testPod(), testPod(isRunning)
	cases := map[string]struct {
		reason string
		do     func(*table)
		known  bool
		pod    *corev1.Pod
		gone   bool
	}{
		"Nothing":    {reason: "an unknown pod", do: func(*table) {}},
		"Newest":     {reason: "the last state counts", do: func(c *table) { c.put(first); c.put(second) }, known: true, pod: second},
		"Lost":       {reason: "what is known of it is still needed", do: func(c *table) { c.put(first); c.markGone(first) }, known: true, pod: first, gone: true},
		"LostFirst":  {reason: "found on disk only", do: func(c *table) { c.markGone(first) }, known: true, pod: first, gone: true},
		"NeverBack":  {reason: "UIDs are not used again, so a late state is old", do: func(c *table) { c.put(first); c.markGone(first); c.put(second) }, known: true, pod: first, gone: true},
		"Removed":    {reason: "done with", do: func(c *table) { c.put(first); c.remove(first.UID) }},
		"AndBetween": {reason: "removing one leaves others", do: func(c *table) { c.put(first); c.remove("uid-b") }, known: true, pod: first},
		"Adopted":    {reason: "it may have got a volume since the last look", do: func(c *table) { c.put(first); c.markGone(first); c.adopt(first.UID); c.remove(first.UID) }, known: true, pod: first, gone: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := table{entries: map[types.UID]*entry{}}
			tc.do(&c)
			e, pod, gone := c.get("uid-a")
			if (e != nil) != tc.known || (len(c.uids()) == 1) != tc.known {
				t.Errorf("%s: known %t, all %v, want %t", tc.reason, e != nil, c.uids(), tc.known)
			}
			if pod != tc.pod || gone != tc.gone {
				t.Errorf("%s: got %v, gone %t", tc.reason, pod, gone)
			}
		})
	}
}

// TestNewNamesWhatIsMissing: each of the parts is needed.
func TestNewNamesWhatIsMissing(t *testing.T) {
	b := &bench{api: kubetest.New(), busy: map[types.UID]bool{}}
	all := Config{Pods: b.api.Client().Pods, Resolve: b.resolve, Volumes: b, Clean: b.clean, Events: b}
	if c, err := New(all); err != nil || c.cfg.Workers != 16 || c.cfg.Timeout <= 0 || c.cfg.Patience <= 0 {
		t.Fatalf("defaults: %v", err)
	}
	for name, drop := range map[string]func(*Config){
		"Pods": func(c *Config) { c.Pods = nil }, "Resolve": func(c *Config) { c.Resolve = nil },
		"Volumes": func(c *Config) { c.Volumes = nil }, "Clean": func(c *Config) { c.Clean = nil },
		"Events": func(c *Config) { c.Events = nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := all
			drop(&cfg)
			if _, err := New(cfg); err == nil {
				t.Errorf("a controller without %s: no error", name)
			}
		})
	}
}

// TestDropNamesThePod: events about unpublishing need more than the UID.
func TestDropNamesThePod(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		rec := &dropRecorder{bench: b}
		b.c.cfg.Volumes = rec
		if released, err := b.c.release(testPod()); !released || err != nil {
			t.Fatalf("released %t: %v", released, err)
		}
		want := volume.Pod{Namespace: "ns", Name: "a", UID: "uid-a", ServiceAccount: "sa"}
		if rec.pod != want {
			t.Errorf("dropped %+v, want %+v", rec.pod, want)
		}
	})
}

type dropRecorder struct {
	*bench
	pod volume.Pod
}

func (r *dropRecorder) Drop(p volume.Pod) { r.pod = p }

// TestNotFoundIsBelievedOnlyFromTheWatch: an API server that has just started answers NotFound to the deletion of a pod that
// exists, as the admission of a node's requests looks into a cache that is empty then.
func TestNotFoundIsBelievedOnlyFromTheWatch(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := map[string]struct {
		reason string
		verb   string
	}{
		"Delete": {reason: "the deletion is sent again until the watch says that the pod is gone", verb: "delete"},
		"Status": {reason: "the end is reported again, then the pod is deleted", verb: "patch"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published, b.stuck = true, true })
				b.add(testPod())
				if tc.verb == "patch" {
					b.api.Fail(tc.verb, "pods", apierrors.NewNotFound(pods, "a"), 1)
				}
				b.remove(30)
				if tc.verb == "delete" {
					b.api.Fail(tc.verb, "pods", apierrors.NewNotFound(pods, "a"), 1)
				}
				b.set(func() { b.stuck = false })
				b.wake(1)
				if b.pod() == nil && tc.verb == "delete" {
					t.Fatal("the fault did not hit")
				}
				time.Sleep(2 * confirmDeletion)
				synctest.Wait()
				if p := b.pod(); p != nil {
					t.Errorf("%s: it is still there: %+v", tc.reason, p)
				}
			})
		})
	}
}
