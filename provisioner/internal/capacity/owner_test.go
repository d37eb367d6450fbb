package capacity

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
)

func TestFindOwner(t *testing.T) {
	is := true
	by := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: "Backup", Name: "not-in-control", UID: "x"},
			{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "uid-1", Controller: &is, BlockOwnerDeletion: &is},
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-0", UID: "uid-0", OwnerReferences: by("ReplicaSet", "driver-5d")}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-5d", UID: "uid-1"}}
	set.OwnerReferences = by("Deployment", "driver")
	cases := map[string]struct {
		reason string
		pod    string
		level  int
		want   *metav1.OwnerReference
		err    string
	}{
		"Nobody":     {reason: "A negative level means no owner, and reads nothing.", pod: "no-such-pod", level: -1},
		"Pod":        {reason: "The pod itself.", pod: "driver-0", level: 0, want: &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "driver-0", UID: "uid-0"}},
		"ReplicaSet": {reason: "Its controller, and not another owner; that is not read.", pod: "driver-0", level: 1, want: &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "driver-5d", UID: "uid-1"}},
		"Deployment": {reason: "The controller of that.", pod: "driver-0", level: 2, want: &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "driver", UID: "uid-1"}},
		"NotFound":   {reason: "The owner has to exist to be asked for its own.", pod: "driver-0", level: 3, err: "get Deployment storage/driver"},
		"NoPod":      {reason: "The error names the pod.", pod: "no-such-pod", level: 1, err: "storage/no-such-pod"},
		"Bare":       {reason: "The error says what has no controller.", pod: "bare", level: 2, err: "Pod storage/bare has no controller, 2 more"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "bare"}}
			client := kubeapitest.New(kubeapitest.NewCluster(pod.DeepCopy(), set.DeepCopy(), bare).Client())
			got, err := FindOwner(t.Context(), client, "storage", tc.pod, tc.level)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s\nerror %v, want %q", tc.reason, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nowner (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
