package measure

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const auditLog = `{"verb":"patch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments","subresource":"status"}}
{"verb":"patch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments"}}
{"verb":"patch","user":{"username":"system:node:node-1"},"objectRef":{"resource":"nodes","subresource":"status"}}
{"verb":"patch","user":{"username":"system:node:node-2"},"objectRef":{"resource":"nodes","subresource":"status"}}
{"verb":"update","user":{"username":"system:node:node-2"},"objectRef":{"resource":"leases"}}
{"verb":"update","user":{"username":"system:serviceaccount:kube-system:pv-protection-controller"},"objectRef":{"resource":"persistentvolumes"}}
{"verb":"get","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"persistentvolumes"}}
{"verb":"watch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments"}}
{"kind":"Event","verb":"patch","user":{"user{"kind":"Event","verb":"create","user":{"username":"longshore:killed"},"objectRef":{"resource":"events"}}
{"verb":"update","user":{"username":"admin"},"impersonatedUser":{"username":"longshore:measured"},"objectRef":{"resource":"leases"}}
`

func TestCountWrites(t *testing.T) {
	got, err := count(strings.NewReader(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	want := Writes{
		"csi-attacher":             {"patch volumeattachments/status": 1, "patch volumeattachments": 1},
		"csi-node-agent":           {"patch nodes/status": 2},
		"pv-protection-controller": {"update persistentvolumes": 1},
		"killed":                   {"create events": 1},
		"measured":                 {"update leases": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got.Add(want)
	if got.By("csi-attacher") != 4 || len(got.users()) != 5 {
		t.Errorf("got %v", got)
	}
	if table := got.Table(2); !strings.Contains(table, "csi-node-agent") || !strings.Contains(table, "2.00") {
		t.Errorf("table:\n%s", table)
	}
	if _, err := count(strings.NewReader("torn")); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v", err)
	}
}

func TestPercentile(t *testing.T) {
	times := []time.Duration{4, 2, 3, 1}
	for share, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.99: 4, 1: 4} {
		if got := Percentile(times, share); got != want {
			t.Errorf("%v: got %d, want %d", share, got, want)
		}
	}
}

func TestTimesAreFromTheClaimsCreation(t *testing.T) {
	w := &Times{created: map[string]time.Time{}, bound: map[string]time.Time{}, mounted: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	w.see(claim)
	bound := claim.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	w.see(bound)
	w.see(bound)
	w.see(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	b, m := w.Wait(t, 1)
	if len(b) != 1 || len(m) != 1 || b[0] < 0 || m[0] < b[0] {
		t.Errorf("bound %v, mounted %v", b, m)
	}
}
