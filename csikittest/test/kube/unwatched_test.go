package kube_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/logtest"
)

// refused is the API server's answer to a request that the role does not allow.
func refused() error {
	return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no role"))
}

var errorLine = regexp.MustCompile(`(?m)^\s*E\d{4} `)

// asked counts the requests for pods, and has those fail that fail names. The first fault of a request acts.
func asked(cluster *kubetest.Cluster, fail map[string]error) map[string]*atomic.Int32 {
	counts := map[string]*atomic.Int32{"list": {}, "watch": {}}
	for verb, n := range counts {
		cluster.Inject(kubetest.Fault{Verb: verb, Resource: "pods", Err: fail[verb], Do: func() { n.Add(1) }})
	}
	return counts
}

// unwatched runs an informer that asks again in five minutes, with a log.
func unwatched(t *testing.T, cluster *kubetest.Cluster, askAgain time.Duration) (f *fixture, log func() string) {
	t.Helper()
	buffer := &logtest.Log{Copy: t.Output()}
	f = &fixture{cluster: cluster}
	f.informer = kube.NewInformer(cluster.Client().Pods(""), kube.InformerOptions[*corev1.Pod]{Name: "Pod", AskAgain: askAgain})
	f.informer.OnChange(f.changed)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(buffer), textlogger.Verbosity(2)))))
	done := make(chan error)
	go func() { done <- f.informer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("end of Run: %v", err)
		}
	})
	return f, buffer.String
}

// TestUnwatchedKind has the API server refuse to list or to watch a kind for ten minutes.
func TestUnwatchedKind(t *testing.T) {
	t.Parallel()
	absent := apierrors.NewNotFound(corev1.Resource("pods"), "")
	cases := map[string]struct {
		reason string
		fail   map[string]error
		// plain says that the server does not stream lists.
		plain bool
		// lists and watches are the numbers of requests in ten minutes. The first of those that are refused comes at once, then after 5 seconds, 20, 80, and 5 minutes.
		lists, watches int32
		synced         bool
	}{
		"NoVerb":      {reason: "The first request is refused.", fail: map[string]error{"list": refused(), "watch": refused()}, watches: 5},
		"NoWatch":     {reason: "The server streams lists, which are watches.", fail: map[string]error{"watch": refused()}, watches: 5},
		"NoWatchList": {reason: "A list is not repeated because the watch is refused.", fail: map[string]error{"watch": refused()}, plain: true, lists: 1, watches: 5, synced: true},
		"NoList":      {reason: "It comes before a watch.", fail: map[string]error{"list": refused()}, plain: true, lists: 5},
		"Absent":      {reason: "The kind is not installed.", fail: map[string]error{"list": absent, "watch": absent}, watches: 5},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New(pod("a", ""))
				if tc.plain {
					cluster.Fail("watch", "pods", apierrors.NewBadRequest("sendInitialEvents"), 1)
				}
				counts := asked(cluster, tc.fail)
				f, log := unwatched(t, cluster, 5*time.Minute)
				begun := time.Now()
				if err := f.informer.WaitTried(t.Context()); err != nil || time.Since(begun) > time.Second {
					t.Errorf("%s: WaitTried returns %v after %v", tc.reason, err, time.Since(begun))
				}
				time.Sleep(9 * time.Minute)
				synctest.Wait()
				if got, want := [2]int32{counts["list"].Load(), counts["watch"].Load()}, [2]int32{tc.lists, tc.watches}; got != want {
					t.Errorf("%s: lists and watches in ten minutes: %v, want %v", tc.reason, got, want)
				}
				if err := f.informer.Unwatched(); !kube.IsUnwatchable(err) {
					t.Errorf("%s: unwatched because of %v", tc.reason, err)
				}
				if f.informer.HasSynced() != tc.synced {
					t.Errorf("%s: synced is %t, want %t", tc.reason, f.informer.HasSynced(), tc.synced)
				}
				if text := log(); errorLine.MatchString(text) || strings.Count(text, "Kind cannot be watched") != 1 {
					t.Errorf("%s: want one line that is no error:\n%s", tc.reason, text)
				}

				cluster.Heal()
				if err := cluster.Apply(pod("b", "")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if d := cmp.Diff([]string{"a", "b"}, podNames(f.informer.List())); d != "" || f.informer.Unwatched() != nil {
					t.Errorf("%s: after the right was granted: unwatched because of %v, (-want +got):\n%s", tc.reason, f.informer.Unwatched(), d)
				}
			})
		})
	}
}

// TestUnwatchedLater takes the right to watch from an informer that runs, and grants it again.
func TestUnwatchedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", ""))
		f, log := unwatched(t, cluster, 5*time.Minute)
		if err := f.informer.WaitTried(t.Context()); err != nil || !f.informer.HasSynced() || f.informer.Unwatched() != nil {
			t.Fatalf("WaitTried returns %v; synced: %t, unwatched because of %v", err, f.informer.HasSynced(), f.informer.Unwatched())
		}
		time.Sleep(time.Minute)
		counts := asked(cluster, map[string]error{"watch": refused()})
		cluster.BreakWatches()
		time.Sleep(9 * time.Minute)
		if counts["list"].Load() != 0 || counts["watch"].Load() > 6 || f.informer.Unwatched() == nil {
			t.Errorf("%d lists, %d watches, unwatched because of %v", counts["list"].Load(), counts["watch"].Load(), f.informer.Unwatched())
		}
		if err := cluster.Apply(pod("b", "")); err != nil {
			t.Fatal(err)
		}
		f.informer.Remember(pod("c", ""))
		if d := cmp.Diff([]string{"a"}, podNames(f.informer.List())); d != "" {
			t.Errorf("while it is not watched the copy stays (-want +got):\n%s", d)
		}
		cluster.Heal()
		time.Sleep(5 * time.Minute)
		if d := cmp.Diff([]string{"add a", "add b"}, f.take()); d != "" || f.informer.Unwatched() != nil {
			t.Errorf("after the right was granted again: unwatched because of %v, changes (-want +got):\n%s", f.informer.Unwatched(), d)
		}
		if text := log(); errorLine.MatchString(text) {
			t.Errorf("want no error:\n%s", text)
		}
	})
}

// TestUnwatchedForAMoment has an API server refuse a kind for two seconds, as one does that has just started: the changes are there seconds later, and not minutes.
func TestUnwatchedForAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", ""))
		f, _ := unwatched(t, cluster, 5*time.Minute)
		if err := f.informer.WaitTried(t.Context()); err != nil {
			t.Fatal(err)
		}
		asked(cluster, map[string]error{"watch": refused(), "list": refused()})
		cluster.BreakWatches()
		time.Sleep(2 * time.Second)
		cluster.Heal()
		if err := cluster.Apply(pod("b", "")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if d := cmp.Diff([]string{"a", "b"}, podNames(f.informer.List())); d != "" || f.informer.Unwatched() != nil {
			t.Errorf("10 seconds after the API server serves the kind again: unwatched because of %v, (-want +got):\n%s", f.informer.Unwatched(), d)
		}
	})
}

// TestUnwatchedForDays has the kind refused for a week: the pauses stay those of AskAgain.
func TestUnwatchedForDays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		counts := asked(cluster, map[string]error{"watch": refused(), "list": refused()})
		unwatched(t, cluster, 5*time.Minute)
		const days = 7
		time.Sleep(days * 24 * time.Hour)
		if n, most := counts["watch"].Load()+counts["list"].Load(), int32(days*24*12+5); n > most || n < most/2 {
			t.Errorf("%d requests in %d days, want %d, or as few as half of that", n, days, most)
		}
	})
}

// TestRequiredKind has no AskAgain: the component cannot do without the kind, so that the error is logged and the request soon repeated.
func TestRequiredKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", ""))
		counts := asked(cluster, map[string]error{"list": refused(), "watch": refused()})
		f, log := unwatched(t, cluster, 0)
		time.Sleep(10 * time.Minute)
		if counts["list"].Load() < 10 || f.informer.Unwatched() != nil || !strings.Contains(log(), "Watch failed, trying again") {
			t.Errorf("%d lists in ten minutes, unwatched because of %v, log:\n%s", counts["list"].Load(), f.informer.Unwatched(), log())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.informer.WaitTried(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitTried returns %v, want the end of its context", err)
		}
	})
}
