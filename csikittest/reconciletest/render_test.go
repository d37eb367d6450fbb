package reconciletest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func sleepLong() { time.Sleep(2 * time.Hour) }

func TestDiff(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason        string
		before, after map[string]any
		want          []string
	}{
		"Same":    {reason: "Nothing differs.", before: map[string]any{"a": "1"}, after: map[string]any{"a": "1"}},
		"Added":   {reason: "A new leaf.", after: map[string]any{"a": map[string]any{"b": 1.0}}, want: []string{"+ a.b: 1"}},
		"Removed": {reason: "A leaf that is gone.", before: map[string]any{"a": "x"}, want: []string{`- a: "x"`}},
		"Changed": {
			reason: "Lists are compared as a whole.", before: map[string]any{"a": []any{"x"}}, after: map[string]any{"a": []any{"x", "y"}},
			want: []string{`~ a: ["x"] -> ["x","y"]`},
		},
		"Keys": {
			reason: "Keys with dots are set apart, characters stay readable.", after: map[string]any{"m": map[string]any{"k8s.io/x": "<a&b>"}},
			want: []string{`+ m.[k8s.io/x]: "<a&b>"`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(tc.want, diff(tc.before, tc.after)); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestDocument(t *testing.T) {
	t.Parallel()
	now := metav1.NewTime(time.Unix(1000, 0))
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "u", ResourceVersion: "7", CreationTimestamp: now, DeletionTimestamp: &now},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Name: "c", ResourceVersion: "8"}},
	}
	want := map[string]any{
		"metadata": map[string]any{"name": "pv", "deletionTimestamp": "<time>"},
		"spec":     map[string]any{"claimRef": map[string]any{"name": "c"}},
	}
	if d := cmp.Diff(want, document(pv)); d != "" {
		t.Errorf("what differs from run to run is left out (-want +got):\n%s", d)
	}
	if got := document(nil); got != nil {
		t.Errorf("no object, no document, got %v", got)
	}
}

func TestPrintWrite(t *testing.T) {
	t.Parallel()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	cases := map[string]struct {
		reason string
		write  kubetest.Write
		want   string
	}{
		"Create": {
			reason: "Creations are printed whole.",
			write:  kubetest.Write{Verb: "create", Resource: "secrets", Namespace: "ns", Name: "s", Object: secret},
			want:   "api create secrets ns/s|metadata:|  name: s|  namespace: ns",
		},
		"Unchanged": {
			reason: "Superfluous writes catch the eye.",
			write:  kubetest.Write{Verb: "update", Resource: "secrets", Namespace: "ns", Name: "s", Before: secret, Object: secret, Unchanged: true},
			want:   "api update secrets ns/s (no change)",
		},
		"Deleted": {
			reason: "A deletion that removes says so.",
			write:  kubetest.Write{Verb: "delete", Resource: "secrets", Namespace: "ns", Name: "s", Before: secret, Object: secret, Gone: true},
			want:   "api delete secrets ns/s (gone)",
		},
		"Refused": {
			reason: "Errors of the API are printed by reason.",
			write:  kubetest.Write{Verb: "update", Resource: "pods", Subresource: "status", Name: "p", Err: apierrors.NewConflict(schema.GroupResource{}, "p", nil)},
			want:   "api update pods/status p -> Conflict",
		},
		"Broken": {
			reason: "Other errors are printed by text.",
			write:  kubetest.Write{Verb: "create", Resource: "events", Name: "e", Err: errors.New("no route")},
			want:   "api create events e -> no route",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			head, body := (&record{}).print(&entry{write: &tc.write})
			if d := cmp.Diff(tc.want, strings.Join(append([]string{head}, body...), "|")); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestRepeatedEventsShowTheirCount(t *testing.T) {
	t.Parallel()
	event := &corev1.Event{
		Type: "Warning", Reason: "Failed", Message: "again", Count: 3,
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n"}, Source: corev1.EventSource{Component: "c"},
	}
	head, _ := printEvent(&kubetest.Write{Resource: "events", Object: event})
	if want := "event Warning Failed on Node n by c: again (x3)"; head != want {
		t.Errorf("want %q, got %q", want, head)
	}
}

// What belongs together stays in order, whatever came between.
func TestArrangeSortsByStory(t *testing.T) {
	t.Parallel()
	name := "pv-1"
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{Namespace: "ns", Name: "claim"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{VolumeHandle: "h-1"}},
	}}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-1"}}
	va.Spec.Source.PersistentVolumeName = &name
	cluster := kubetest.New(pv, va)
	at := time.Unix(0, 0)
	publish := &entry{at: at, method: "ControllerPublishVolume", request: &csi.ControllerPublishVolumeRequest{VolumeId: "h-1"}}
	status := &entry{at: at, write: &kubetest.Write{Resource: "volumeattachments", Subresource: "status", Name: "va-1", Before: va, Object: va}}
	event := &entry{at: at, write: &kubetest.Write{Resource: "events", Object: &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "claim"}}}}
	other := &entry{at: at.Add(time.Nanosecond), write: &kubetest.Write{Resource: "secrets", Name: "zzz"}}
	create := &entry{at: at, method: "CreateVolume", request: &csi.CreateVolumeRequest{Name: "pvc-9"}}
	capacity := &entry{at: at, method: "GetCapacity", request: &csi.GetCapacityRequest{}}
	later := &entry{at: at.Add(time.Microsecond), method: "CreateVolume", request: &csi.CreateVolumeRequest{Name: "aaa"}}
	ended := &entry{at: at, note: "stopped"}

	entries := []*entry{later, other, ended, event, create, publish, status, capacity}
	arrange(entries, cluster, Kinds{})
	want := []*entry{publish, status, event, capacity, other, create, ended, later}
	names := map[*entry]string{
		publish: "publish", status: "status", event: "event", other: "other", create: "create", capacity: "capacity", later: "later", ended: "ended",
	}
	var got, expected []string
	for i := range entries {
		got, expected = append(got, names[entries[i]]), append(expected, names[want[i]])
	}
	if d := cmp.Diff(expected, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}
