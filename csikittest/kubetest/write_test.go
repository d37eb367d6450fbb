package kubetest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, f := range change {
		f(pvc)
	}
	return pvc
}

func volume(name string, finalizers ...string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
}

func attachment(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("unexpected error: %v", err)
		}
		return value
	}
}

func TestCreateFillsIn(t *testing.T) {
	t.Parallel()
	client := kubetest.New().Client().PersistentVolumeClaims("ns")
	pvc := must[*corev1.PersistentVolumeClaim](t)(client.Create(t.Context(), claim("a", func(pvc *corev1.PersistentVolumeClaim) {
		pvc.Namespace = ""
		pvc.UID = "mine"
		pvc.Status.Phase = corev1.ClaimBound
	}), metav1.CreateOptions{}))
	if pvc.Namespace != "ns" || pvc.ResourceVersion == "" || pvc.CreationTimestamp.IsZero() {
		t.Errorf("namespace, version and time are filled in, got %+v", pvc.ObjectMeta)
	}
	if pvc.UID == "mine" || pvc.UID == "" {
		t.Errorf("the server makes the UID, got %q", pvc.UID)
	}
	if pvc.Status.Phase != corev1.ClaimPending {
		t.Errorf("creation resets the status, got phase %q", pvc.Status.Phase)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason    string
		namespace string
		obj       *corev1.PersistentVolumeClaim
		is        func(error) bool
	}{
		"Exists":         {reason: "Names are unique.", namespace: "ns", obj: claim("there"), is: apierrors.IsAlreadyExists},
		"WithoutName":    {reason: "A name is needed.", namespace: "ns", obj: claim(""), is: apierrors.IsInvalid},
		"OtherNamespace": {reason: "The namespaces must agree.", namespace: "other", obj: claim("a"), is: apierrors.IsBadRequest},
		"NoNamespace":    {reason: "An object has one namespace.", namespace: "", obj: claim("a"), is: apierrors.IsBadRequest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := kubetest.New(claim("there")).Client()
			if _, err := client.PersistentVolumeClaims(tc.namespace).Create(t.Context(), tc.obj, metav1.CreateOptions{}); !tc.is(err) {
				t.Errorf("%s: got %v", tc.reason, err)
			}
		})
	}
}

func TestNamesAndUIDsAreCounted(t *testing.T) {
	t.Parallel()
	names := func() (names []string) {
		client := kubetest.New().Client().Secrets("ns")
		for range 2 {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "token-"}}
			stored := must[*corev1.Secret](t)(client.Create(t.Context(), secret, metav1.CreateOptions{}))
			names = append(names, stored.Name, string(stored.UID))
		}
		return names
	}
	first := names()
	if first[0] == first[2] || first[1] == first[3] {
		t.Errorf("names and UIDs are unique, got %q", first)
	}
	if !strings.HasPrefix(first[0], "token-") {
		t.Errorf("names begin with generateName, got %q", first[0])
	}
	if d := cmp.Diff(first, names()); d != "" {
		t.Errorf("every run is the same (-first +second):\n%s", d)
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		is     func(error) bool
		want   func(*corev1.PersistentVolumeClaim) bool
	}{
		"Spec": {
			reason: "The spec is written.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.Spec.VolumeName = "pv" },
			want: func(pvc *corev1.PersistentVolumeClaim) bool { return pvc.Spec.VolumeName == "pv" },
		},
		"StatusIgnored": {
			reason: "The status has a subresource of its own.", change: func(pvc *corev1.PersistentVolumeClaim) {
				pvc.Status.Phase, pvc.Labels = corev1.ClaimLost, map[string]string{"a": "b"}
			},
			want: func(pvc *corev1.PersistentVolumeClaim) bool {
				return pvc.Status.Phase == corev1.ClaimBound && pvc.Labels["a"] == "b"
			},
		},
		"Stale":         {reason: "Old versions conflict.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.ResourceVersion = "1000" }, is: apierrors.IsConflict},
		"OtherObject":   {reason: "Another UID conflicts.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.UID = "other" }, is: apierrors.IsConflict},
		"Missing":       {reason: "Updates do not create.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.Name = "b" }, is: apierrors.IsNotFound},
		"Unconditional": {reason: "No version means whatever is there.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.ResourceVersion = "" }},
		"DeletionTime": {
			reason: "Clients cannot write the deletionTimestamp.", change: func(pvc *corev1.PersistentVolumeClaim) { pvc.DeletionTimestamp = ptr.To(metav1.Now()) },
			is: apierrors.IsInvalid,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := kubetest.New(claim("a", func(pvc *corev1.PersistentVolumeClaim) { pvc.Status.Phase = corev1.ClaimBound })).Client().PersistentVolumeClaims("ns")
			pvc := must[*corev1.PersistentVolumeClaim](t)(client.Get(t.Context(), "a", metav1.GetOptions{}))
			tc.change(pvc)
			got, err := client.Update(t.Context(), pvc, metav1.UpdateOptions{})
			if tc.is != nil {
				if !tc.is(err) {
					t.Errorf("%s: got %v", tc.reason, err)
				}
				return
			}
			if err != nil || (tc.want != nil && !tc.want(got)) {
				t.Errorf("%s: got %+v, %v", tc.reason, got, err)
			}
		})
	}
}

func TestUpdateNeedsAVersionWhereTheServerSaysSo(t *testing.T) {
	t.Parallel()
	client := kubetest.New(attachment("a"), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}}).Client()
	if _, err := client.VolumeAttachments().Update(t.Context(), attachment("a"), metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("attachments cannot be updated without a version, got %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}
	if _, err := client.Leases("ns").Update(t.Context(), lease, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("nor can leases, got %v", err)
	}
}

func TestUpdateStatus(t *testing.T) {
	t.Parallel()
	client := kubetest.New(claim("a"), attachment("va"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}).Client()
	pvc := claim("a", func(pvc *corev1.PersistentVolumeClaim) {
		pvc.Spec.VolumeName, pvc.Status.Phase = "ignored", corev1.ClaimBound
		pvc.Annotations = map[string]string{"kept": "yes"}
	})
	got := must[*corev1.PersistentVolumeClaim](t)(client.PersistentVolumeClaims("ns").UpdateStatus(t.Context(), pvc, metav1.UpdateOptions{}))
	if got.Spec.VolumeName != "" || got.Status.Phase != corev1.ClaimBound || got.Annotations["kept"] != "yes" {
		t.Errorf("a claim's status comes with its metadata and without its spec, got %+v", got)
	}
	va := must[*storagev1.VolumeAttachment](t)(client.VolumeAttachments().Get(t.Context(), "va", metav1.GetOptions{}))
	va.Status.Attached, va.Finalizers = true, []string{"ignored"}
	va = must[*storagev1.VolumeAttachment](t)(client.VolumeAttachments().UpdateStatus(t.Context(), va, metav1.UpdateOptions{}))
	if !va.Status.Attached || len(va.Finalizers) != 0 {
		t.Errorf("an attachment's status comes without its metadata, got %+v", va)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	if _, err := client.Secrets("ns").UpdateStatus(t.Context(), secret, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a secret has no status, got %v", err)
	}
}

// TestStatusOfACSINode: its subresource is that of Kubernetes 1.37.
func TestStatusOfACSINode(t *testing.T) {
	t.Parallel()
	client := kubetest.New().Client().CSINodes()
	health := func(reason string) []storagev1.StorageHealth {
		return []storagev1.StorageHealth{{Name: "d", HealthConditions: []storagev1.StorageHealthCondition{{Status: storagev1.StorageDegraded, Reason: reason}}}}
	}
	drivers := func(names ...string) (all []storagev1.CSINodeDriver) {
		for _, name := range names {
			all = append(all, storagev1.CSINodeDriver{Name: name, NodeID: "n"})
		}
		return all
	}
	want := func(step string, got *storagev1.CSINode, driver, reason string) {
		t.Helper()
		stored := ""
		for _, h := range got.Status.StorageHealth {
			stored += h.HealthConditions[0].Reason
		}
		if len(got.Spec.Drivers) != 1 || got.Spec.Drivers[0].Name != driver || stored != reason || len(got.Labels) != 0 {
			t.Errorf("%s: want driver %q, reason %q and no labels, got %+v", step, driver, reason, got)
		}
	}
	node := must[*storagev1.CSINode](t)(client.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: drivers("d")},
		Status: storagev1.CSINodeStatus{StorageHealth: health("Ignored")},
	}, metav1.CreateOptions{}))
	want("creation resets the status", node, "d", "")
	node.Status.StorageHealth, node.Spec.Drivers, node.Labels = health("Slow"), drivers("ignored"), map[string]string{"ignored": "yes"}
	node = must[*storagev1.CSINode](t)(client.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	want("the status comes without spec and metadata", node, "d", "Slow")
	node.Status.StorageHealth, node.Spec.Drivers = health("Ignored"), drivers("e")
	node = must[*storagev1.CSINode](t)(client.Update(t.Context(), node, metav1.UpdateOptions{}))
	want("the spec comes without status", node, "e", "Slow")
	patch := []byte(`{"spec":{"drivers":[]},"status":{"storageHealth":null}}`)
	node = must[*storagev1.CSINode](t)(client.Patch(t.Context(), "n", types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
	want("a patch of the status, too", node, "e", "")
	node.ResourceVersion = "1"
	if _, err := client.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the status of an older version cannot be written, got %v", err)
	}
}

func TestWritesThatChangeNothingStoreNothing(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv"))
	client := cluster.Client().PersistentVolumes()
	before := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	after := must[*corev1.PersistentVolume](t)(client.Update(t.Context(), before, metav1.UpdateOptions{}))
	if before.ResourceVersion != after.ResourceVersion {
		t.Errorf("the version stays %s, got %s", before.ResourceVersion, after.ResourceVersion)
	}
	if writes := cluster.Writes(); len(writes) != 1 || !writes[0].Unchanged {
		t.Errorf("the write is recorded as superfluous, got %+v", writes)
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason       string
		kind         types.PatchType
		patch        string
		subresources []string
		is           func(error) bool
		want         []string // finalizers
	}{
		"Merge":          {reason: "Merge patches replace lists.", kind: types.MergePatchType, patch: `{"metadata":{"finalizers":["b"]}}`, want: []string{"b"}},
		"Strategic":      {reason: "Strategic patches merge the finalizers.", kind: types.StrategicMergePatchType, patch: `{"metadata":{"finalizers":["b"]}}`, want: []string{"b", "a"}},
		"JSON":           {reason: "JSON patches append.", kind: types.JSONPatchType, patch: `[{"op":"add","path":"/metadata/finalizers/-","value":"b"}]`, want: []string{"a", "b"}},
		"JSONTest":       {reason: "A failed test is Invalid.", kind: types.JSONPatchType, patch: `[{"op":"test","path":"/metadata/finalizers/0","value":"x"}]`, is: apierrors.IsInvalid},
		"JSONPath":       {reason: "A path that is not there is Invalid.", kind: types.JSONPatchType, patch: `[{"op":"remove","path":"/spec/x/y"}]`, is: apierrors.IsInvalid},
		"JSONNonsense":   {reason: "A patch must be one.", kind: types.JSONPatchType, patch: `{`, is: apierrors.IsBadRequest},
		"MergeNonsense":  {reason: "A patch must be one.", kind: types.MergePatchType, patch: `[`, is: apierrors.IsBadRequest},
		"WrongType":      {reason: "The result must be an object of the kind.", kind: types.MergePatchType, patch: `{"metadata":{"finalizers":"b"}}`, is: apierrors.IsInvalid},
		"Stale":          {reason: "A version in the patch is checked.", kind: types.MergePatchType, patch: `{"metadata":{"resourceVersion":"999"}}`, is: apierrors.IsConflict},
		"OtherUID":       {reason: "A UID in the patch is checked.", kind: types.MergePatchType, patch: `{"metadata":{"uid":"x"}}`, is: apierrors.IsInvalid},
		"Rename":         {reason: "Names stay.", kind: types.MergePatchType, patch: `{"metadata":{"name":"x"}}`, is: apierrors.IsBadRequest},
		"Apply":          {reason: "Server-side apply is not there.", kind: types.ApplyPatchType, patch: `{}`, is: apierrors.IsUnsupportedMediaType},
		"Status":         {reason: "The status subresource leaves the spec alone.", kind: types.MergePatchType, patch: `{"spec":{"nodeName":"x"},"status":{"attached":true}}`, subresources: []string{"status"}, want: []string{"a"}},
		"OtherSubobject": {reason: "Other subresources are not there.", kind: types.MergePatchType, patch: `{"spec":{"nodeName":"x"}}`, subresources: []string{"scale"}, is: apierrors.IsNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			va := attachment("va")
			va.Finalizers = []string{"a"}
			client := kubetest.New(va).Client().VolumeAttachments()
			got, err := client.Patch(t.Context(), "va", tc.kind, []byte(tc.patch), metav1.PatchOptions{}, tc.subresources...)
			if tc.is != nil {
				if !tc.is(err) {
					t.Errorf("%s: got %v", tc.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, got.Finalizers); d != "" || got.Spec.NodeName != "" || got.Status.Attached != (len(tc.subresources) > 0) {
				t.Errorf("%s: finalizers (-want +got):\n%s\n%+v", tc.reason, d, got)
			}
		})
	}
	client := kubetest.New().Client().VolumeAttachments()
	if _, err := client.Patch(t.Context(), "va", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what is not there cannot be patched, got %v", err)
	}
}

func TestDeleteHonoursFinalizers(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv", "a", "b"))
	client := cluster.Client().PersistentVolumes()
	remove := func() {
		if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	pv := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	if pv.DeletionTimestamp == nil {
		t.Fatal("an object with finalizers is marked")
	}
	remove() // again: nothing changes
	if writes := cluster.Writes(); !writes[1].Unchanged || writes[1].Gone {
		t.Errorf("the second deletion changes nothing, got %+v", writes[1])
	}
	for i, finalizers := range [][]string{{"b"}, nil} {
		pv.Finalizers = finalizers
		pv = must[*corev1.PersistentVolume](t)(client.Update(t.Context(), pv, metav1.UpdateOptions{}))
		_, err := client.Get(t.Context(), "pv", metav1.GetOptions{})
		if gone := apierrors.IsNotFound(err); gone != (i == 1) {
			t.Errorf("with finalizers %q: gone is %t", finalizers, gone)
		}
	}
	if writes := cluster.Writes(); !writes[3].Gone || writes[2].Gone {
		t.Errorf("the last update has removed it, got %+v", writes)
	}
}

func TestDeletePreconditions(t *testing.T) {
	t.Parallel()
	client := kubetest.New(volume("pv")).Client().PersistentVolumes()
	pv := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	for _, p := range []metav1.Preconditions{{UID: ptr.To(types.UID("x"))}, {ResourceVersion: ptr.To("999")}} {
		if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{Preconditions: &p}); !apierrors.IsConflict(err) {
			t.Errorf("another object is not deleted, got %v", err)
		}
	}
	right := metav1.Preconditions{UID: &pv.UID, ResourceVersion: &pv.ResourceVersion}
	if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{Preconditions: &right}); err != nil {
		t.Errorf("this one is, got %v", err)
	}
	if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("but once, got %v", err)
	}
}

func TestPodsOnNodesGoWithGrace(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		change func(*corev1.Pod)
		grace  *int64
		stays  bool
	}{
		"Running":     {reason: "The node agent ends it.", change: func(*corev1.Pod) {}, stays: true},
		"OwnGrace":    {reason: "A pod may say how long.", change: func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0) }},
		"Forced":      {reason: "Zero seconds are none.", change: func(*corev1.Pod) {}, grace: ptr.To[int64](0)},
		"Unscheduled": {reason: "There is nobody to wait for.", change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"Done":        {reason: "There is nothing to end.", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}
			tc.change(pod)
			client := kubetest.New(pod).Client().Pods("ns")
			if err := client.Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: tc.grace}); err != nil {
				t.Fatal(err)
			}
			got, err := client.Get(t.Context(), "p", metav1.GetOptions{})
			if stays := err == nil && got.DeletionTimestamp != nil; stays != tc.stays {
				t.Fatalf("%s: stays is %t (%v)", tc.reason, stays, err)
			}
			if !tc.stays {
				return
			}
			got.Status.Phase = corev1.PodFailed
			must[*corev1.Pod](t)(client.UpdateStatus(t.Context(), got, metav1.UpdateOptions{}))
			if err := client.Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the agent's deletion removes it, got %v", err)
			}
		})
	}
}

func TestObjectsAreCopied(t *testing.T) {
	t.Parallel()
	mine := claim("a", func(pvc *corev1.PersistentVolumeClaim) { pvc.Labels = map[string]string{"k": "v"} })
	cluster := kubetest.New(mine)
	mine.Labels["k"] = "changed"
	client := cluster.Client().PersistentVolumeClaims("ns")
	got := must[*corev1.PersistentVolumeClaim](t)(client.Get(t.Context(), "a", metav1.GetOptions{}))
	got.Labels["k"] = "changed too"
	again := must[*corev1.PersistentVolumeClaim](t)(client.Get(t.Context(), "a", metav1.GetOptions{}))
	if again.Labels["k"] != "v" {
		t.Errorf("what a caller does to its copy stays there, got %q", again.Labels["k"])
	}
}

func TestTimesLoseTheirFractions(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Unix(100, 5))
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, FirstTimestamp: at}
	got := must[*corev1.Event](t)(kubetest.New().Client().Events("ns").Create(t.Context(), event, metav1.CreateOptions{}))
	if got.FirstTimestamp.Nanosecond() != 0 {
		t.Errorf("as on the wire, got %v", got.FirstTimestamp.Time)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	cases := map[string]struct {
		reason string
		fault  kubetest.Fault
		failed []bool // of three requests to create
		stored int
	}{
		"Always":    {reason: "Zero times is all.", fault: kubetest.Fault{Err: boom}, failed: []bool{true, true, true}},
		"Twice":     {reason: "Times are counted.", fault: kubetest.Fault{Verb: "create", Err: boom, Times: 2}, failed: []bool{true, true, false}, stored: 1},
		"After":     {reason: "The effect may happen first.", fault: kubetest.Fault{Err: boom, After: true, Times: 1}, failed: []bool{true, true, true}, stored: 1},
		"OtherVerb": {reason: "The verb must match.", fault: kubetest.Fault{Verb: "update", Err: boom}, failed: []bool{false, true, true}, stored: 1},
		"OtherKind": {reason: "The resource must match.", fault: kubetest.Fault{Resource: "pods", Err: boom}, failed: []bool{false, true, true}, stored: 1},
		"OtherName": {reason: "The name must match.", fault: kubetest.Fault{Name: "b", Err: boom}, failed: []bool{false, true, true}, stored: 1},
		"Namespace": {reason: "The namespace must match.", fault: kubetest.Fault{Namespace: "x", Err: boom}, failed: []bool{false, true, true}, stored: 1},
		"Status":    {reason: "A subresource is something else.", fault: kubetest.Fault{Resource: "secrets/status", Err: boom}, failed: []bool{false, true, true}, stored: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kubetest.New()
			cluster.Inject(tc.fault)
			var failed []bool
			for range tc.failed {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
				_, err := cluster.Client().Secrets("ns").Create(t.Context(), secret, metav1.CreateOptions{})
				failed = append(failed, err != nil)
			}
			if d := cmp.Diff(tc.failed, failed); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if got := len(cluster.Objects("secrets")); got != tc.stored {
				t.Errorf("%s: want %d stored, got %d", tc.reason, tc.stored, got)
			}
			if got := len(cluster.Writes()); got != len(tc.failed) {
				t.Errorf("every request is recorded, want %d, got %d", len(tc.failed), got)
			}
		})
	}
}

func TestHealAndFail(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv"))
	cluster.Fail("get", "persistentvolumes", apierrors.NewServiceUnavailable("x"), 0)
	client := cluster.Client().PersistentVolumes()
	if _, err := client.Get(t.Context(), "pv", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("want the injected error, got %v", err)
	}
	cluster.Heal()
	must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	if got := len(cluster.Writes()); got != 0 {
		t.Errorf("reads are not writes, got %d", got)
	}
}

func TestSlowRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(volume("pv"))
		client := cluster.Client().PersistentVolumes()
		cluster.Inject(kubetest.Fault{Verb: "get", Delay: 3 * time.Second, Times: 2})
		began := time.Now()
		must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the request takes 3s, took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Get(ctx, "pv", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the deadline ends it, got %v", err)
		}
		cluster.Inject(kubetest.Fault{Verb: "get", Hang: true})
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := client.Get(ctx, "pv", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("only the deadline ends it, got %v", err)
		}
		if _, err := client.Get(ctx, "pv", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no request without time, got %v", err)
		}
	})
}

func TestCutSession(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"Before": false, "After": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kubetest.New()
			session := cluster.NewSession()
			cluster.Inject(kubetest.Fault{Verb: "create", Do: session.Cut, After: after, Times: 1})
			_, err := session.Client().PersistentVolumes().Create(t.Context(), volume("pv"), metav1.CreateOptions{})
			if !errors.Is(err, kubetest.ErrCut) {
				t.Errorf("no answer comes back, got %v", err)
			}
			if stored := len(cluster.Objects("persistentvolumes")) == 1; stored != after {
				t.Errorf("cut %s the effect: stored is %t", name, stored)
			}
			if _, err := session.Client().PersistentVolumes().List(t.Context(), metav1.ListOptions{}); !errors.Is(err, kubetest.ErrCut) {
				t.Errorf("nothing comes through any more, got %v", err)
			}
			if _, err := cluster.Client().PersistentVolumes().List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("others are not concerned, got %v", err)
			}
		})
	}
}

func TestWritesAreObserved(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv"))
	var seen []string
	cluster.Observe(func(w kubetest.Write) { seen = append(seen, w.Verb+" "+w.Resource+" "+w.Name) })
	client := cluster.Client().PersistentVolumes()
	must[*corev1.PersistentVolume](t)(client.Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: "g-"}}, metav1.CreateOptions{}))
	if err := client.Delete(t.Context(), "none", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("want not found, got %v", err)
	}
	want := []string{"create persistentvolumes g-00002", "delete persistentvolumes none"}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("observed (-want +got):\n%s", d)
	}
	if got := cluster.Writes(); len(got) != 2 || got[1].Err == nil || got[1].Object != nil {
		t.Errorf("the error is recorded, got %+v", got)
	}
	cluster.ResetWrites()
	if got := cluster.Writes(); len(got) != 0 {
		t.Errorf("forgotten, got %+v", got)
	}
}

func TestDryRunIsRefused(t *testing.T) {
	t.Parallel()
	_, err := kubetest.New().Client().PersistentVolumes().Create(t.Context(), volume("pv"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("better refused than done, got %v", err)
	}
}
