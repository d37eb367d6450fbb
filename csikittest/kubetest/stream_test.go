package kubetest_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// history makes a cluster in which these versions of pods have been: 1 a, 2 b, 3 a changed, 4 b marked, 5 b gone, 6 c.
func history(t *testing.T) *kubetest.Cluster {
	t.Helper()
	cluster := kubetest.New()
	client := cluster.Client().Pods("ns")
	a := must[*corev1.Pod](t)(client.Create(t.Context(), pod("a", "", map[string]string{"app": "x"}), metav1.CreateOptions{}))
	b := pod("b", "", nil)
	b.Finalizers = []string{"f"}
	must[*corev1.Pod](t)(client.Create(t.Context(), b, metav1.CreateOptions{}))
	a.Labels["app"] = "y"
	must[*corev1.Pod](t)(client.Update(t.Context(), a, metav1.UpdateOptions{}))
	if err := client.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[*corev1.Pod](t)(client.Patch(t.Context(), "b", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	must[*corev1.Pod](t)(client.Create(t.Context(), pod("c", "", map[string]string{"app": "x"}), metav1.CreateOptions{}))
	return cluster
}

func TestWatchFromEveryVersion(t *testing.T) {
	t.Parallel()
	all := []string{"ADDED a", "ADDED b", "MODIFIED a", "MODIFIED b", "DELETED b", "ADDED c"}
	for from := 1; from <= 6; from++ { // the empty cluster is at version 1
		t.Run(strconv.Itoa(from), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := must[watch.Interface](t)(history(t).Client().Pods("ns").Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.Itoa(from + 1)}))
				defer w.Stop()
				got, open := drain(w)
				if d := cmp.Diff(all[from:], got, cmpopts.EquateEmpty()); d != "" || !open {
					t.Errorf("what came after version %d, open %t (-want +got):\n%s", from, open, d)
				}
			})
		})
	}
}

func TestWatchOptions(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		opts   metav1.ListOptions
		want   []string
		is     func(error) bool
	}{
		"NoVersion": {reason: "Without a version a watch begins with what is there.", want: []string{"ADDED a", "ADDED c"}},
		"AnyVersion": {
			reason: "So it does with version 0.", opts: metav1.ListOptions{ResourceVersion: "0"}, want: []string{"ADDED a", "ADDED c"},
		},
		"Streaming": {
			reason: "A streaming list ends by a bookmark.",
			opts: metav1.ListOptions{
				SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			},
			want: []string{"ADDED a", "ADDED c", "BOOKMARK "},
		},
		"StreamingSelected": {
			reason: "And is about what is selected.",
			opts:   metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, LabelSelector: "app=x"},
			want:   []string{"ADDED c", "BOOKMARK "},
		},
		"Selected": {
			reason: "What leaves the selection is deleted for its watcher.", opts: metav1.ListOptions{ResourceVersion: "2", LabelSelector: "app=x"},
			want: []string{"DELETED a", "ADDED c"},
		},
		"NotSelected": {
			reason: "What enters the selection is added for its watcher.", opts: metav1.ListOptions{ResourceVersion: "2", LabelSelector: "app=y"},
			want: []string{"ADDED a"},
		},
		"ByName": {
			reason: "One object can be watched.", opts: metav1.ListOptions{ResourceVersion: "2", FieldSelector: "metadata.name=b"},
			want: []string{"ADDED b", "MODIFIED b", "DELETED b"},
		},
		"SetSelector": {
			reason: "Selectors may speak of sets.", opts: metav1.ListOptions{LabelSelector: "app in (x,z),app!=y"}, want: []string{"ADDED c"},
		},
		"Absent": {
			reason: "And of keys that are not there.", opts: metav1.ListOptions{ResourceVersion: "2", LabelSelector: "!app"},
			want: []string{"ADDED b", "MODIFIED b", "DELETED b"},
		},
		"BadVersion":  {reason: "A version is a number here.", opts: metav1.ListOptions{ResourceVersion: "x"}, is: apierrors.IsBadRequest},
		"BadSelector": {reason: "Selectors are checked.", opts: metav1.ListOptions{LabelSelector: "a in b"}, is: apierrors.IsBadRequest},
		"BadField":    {reason: "Fields are checked.", opts: metav1.ListOptions{FieldSelector: "spec.priority=1"}, is: apierrors.IsBadRequest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, err := history(t).Client().Pods("ns").Watch(t.Context(), tc.opts)
				if tc.is != nil {
					if !tc.is(err) {
						t.Errorf("%s: got %v", tc.reason, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer w.Stop()
				got, _ := drain(w)
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, d)
				}
			})
		})
	}
}

// A watch from before a compaction is refused by 410 Gone; one from that moment on goes on.
func TestCompaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := history(t)
		client := cluster.Client().Pods("ns")
		running := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}))
		defer running.Stop()
		cluster.Compact()
		for _, version := range []string{"2", "6"} {
			_, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
			if !apierrors.IsResourceExpired(err) || apierrors.ReasonForError(err) != metav1.StatusReasonExpired {
				t.Errorf("from version %s: got %v, want that it has expired", version, err)
			}
		}
		resumed := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}))
		defer resumed.Stop()
		must[*corev1.Pod](t)(client.Create(t.Context(), pod("d", "", nil), metav1.CreateOptions{}))
		for name, w := range map[string]watch.Interface{"running": running, "resumed": resumed} {
			got, open := drain(w)
			if d := cmp.Diff([]string{"ADDED d"}, got); d != "" || !open {
				t.Errorf("%s, open %t (-want +got):\n%s", name, open, d)
			}
		}
	})
}

// Events are snapshots: later changes do not alter earlier events.
func TestEventsAreSnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		client := cluster.Client().Pods("ns")
		one := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{}))
		two := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{}))
		defer one.Stop()
		defer two.Stop()
		p := must[*corev1.Pod](t)(client.Create(t.Context(), pod("a", "", map[string]string{"v": "1"}), metav1.CreateOptions{}))
		p.Labels["v"] = "2"
		must[*corev1.Pod](t)(client.Update(t.Context(), p, metav1.UpdateOptions{}))
		synctest.Wait()
		for _, w := range []watch.Interface{one, two} {
			for _, want := range []string{"1", "2"} {
				event := <-w.ResultChan()
				got, ok := event.Object.(*corev1.Pod)
				if !ok || got.Labels["v"] != want {
					t.Fatalf("got %+v, want version %s", event, want)
				}
				got.Labels["v"] = "changed by a watcher"
			}
		}
		stored := must[*corev1.Pod](t)(client.Get(t.Context(), "a", metav1.GetOptions{}))
		if stored.Labels["v"] != "2" {
			t.Errorf("a watcher has changed the store to %q", stored.Labels["v"])
		}
	})
}

// The event of a deletion has the last state, and a version of its own to resume from.
func TestDeletionEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(volume("pv"))
		client := cluster.Client().PersistentVolumes()
		pv := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
		w := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: pv.ResourceVersion}))
		defer w.Stop()
		if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		event := <-w.ResultChan()
		last, ok := event.Object.(*corev1.PersistentVolume)
		if !ok || event.Type != watch.Deleted || last.UID != pv.UID || last.ResourceVersion <= pv.ResourceVersion {
			t.Errorf("got %s %+v after version %s", event.Type, event.Object, pv.ResourceVersion)
		}
		resumed := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last.ResourceVersion}))
		defer resumed.Stop()
		if got, _ := drain(resumed); len(got) != 0 {
			t.Errorf("after the deletion there is nothing, got %v", got)
		}
	})
}

// A watcher that reads slowly delays nobody and loses nothing.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	const many = 500
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		client := cluster.Client().Secrets("ns")
		slow := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{}))
		defer slow.Stop()
		for range many {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}
			must[*corev1.Secret](t)(client.Create(t.Context(), secret, metav1.CreateOptions{}))
		}
		if got, _ := drain(slow); len(got) != many {
			t.Errorf("got %d events of %d", len(got), many)
		}
	})
}

// Reads fail by faults as writes do.
func TestFaultsOfReads(t *testing.T) {
	t.Parallel()
	reads := map[string]func(t *testing.T, pods kube.Pods) error{
		"get": func(t *testing.T, pods kube.Pods) error {
			t.Helper()
			_, err := pods.Get(t.Context(), "a", metav1.GetOptions{})
			return err
		},
		"list": func(t *testing.T, pods kube.Pods) error {
			t.Helper()
			_, err := pods.List(t.Context(), metav1.ListOptions{})
			return err
		},
		"watch": func(t *testing.T, pods kube.Pods) error {
			t.Helper()
			w, err := pods.Watch(t.Context(), metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		},
	}
	for verb, read := range reads {
		for faulty := range reads {
			t.Run(verb+"While"+faulty+"Fails", func(t *testing.T) {
				t.Parallel()
				cluster := kubetest.New(pod("a", "", nil))
				cluster.Fail(faulty, "pods", apierrors.NewInternalError(errBroken), 1)
				pods := cluster.Client().Pods("ns")
				if err := read(t, pods); apierrors.IsInternalError(err) != (verb == faulty) {
					t.Errorf("got %v", err)
				}
				if err := read(t, pods); err != nil {
					t.Errorf("once only, got %v", err)
				}
				if writes := cluster.Writes(); len(writes) != 0 {
					t.Errorf("reads are no writes, got %+v", writes)
				}
			})
		}
	}
}

var errBroken = errors.New("etcd has no leader")
