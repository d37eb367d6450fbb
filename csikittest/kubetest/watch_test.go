package kubetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func pod(name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: node}}
}

// drain returns what a watch has to say now.
func drain(w watch.Interface) (events []string, open bool) {
	for {
		synctest.Wait()
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return events, false
			}
			name := ""
			if obj, ok := event.Object.(metav1.Object); ok {
				name = obj.GetName()
			}
			events = append(events, string(event.Type)+" "+name)
		default:
			return events, true
		}
	}
}

func TestListSelects(t *testing.T) {
	t.Parallel()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}, Reason: "R", InvolvedObject: corev1.ObjectReference{Name: "a"},
	}
	client := kubetest.New(pod("a", "n1", map[string]string{"app": "x"}), pod("b", "n2", nil), event).Client()
	cases := map[string]struct {
		reason    string
		namespace string
		opts      metav1.ListOptions
		want      []string
		is        func(error) bool
	}{
		"All":         {reason: "Nothing is excluded.", want: []string{"a", "b"}},
		"Namespace":   {reason: "Other namespaces are excluded.", namespace: "other"},
		"Label":       {reason: "Labels select.", opts: metav1.ListOptions{LabelSelector: "app=x"}, want: []string{"a"}},
		"Node":        {reason: "Fields select.", opts: metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}, want: []string{"b"}},
		"Name":        {reason: "Names select.", opts: metav1.ListOptions{FieldSelector: "metadata.name=a,metadata.namespace=ns"}, want: []string{"a"}},
		"OtherField":  {reason: "Fields that the server does not know are refused.", opts: metav1.ListOptions{FieldSelector: "spec.x=y"}, is: apierrors.IsBadRequest},
		"BadSelector": {reason: "Selectors are checked.", opts: metav1.ListOptions{FieldSelector: "x"}, is: apierrors.IsBadRequest},
		"BadLabels":   {reason: "Selectors are checked.", opts: metav1.ListOptions{LabelSelector: "!!"}, is: apierrors.IsBadRequest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := client.Pods(tc.namespace).List(t.Context(), tc.opts)
			if tc.is != nil {
				if !tc.is(err) {
					t.Errorf("%s: got %v", tc.reason, err)
				}
				return
			}
			var got []string
			for _, p := range list.Items {
				got = append(got, p.Name)
			}
			if d := cmp.Diff(tc.want, got); d != "" || err != nil || list.ResourceVersion == "" {
				t.Errorf("%s (-want +got):\n%s\n%v", tc.reason, d, err)
			}
		})
	}
	events := must[*corev1.EventList](t)(client.Events("ns").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,reason=R"}))
	if len(events.Items) != 1 {
		t.Errorf("events are found by their object, got %d", len(events.Items))
	}
}

func TestWatchFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", "n1", nil))
		client := cluster.Client().Pods("ns")
		list := must[*corev1.PodList](t)(client.List(t.Context(), metav1.ListOptions{}))
		must[*corev1.Pod](t)(client.Create(t.Context(), pod("b", "n1", nil), metav1.CreateOptions{}))
		w := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))
		a := &list.Items[0]
		a.Labels = map[string]string{"x": "y"}
		must[*corev1.Pod](t)(client.Update(t.Context(), a, metav1.UpdateOptions{}))
		if err := client.Delete(t.Context(), "b", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		got, _ := drain(w)
		if d := cmp.Diff([]string{"ADDED b", "MODIFIED a", "DELETED b"}, got); d != "" {
			t.Errorf("events since the version (-want +got):\n%s", d)
		}
		w.Stop()
		w.Stop() // twice is fine
		if _, open := drain(w); open {
			t.Error("a stopped watch is closed")
		}
	})
}

func TestWatchStartsWithWhatIsThere(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		opts   metav1.ListOptions
		want   []string
	}{
		"Unset":     {reason: "Without a version objects are new.", want: []string{"ADDED a", "ADDED b"}},
		"Any":       {reason: "Version 0 is any.", opts: metav1.ListOptions{ResourceVersion: "0"}, want: []string{"ADDED a", "ADDED b"}},
		"Streaming": {reason: "A bookmark ends a streaming list.", opts: metav1.ListOptions{SendInitialEvents: ptr.To(true)}, want: []string{"ADDED a", "ADDED b", "BOOKMARK "}},
		"Selected":  {reason: "Selectors hold.", opts: metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}, want: []string{"ADDED b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := kubetest.New(pod("a", "n1", nil), pod("b", "n2", nil)).Client().Pods("")
				w := must[watch.Interface](t)(client.Watch(t.Context(), tc.opts))
				defer w.Stop()
				got, _ := drain(w)
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, d)
				}
			})
		})
	}
}

// An object that stops to match is deleted for the watcher, and new when it matches again.
func TestWatchTranslatesSelection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", "n1", nil))
		client := cluster.Client().Pods("ns")
		w := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{LabelSelector: "on"}))
		defer w.Stop()
		for _, labels := range []string{`{"on":"1"}`, `{"on":"2"}`, `null`, `{"on":"3"}`} {
			if err := cluster.Merge("pods", "ns", "a", []byte(`{"metadata":{"labels":`+labels+`}}`)); err != nil {
				t.Fatal(err)
			}
		}
		got, _ := drain(w)
		if d := cmp.Diff([]string{"ADDED a", "MODIFIED a", "DELETED a", "ADDED a"}, got); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

func TestWatchesBreakAndExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", "n1", nil))
		client := cluster.Client().Pods("ns")
		w := must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{}))
		cluster.BreakWatches()
		got, open := drain(w)
		if len(got) != 1 || open {
			t.Errorf("what is queued comes, then the end: %q, open %t", got, open)
		}
		w.Stop()
		version := cluster.Objects("pods")[0].GetResourceVersion()
		if err := cluster.Apply(pod("b", "n1", nil)); err != nil {
			t.Fatal(err)
		}
		cluster.Compact()
		if _, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version}); !apierrors.IsResourceExpired(err) {
			t.Errorf("the past is forgotten, got %v", err)
		}
		for _, opts := range []metav1.ListOptions{{ResourceVersion: "x"}, {LabelSelector: "!!"}} {
			if _, err := client.Watch(t.Context(), opts); !apierrors.IsBadRequest(err) {
				t.Errorf("options %+v: want bad request, got %v", opts, err)
			}
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		ctx, cancel := context.WithCancel(t.Context())
		w := must[watch.Interface](t)(cluster.Client().Pods("").Watch(ctx, metav1.ListOptions{}))
		cancel()
		if _, open := drain(w); open {
			t.Error("the watch is closed")
		}
		boom := errors.New("boom")
		cluster.Fail("watch", "pods", boom, 1)
		if _, err := cluster.Client().Pods("").Watch(t.Context(), metav1.ListOptions{}); !errors.Is(err, boom) {
			t.Errorf("watches can fail, got %v", err)
		}
	})
}

// TestEmptyClusterHasAVersion: a list of nothing must not say version 0, which would let its reader watch from anywhere.
func TestEmptyClusterHasAVersion(t *testing.T) {
	list, err := kubetest.New().Client().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || list.ResourceVersion == "0" || list.ResourceVersion == "" {
		t.Errorf("list has version %q, %v", list.ResourceVersion, err)
	}
}
