package kube_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
		Spec:       corev1.PodSpec{NodeName: node, Hostname: "dropped"},
	}
}

// fixture is an informer of pods that runs on a cluster.
type fixture struct {
	cluster  *kubetest.Cluster
	informer *kube.Informer[*corev1.Pod]
	mu       sync.Mutex
	changes  []string
}

func (f *fixture) changed(before, after *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case before == nil:
		f.changes = append(f.changes, "add "+after.Name)
	case after == nil:
		f.changes = append(f.changes, "delete "+before.Name)
	case before.ResourceVersion == after.ResourceVersion:
		f.changes = append(f.changes, "resync "+after.Name)
	default:
		f.changes = append(f.changes, "update "+after.Name)
	}
}

// take returns the changes since the last take.
func (f *fixture) take() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	changes := f.changes
	f.changes = nil
	return changes
}

// breakWatches ends the watch and lets the next three fail.
func (f *fixture) breakWatches() {
	f.cluster.Fail("watch", "pods", apierrors.NewServiceUnavailable("down"), 3)
	f.cluster.BreakWatches()
	synctest.Wait()
}

func run(t *testing.T, o kube.InformerOptions[*corev1.Pod], test func(t *testing.T, f *fixture), objs ...*corev1.Pod) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{cluster: kubetest.New()}
		for _, obj := range objs {
			if err := f.cluster.Apply(obj); err != nil {
				t.Fatal(err)
			}
		}
		f.informer = kube.NewInformer(f.cluster.Client().Pods(""), o)
		f.informer.OnChange(f.changed)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.informer.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("end of Run: %v", err)
			}
		}()
		if err := f.informer.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
		test(t, f)
	})
}

func podNames(pods []*corev1.Pod) []string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func TestInformerFollows(t *testing.T) {
	t.Parallel()
	run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
		t.Helper()
		if d := cmp.Diff([]string{"add a"}, f.take()); d != "" {
			t.Errorf("existing objects are notified as new before WaitSynced returns (-want +got):\n%s", d)
		}
		if got, ok := f.informer.Get("ns", "a"); !ok || got.ManagedFields != nil || got.Spec.Hostname == "" {
			t.Errorf("found without managedFields, got %+v", got)
		}
		if !f.informer.HasSynced() {
			t.Error("the copy is complete")
		}
		if err := errors.Join(
			f.cluster.Apply(pod("b", "n")), f.cluster.Apply(pod("a", "n")), f.cluster.Remove("pods", "ns", "missing"),
		); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"add b", "update a"}, f.take()); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]string{"a", "b"}, podNames(f.informer.List())); d != "" {
			t.Errorf("list (-want +got):\n%s", d)
		}
	}, pod("a", ""))
}

// Deletions that nobody saw, as the watch was broken, are found by the next list.
func TestOnChangeOfARunningInformer(t *testing.T) {
	t.Parallel()
	run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
		t.Helper()
		f.take()
		late := &fixture{}
		f.informer.OnChange(late.changed)
		if got := late.take(); !slices.Equal(got, []string{"add a"}) {
			t.Errorf("at once: got %v, want the object that is there", got)
		}
		if err := f.cluster.Apply(pod("b", "n1")); err != nil {
			t.Fatal(err)
		}
		if early, late := f.take(), late.take(); !slices.Equal(early, []string{"add b"}) || !slices.Equal(early, late) {
			t.Errorf("afterwards: %v and %v, want the same for both", early, late)
		}
	}, pod("a", "n1"))
}

func TestInformerFindsWhatItMissed(t *testing.T) {
	t.Parallel()
	run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
		t.Helper()
		f.take()
		f.breakWatches()
		if err := f.cluster.Remove("pods", "ns", "a"); err != nil {
			t.Fatal(err)
		}
		f.cluster.Compact()
		time.Sleep(5 * time.Minute)
		if d := cmp.Diff([]string{"delete a"}, f.take()); d != "" {
			t.Errorf("a tombstone is a deletion (-want +got):\n%s", d)
		}
		if _, ok := f.informer.Get("ns", "a"); ok {
			t.Error("it is gone")
		}
	}, pod("a", ""))
}

// An own write whose object is deleted before the watch is back is gone with the next list, which lacks it, and OnChange reports that.
func TestInformerReportsOwnWritesThatAListLacks(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"BeforeTheList": false, "AfterTheList": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
				t.Helper()
				f.take()
				f.breakWatches()
				created, err := f.cluster.Client().Pods("ns").Create(t.Context(), pod("a", ""), metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if !late {
					f.informer.Remember(created)
				}
				if err := f.cluster.Remove("pods", "ns", "a"); err != nil {
					t.Fatal(err)
				}
				f.cluster.Compact()
				time.Sleep(30 * time.Second) // the list has come, and an own write lives longer than that
				if late {
					f.informer.Remember(created)
				}
				if d := cmp.Diff([]string{"delete a"}, f.take()); d != "" {
					t.Errorf("its deletion is a change (-want +got):\n%s", d)
				}
				if _, ok := f.informer.Get("ns", "a"); ok {
					t.Error("it is gone")
				}
			}, pod("b", ""))
		})
	}
}

// slimPod keeps the node of a pod.
func slimPod(pod *corev1.Pod) *corev1.Pod {
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	return pod
}

func TestInformerOptions(t *testing.T) {
	t.Parallel()
	o := kube.InformerOptions[*corev1.Pod]{
		Name: "Pod", FieldSelector: "spec.nodeName!=", LabelSelector: "!hidden",
		Transform: slimPod,
		Index:     map[string]func(*corev1.Pod) []string{"node": func(p *corev1.Pod) []string { return []string{p.Spec.NodeName} }},
		Resync:    time.Hour,
	}
	hidden := pod("hidden", "n1")
	hidden.Labels = map[string]string{"hidden": ""}
	run(t, o, func(t *testing.T, f *fixture) {
		t.Helper()
		if d := cmp.Diff([]string{"a", "b"}, podNames(f.informer.List())); d != "" {
			t.Errorf("selectors hold (-want +got):\n%s", d)
		}
		if got, _ := f.informer.Get("ns", "a"); got.Spec.Hostname != "" {
			t.Errorf("the transform is applied, got %+v", got.Spec)
		}
		if d := cmp.Diff([]string{"a"}, podNames(f.informer.ByIndex("node", "n1"))); d != "" {
			t.Errorf("the index is kept (-want +got):\n%s", d)
		}
		if got := f.informer.ByIndex("other", "n1"); got != nil {
			t.Errorf("an unknown index is empty, got %v", got)
		}
		f.take()
		time.Sleep(time.Hour + time.Minute)
		got := f.take()
		slices.Sort(got)
		if d := cmp.Diff([]string{"resync a", "resync b"}, got); d != "" {
			t.Errorf("the resync is notified (-want +got):\n%s", d)
		}
	}, pod("a", "n1"), pod("b", "n2"), pod("unscheduled", ""), hidden)
}

// blind stops the watch from bringing anything.
func blind(f *fixture) {
	f.cluster.Fail("watch", "pods", apierrors.NewServiceUnavailable("down"), 0)
	f.cluster.Fail("list", "pods", apierrors.NewServiceUnavailable("down"), 0)
	f.cluster.BreakWatches()
	synctest.Wait()
}

func TestInformerRemembersOwnWrites(t *testing.T) {
	t.Parallel()
	o := kube.InformerOptions[*corev1.Pod]{
		Transform: slimPod,
		Index:     map[string]func(*corev1.Pod) []string{"node": func(p *corev1.Pod) []string { return []string{p.Spec.NodeName} }},
	}
	run(t, o, func(t *testing.T, f *fixture) {
		t.Helper()
		client := f.cluster.Client().Pods("ns")
		blind(f)
		stale, err := client.Update(t.Context(), pod("a", "n2"), metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		moved, err := client.Update(t.Context(), pod("a", "n3"), metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created, err := client.Create(t.Context(), pod("b", "n3"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range []*corev1.Pod{moved, stale, created} {
			f.informer.Remember(obj)
		}
		got, ok := f.informer.Get("ns", "a")
		if !ok || got.Spec.NodeName != "n3" || got.Spec.Hostname != "" {
			t.Errorf("the newest own write is seen, slim, got %+v", got)
		}
		if moved.Spec.Hostname == "" {
			t.Error("the caller's object stays as it is")
		}
		if d := cmp.Diff([]string{"a", "b", "c"}, podNames(f.informer.List())); d != "" {
			t.Errorf("lists have them once (-want +got):\n%s", d)
		}
		byNode := map[string][]string{}
		for _, node := range []string{"n1", "n2", "n3"} {
			byNode[node] = podNames(f.informer.ByIndex("node", node))
		}
		if d := cmp.Diff(map[string][]string{"n1": {"c"}, "n2": {}, "n3": {"a", "b"}}, byNode); d != "" {
			t.Errorf("indexes have them where they belong (-want +got):\n%s", d)
		}
		if got, ok := f.informer.Get("ns", "c"); !ok || got.Name != "c" {
			t.Errorf("others are found, got %v", got)
		}
	}, pod("a", "n1"), pod("c", "n1"))
}

func TestInformerForgetsOwnWrites(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		then   func(t *testing.T, f *fixture)
		node   string // "": not there
	}{
		"Confirmed": {
			reason: "A newer state from the watch wins.", node: "n9",
			then: func(t *testing.T, f *fixture) { t.Helper(); _ = f.cluster.Apply(pod("a", "n9")) },
		},
		"Deleted": {
			reason: "A deletion wins.",
			then: func(t *testing.T, f *fixture) {
				t.Helper()
				if err := f.cluster.Merge("pods", "ns", "a", []byte(`{"status":{"phase":"Failed"}}`)); err != nil {
					t.Fatal(err)
				}
				if err := f.cluster.Remove("pods", "ns", "a"); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Expired": {
			reason: "What no watch confirms is not believed forever.", node: "n1",
			then: func(t *testing.T, f *fixture) { t.Helper(); blind(f); time.Sleep(2 * time.Minute) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
				t.Helper()
				own, ok := f.informer.Get("ns", "a")
				if !ok {
					t.Fatal("pod a is there")
				}
				own = own.DeepCopy()
				own.ResourceVersion, own.Spec.NodeName = "3", "n2" // the next version
				f.informer.Remember(own)
				if got, _ := f.informer.Get("ns", "a"); got.Spec.NodeName != "n2" {
					t.Errorf("the own write is seen first, got %q", got.Spec.NodeName)
				}
				if err := f.cluster.Apply(pod("other", "")); err != nil { // versions go on beyond ours
					t.Fatal(err)
				}
				tc.then(t, f)
				synctest.Wait()
				got, ok := f.informer.Get("ns", "a")
				if ok != (tc.node != "") || ok && got.Spec.NodeName != tc.node {
					t.Errorf("%s: got %v, %t", tc.reason, got, ok)
				}
				if name == "Expired" {
					f.informer.Remember(pod("z", "n2")) // sweeps the old one out
				}
			}, pod("a", "n1"))
		})
	}
}

func TestInformerRunsOnce(t *testing.T) {
	t.Parallel()
	run(t, kube.InformerOptions[*corev1.Pod]{Name: "Pod"}, func(t *testing.T, f *fixture) {
		t.Helper()
		if err := f.informer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "informer of Pod") {
			t.Errorf("a second Run is an error that names the informer, got %v", err)
		}
	})
}

func TestWaitSyncedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		cluster.Inject(kubetest.Fault{Resource: "pods", Hang: true})
		informer := kube.NewInformer(cluster.Client().Pods(""), kube.InformerOptions[*corev1.Pod]{})
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = informer.Run(ctx) }()
		waited := make(chan error)
		go func() { waited <- informer.WaitSynced(ctx) }()
		synctest.Wait()
		if informer.HasSynced() {
			t.Error("the list hangs")
		}
		cancel(why)
		if err := <-waited; !errors.Is(err, why) || !strings.Contains(err.Error(), "*v1.Pod") {
			t.Errorf("the error says what was waited for and why it ended, got %v", err)
		}
		<-done
		idle := kube.NewInformer(cluster.Client().Pods(""), kube.InformerOptions[*corev1.Pod]{})
		if err := idle.WaitSynced(ctx); !errors.Is(err, why) || idle.HasSynced() {
			t.Errorf("an informer that never ran never syncs, got %v", err)
		}
	})
}

// Streams end all the time: only what needs a user is logged as an error.
func TestWatchErrorsAreLoggedByWeight(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no role"))
	cases := map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"Forbidden": {reason: "A role is missing.", err: forbidden, want: true},
		"Expired":   {reason: "The version was too old.", err: apierrors.NewResourceExpired("old")},
		"Busy":      {reason: "The server asks for patience.", err: apierrors.NewTooManyRequests("busy", 1)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				buffer := &ktesting.BufferTL{}
				logger := ktesting.NewLogger(buffer, ktesting.NewConfig(ktesting.Verbosity(2)))
				cluster := kubetest.New()
				cluster.Fail("", "pods", tc.err, 4)
				informer := kube.NewInformer(cluster.Client().Pods(""), kube.InformerOptions[*corev1.Pod]{Name: "Pod"})
				ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Minute)
				defer cancel()
				if err := informer.Run(ctx); err != nil {
					t.Fatal(err)
				}
				text := buffer.String()
				if got := strings.Contains(text, "Watch failed"); got != tc.want {
					t.Errorf("%s: logged is %t:\n%s", tc.reason, got, text)
				}
			})
		})
	}
}

// A component has a dozen informers; each would log twice at every start.
func TestWaitSyncedIsSilent(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		run    bool
	}{
		"Synced": {reason: "What went as expected is no news.", run: true},
		"Ended":  {reason: "The error says it, for the caller to log."},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log ktesting.BufferTL
				ctx := klog.NewContext(t.Context(), ktesting.NewLogger(&log, ktesting.NewConfig(ktesting.Verbosity(0))))
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				i := kube.NewInformer(kubetest.New(pod("a", "")).Client().Pods(""), kube.InformerOptions[*corev1.Pod]{})
				done := make(chan error, 1)
				go func() {
					if !tc.run {
						<-ctx.Done()
					}
					done <- i.Run(ctx)
				}()
				if err := i.WaitSynced(ctx); (err == nil) != tc.run {
					t.Errorf("WaitSynced: %v", err)
				}
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
				if got := log.String(); got != "" {
					t.Errorf("%s Logged:\n%s", tc.reason, got)
				}
			})
		})
	}
}

// Of two channels that are ready a select takes any: a copy that is complete is
// complete, also when there is no time left.
func TestWaitSyncedAfterTheEnd(t *testing.T) {
	t.Parallel()
	run(t, kube.InformerOptions[*corev1.Pod]{}, func(t *testing.T, f *fixture) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 50 {
			if err := f.informer.WaitSynced(ctx); err != nil {
				t.Fatalf("a complete copy: %v", err)
			}
		}
	})
}

// watchedPods notes how long watches are asked to take.
type watchedPods struct {
	kube.Pods
	seconds chan int64
}

func (p watchedPods) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	select {
	case p.seconds <- *opts.TimeoutSeconds:
	default:
	}
	return p.Pods.Watch(ctx, opts)
}

// TestWatchesAreLong asks for watches that are as long as those of a client that names no time: the requests of many instances add up.
func TestWatchesAreLong(t *testing.T) {
	pods := watchedPods{Pods: kubetest.New().Client().Pods(""), seconds: make(chan int64, 1)}
	informer := kube.NewInformer(pods, kube.InformerOptions[*corev1.Pod]{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := informer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	if got := time.Duration(<-pods.seconds) * time.Second; got < 30*time.Minute || got > time.Hour {
		t.Errorf("a watch is to take %v, want 30 to 60 minutes", got)
	}
}
