package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

func deleted(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	return m
}

func TestDescribe(t *testing.T) {
	pv := "pvc-1"
	meta := metav1.ObjectMeta{Name: "a"}
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}},
	}}}
	attachment := storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}
	tests := map[string]struct {
		obj  any
		want string
	}{
		"ClaimPending":  {&corev1.PersistentVolumeClaim{ObjectMeta: meta}, "claim a: Pending"},
		"ClaimSelected": {&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"volume.kubernetes.io/selected-node": "n1"}}}, "claim a: Pending, the scheduler selected n1"},
		"ClaimBound": {&corev1.PersistentVolumeClaim{
			ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		}, "claim a: Bound to pvc-1, 64Mi"},
		"ClaimExpanded": {&corev1.PersistentVolumeClaim{
			ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("128Mi")}}},
			Status: corev1.PersistentVolumeClaimStatus{
				Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
				AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending},
			},
		}, "claim a: Bound to pvc-1, 64Mi, asks for 128Mi NodeResizePending"},
		"ClaimDeleted": {&corev1.PersistentVolumeClaim{ObjectMeta: deleted(meta)}, "claim a: being deleted"},
		"Volume": {&corev1.PersistentVolume{ObjectMeta: meta, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}, Spec: corev1.PersistentVolumeSpec{
			NodeAffinity:           affinity,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{VolumeHandle: "h"}},
		}}, "volume a: Bound, handle h, accessible from zone=z1"},
		"Attaching":    {&storagev1.VolumeAttachment{Spec: attachment}, "attachment of pvc-1 to n1: being attached"},
		"Attached":     {&storagev1.VolumeAttachment{Spec: attachment, Status: storagev1.VolumeAttachmentStatus{Attached: true}}, "attachment of pvc-1 to n1: attached"},
		"AttachError":  {&storagev1.VolumeAttachment{Spec: attachment, Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no"}}}, "attachment of pvc-1 to n1: attach error: no"},
		"Detaching":    {&storagev1.VolumeAttachment{ObjectMeta: deleted(meta), Spec: attachment}, "attachment of pvc-1 to n1: being detached"},
		"DetachError":  {&storagev1.VolumeAttachment{ObjectMeta: deleted(meta), Spec: attachment, Status: storagev1.VolumeAttachmentStatus{DetachError: &storagev1.VolumeError{Message: "no"}}}, "attachment of pvc-1 to n1: detach error: no"},
		"PodPending":   {&corev1.Pod{ObjectMeta: meta}, "pod a: Pending"},
		"PodScheduled": {&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}, "pod a: scheduled to n1, waits for its volumes"},
		"PodRunning":   {&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, "pod a: Running on n1"},
		"PodDeleted":   {&corev1.Pod{ObjectMeta: deleted(meta)}, "pod a: being deleted"},
		"Warning":      {&corev1.Event{Type: corev1.EventTypeWarning, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a"}, Reason: "FailedMount", Message: "why"}, "pod a: FailedMount: why"},
		"Normal":       {&corev1.Event{Type: corev1.EventTypeNormal}, ""},
		"Other":        {&corev1.Secret{}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := describe(tc.obj); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNarratorTellsEachStateOnce(t *testing.T) {
	var out bytes.Buffer
	n := &narrator{out: &out, start: time.Now(), last: map[string]string{}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	n.print(pod)
	n.print(pod)
	n.gone(cache.DeletedFinalStateUnknown{Key: "default/a", Obj: pod})
	n.gone(&corev1.Event{})
	n.title("next %d", 2)
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimSpace(line[strings.Index(line, "s  ")+1:]))
	}
	if got, want := strings.Join(lines, "|"), "pod a: Pending|pod a is gone||next 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFindComparesContent(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{"a/hello": "other", "b/c/hello": "mine"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := find(dir, "hello", "mine"); err != nil || got != filepath.Join(dir, "b/c/hello") {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := find(dir, "hello", "nobody's"); err == nil || !strings.Contains(err.Error(), "not a mount") {
		t.Errorf("got %v", err)
	}
}

func TestExamplesAreWellFormed(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) != 6 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := apply.Decode(data)
		if err != nil || len(objects) == 0 {
			t.Errorf("%s: %d objects, %v", file, len(objects), err)
		}
		for _, o := range objects {
			if o.GetName() == "" || o.GetKind() == "" {
				t.Errorf("%s: an object without name or kind", file)
			}
		}
	}
}

func TestShortNamesObjects(t *testing.T) {
	pv := "pvc-1"
	for want, obj := range map[string]any{
		"claim a":                   &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		"volume a":                  &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		"pod a":                     &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		"attachment a":              &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		"attachment of pvc-1 to n1": &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}},
		"*v1.Secret":                &corev1.Secret{},
	} {
		if got := short(obj); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
