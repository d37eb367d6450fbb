package source

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// fitClaim returns a claim and its volume that may be cloned.
func fitClaim() origin {
	claim, pv := fixtures.Claim(), fixtures.PV()
	claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
	return origin{claim: claim, volume: pv}
}

// fitSnapshot returns a snapshot and its content that may be restored.
func fitSnapshot() origin {
	name, handle, ready, size := "content", "snap-1", true, resource.MustParse("1Gi")
	mode := corev1.PersistentVolumeFilesystem
	return origin{
		snapshot: &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monday", UID: "s1"},
			Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &name, ReadyToUse: &ready, RestoreSize: &size},
		},
		content: &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: driver, SourceVolumeMode: &mode,
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "team", Name: "monday", UID: "s1"},
			},
			Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle},
		},
	}
}

// leaveObject marks an object as being deleted, with or without the finalizer.
func leaveObject(object metav1.Object, finalizers ...string) {
	now := metav1.Now()
	object.SetDeletionTimestamp(&now)
	object.SetFinalizers(finalizers)
}

// checkCase is one thing that may be wrong with a source.
type checkCase struct {
	reason string
	change func(w *check, o *origin)
	// want is part of the error, empty for none.
	want string
	// elsewhere says that another node could do it, blocked that the claim must change.
	elsewhere, blocked bool
}

// checkAll runs the cases on what fit returns.
func checkAll(t *testing.T, fit func() origin, cases map[string]checkCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, w := fit(), check{driver: driver, claim: fixtures.Claim()}
			tc.change(&w, &o)
			err := w.check(o)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%s\nerror %v, want %q", tc.reason, err, tc.want)
			}
			var elsewhere ElsewhereError
			if got := errors.As(err, &elsewhere); got != tc.elsewhere {
				t.Errorf("%s\nanother node could do it: %v, want %v", tc.reason, got, tc.elsewhere)
			}
			var blocked volume.BlockedError
			if got := errors.As(err, &blocked); got != tc.blocked {
				t.Errorf("%s\nthe claim must change: %v, want %v", tc.reason, got, tc.blocked)
			}
		})
	}
}

func TestCheckClone(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	file := corev1.PersistentVolumeFilesystem
	checkAll(t, fitClaim, map[string]checkCase{
		"Fit":          {reason: "A bound claim of the driver.", change: func(*check, *origin) {}},
		"Deleting":     {reason: "Nothing is begun from what goes.", change: func(_ *check, o *origin) { leaveObject(o.claim, view.FinalizerClone) }, want: "being deleted"},
		"DeletingKept": {reason: "What was begun is finished.", change: func(w *check, o *origin) { w.begun = true; leaveObject(o.claim, view.FinalizerClone) }},
		"DeletingFree": {reason: "Nothing keeps it until the copy is made.", change: func(w *check, o *origin) { w.begun = true; leaveObject(o.claim, "other") }, want: "being deleted"},
		"Pending":      {reason: "There is no volume.", change: func(_ *check, o *origin) { o.claim.Status.Phase = corev1.ClaimPending }, want: `"Pending"`},
		"Lost":         {reason: "There is none any more.", change: func(_ *check, o *origin) { o.claim.Status.Phase = corev1.ClaimLost }, want: `"Lost"`},
		"NoVolume":     {reason: "A status alone binds nothing.", change: func(_ *check, o *origin) { o.claim.Spec.VolumeName = "" }, want: "not bound"},
		"VolumeGone":   {reason: "The object is gone.", change: func(_ *check, o *origin) { o.volume = nil }, want: `"pvc-uid-1" does not exist`},
		"Smaller": {reason: "The copy would not fit.", change: func(_ *check, o *origin) {
			o.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}, want: "2Gi"},
		"Larger": {reason: "A copy may be larger.", change: func(_ *check, o *origin) {
			o.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Mi")
		}},
		"NoSize":      {reason: "The claim itself is wrong.", change: func(w *check, _ *origin) { w.claim.Spec.Resources.Requests = nil }, want: "must be set", blocked: true},
		"NoCSI":       {reason: "The volume has no driver.", change: func(_ *check, o *origin) { o.volume.Spec.CSI = nil }, want: "not of CSI driver"},
		"OtherDriver": {reason: "It has another.", change: func(_ *check, o *origin) { o.volume.Spec.CSI.Driver = "other" }, want: "not of CSI driver"},
		"Unclaimed":   {reason: "The volume has no claim.", change: func(_ *check, o *origin) { o.volume.Spec.ClaimRef = nil }, want: "not bound to it"},
		"OtherClaim":  {reason: "It is of a former claim of the name.", change: func(_ *check, o *origin) { o.volume.Spec.ClaimRef.UID = "uid-0" }, want: "not bound to it"},
		"Released":    {reason: "Its data may go any moment.", change: func(_ *check, o *origin) { o.volume.Status.Phase = corev1.VolumeReleased }, want: "not bound to it"},
		"Block":       {reason: "A file system is no device.", change: func(w *check, _ *origin) { w.claim.Spec.VolumeMode = &block }, want: "Block"},
		"SameMode":    {reason: "Filesystem is the default.", change: func(_ *check, o *origin) { o.volume.Spec.VolumeMode = &file }},
		"OtherNode": {reason: "The own node does not have it.", change: func(w *check, o *origin) {
			w.node, o.volume.Spec.NodeAffinity = newNode(), affinity(corev1.NodeSelectorOpIn, "n2")
		}, want: `from node "n1"`, elsewhere: true},
	})
}

func TestCheckRestore(t *testing.T) {
	block, not, empty, other := corev1.PersistentVolumeBlock, false, "", "other"
	larger := resource.MustParse("2Gi")
	checkAll(t, fitSnapshot, map[string]checkCase{
		"Fit":          {reason: "A snapshot that is ready.", change: func(*check, *origin) {}},
		"Deleting":     {reason: "Nothing is begun from what goes.", change: func(_ *check, o *origin) { leaveObject(o.snapshot, view.FinalizerRestore) }, want: "being deleted"},
		"DeletingKept": {reason: "What was begun is finished.", change: func(w *check, o *origin) { w.begun = true; leaveObject(o.snapshot, view.FinalizerRestore) }},
		"New":          {reason: "Nobody has looked at it yet.", change: func(_ *check, o *origin) { o.snapshot.Status = nil }, want: "not bound"},
		"Unbound":      {reason: "It has no content.", change: func(_ *check, o *origin) { o.snapshot.Status.BoundVolumeSnapshotContentName = nil }, want: "not bound"},
		"ContentGone":  {reason: "It has none any more.", change: func(_ *check, o *origin) { o.content = nil }, want: `"content" does not exist`},
		"OtherUID":     {reason: "The content is of a former snapshot of the name.", change: func(_ *check, o *origin) { o.content.Spec.VolumeSnapshotRef.UID = "s0" }, want: "not bound to it"},
		"OtherName":    {reason: "The content is of another.", change: func(_ *check, o *origin) { o.content.Spec.VolumeSnapshotRef.Name = other }, want: "not bound to it"},
		"OtherSpace":   {reason: "The content is of another.", change: func(_ *check, o *origin) { o.content.Spec.VolumeSnapshotRef.Namespace = other }, want: "not bound to it"},
		"OtherDriver":  {reason: "Another driver has it.", change: func(_ *check, o *origin) { o.content.Spec.Driver = other }, want: `"other"`},
		"NotReady":     {reason: "It is being taken.", change: func(_ *check, o *origin) { o.snapshot.Status.ReadyToUse = &not }, want: "not ready"},
		"UnknownReady": {reason: "Nobody has said so.", change: func(_ *check, o *origin) { o.snapshot.Status.ReadyToUse = nil }, want: "not ready"},
		"NoStatus":     {reason: "The driver has said nothing.", change: func(_ *check, o *origin) { o.content.Status = nil }, want: "no handle"},
		"NoHandle":     {reason: "The driver has said nothing.", change: func(_ *check, o *origin) { o.content.Status.SnapshotHandle = nil }, want: "no handle"},
		"EmptyHandle":  {reason: "Nothing has that name.", change: func(_ *check, o *origin) { o.content.Status.SnapshotHandle = &empty }, want: "no handle"},
		"Smaller":      {reason: "The content would not fit.", change: func(_ *check, o *origin) { o.snapshot.Status.RestoreSize = &larger }, want: "2Gi"},
		"UnknownSize":  {reason: "The driver will know.", change: func(_ *check, o *origin) { o.snapshot.Status.RestoreSize = nil }},
		"NoSize":       {reason: "The claim itself is wrong.", change: func(w *check, _ *origin) { w.claim.Spec.Resources.Requests = nil }, want: "must be set", blocked: true},
		"Mode":         {reason: "A file system is no device.", change: func(w *check, _ *origin) { w.claim.Spec.VolumeMode = &block }, want: snapshotapi.AnnAllowVolumeModeChange},
		"ModeBack":     {reason: "A device is no file system.", change: func(_ *check, o *origin) { o.content.Spec.SourceVolumeMode = &block }, want: snapshotapi.AnnAllowVolumeModeChange},
		"ModeUnknown": {reason: "Snapshots of old do not say.", change: func(w *check, o *origin) {
			w.claim.Spec.VolumeMode, o.content.Spec.SourceVolumeMode = &block, nil
		}},
		"ModeAllowed": {reason: "The administrator has looked at it.", change: func(w *check, o *origin) {
			w.claim.Spec.VolumeMode = &block
			o.content.Annotations = map[string]string{snapshotapi.AnnAllowVolumeModeChange: "true"}
		}},
		"ModeForbidden": {reason: "The annotation has a value.", change: func(w *check, o *origin) {
			w.claim.Spec.VolumeMode = &block
			o.content.Annotations = map[string]string{snapshotapi.AnnAllowVolumeModeChange: "false"}
		}, want: snapshotapi.AnnAllowVolumeModeChange},
		"ModeNonsense": {reason: "What nobody understands allows nothing.", change: func(w *check, o *origin) {
			w.claim.Spec.VolumeMode = &block
			o.content.Annotations = map[string]string{snapshotapi.AnnAllowVolumeModeChange: "maybe"}
		}, want: snapshotapi.AnnAllowVolumeModeChange},
		"ModeOff": {reason: "Nobody asks.", change: func(w *check, _ *origin) { w.claim.Spec.VolumeMode, w.convert = &block, true }},
		"OtherNode": {reason: "The own node does not have it.", change: func(w *check, o *origin) {
			w.node, o.content.Labels = newNode(), map[string]string{snapshotapi.LabelManagedBy: "n2"}
		}, want: `on node "n2"`, elsewhere: true},
		"OwnNode": {reason: "It has.", change: func(w *check, o *origin) {
			w.node, o.content.Labels = newNode(), map[string]string{snapshotapi.LabelManagedBy: "n1"}
		}},
		"OwnLongNode": {reason: "The label of a long name has a hash of it.", change: func(w *check, o *origin) {
			w.node = newNode()
			w.node.Name = strings.Repeat("n", 70)
			o.content.Labels = map[string]string{snapshotapi.LabelManagedBy: snapshotapi.NodeLabel(w.node.Name)}
		}},
		"AnyNode": {reason: "Nobody says where it is.", change: func(w *check, _ *origin) { w.node = newNode() }},
		"WholeWorld": {reason: "An instance for the cluster has all nodes.", change: func(_ *check, o *origin) {
			o.content.Labels = map[string]string{snapshotapi.LabelManagedBy: "n2"}
		}},
	})
}

// TestSourceAccess looks at what allows claims of namespace team to use a source in namespace store.
func TestSourceAccess(t *testing.T) {
	claims := kubeapi.ReferenceGrantFrom{Kind: view.KindClaim, Namespace: "team"}
	anyClaim, oneClaim := kubeapi.ReferenceGrantTo{Kind: view.KindClaim}, kubeapi.ReferenceGrantTo{Kind: view.KindClaim, Name: "data"}
	anySnapshot := kubeapi.ReferenceGrantTo{Group: snapshotv1.GroupName, Kind: view.KindSnapshot}
	grant := func(from kubeapi.ReferenceGrantFrom, to ...kubeapi.ReferenceGrantTo) []*kubeapi.ReferenceGrant {
		return []*kubeapi.ReferenceGrant{{}, {Spec: kubeapi.ReferenceGrantSpec{From: []kubeapi.ReferenceGrantFrom{{Group: "apps", Kind: "Deployment"}, from}, To: to}}}
	}
	absent := apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{Group: kubeapi.GatewayGroup, Resource: "referencegrants"}, "", "404 page not found", 0, true)
	cases := map[string]struct {
		reason string
		access access
		kind   string
		// want is part of the error, empty for none; blocked says that only a change of claims or grants can help.
		want    string
		blocked bool
	}{
		"GateOff":        {reason: "A grant does not replace the gate.", access: access{grants: grant(claims, anyClaim)}, want: "CrossNamespaceVolumeDataSource=true", blocked: true},
		"Kind":           {reason: "All claims are allowed.", access: access{enabled: true, grants: grant(claims, anyClaim)}},
		"Name":           {reason: "This claim is allowed.", access: access{enabled: true, grants: grant(claims, anySnapshot, oneClaim)}},
		"OtherName":      {reason: "Another one is.", access: access{enabled: true, grants: grant(claims, kubeapi.ReferenceGrantTo{Kind: view.KindClaim, Name: "other"})}, want: `"team"`, blocked: true},
		"OtherKind":      {reason: "Snapshots are.", access: access{enabled: true, grants: grant(claims, anySnapshot)}, want: "no ReferenceGrant", blocked: true},
		"OtherGroup":     {reason: "The kind of another group is.", access: access{enabled: true, grants: grant(claims, kubeapi.ReferenceGrantTo{Group: "example.com", Kind: view.KindClaim})}, want: "no ReferenceGrant", blocked: true},
		"OtherNamespace": {reason: "Claims of another namespace are.", access: access{enabled: true, grants: grant(kubeapi.ReferenceGrantFrom{Kind: view.KindClaim, Namespace: "else"}, anyClaim)}, want: "no ReferenceGrant", blocked: true},
		"OtherReferrer":  {reason: "Objects of another kind are.", access: access{enabled: true, grants: grant(kubeapi.ReferenceGrantFrom{Kind: "Pod", Namespace: "team"}, anyClaim)}, want: "no ReferenceGrant", blocked: true},
		"ReferrerGroup":  {reason: "The kind of another group is.", access: access{enabled: true, grants: grant(kubeapi.ReferenceGrantFrom{Group: "example.com", Kind: view.KindClaim, Namespace: "team"}, anyClaim)}, want: "no ReferenceGrant", blocked: true},
		"Snapshot":       {reason: "All snapshots are allowed.", kind: view.KindSnapshot, access: access{enabled: true, grants: grant(claims, anySnapshot)}},
		"NotSnapshot":    {reason: "Claims are.", kind: view.KindSnapshot, access: access{enabled: true, grants: grant(claims, anyClaim)}, want: "no ReferenceGrant", blocked: true},
		"None":           {reason: "Nothing is.", access: access{enabled: true}, want: `no ReferenceGrant in namespace "store"`, blocked: true},
		"Unwatched":      {reason: "Repetition finds a grant that comes later.", access: access{enabled: true, unwatched: true}, want: `no ReferenceGrant in namespace "store"`},
		"Absent":         {reason: "They may be installed later.", access: access{enabled: true, unknown: absent}, want: "CustomResourceDefinition of gateway.networking.k8s.io"},
		"Unknown":        {reason: "They may be read later.", access: access{enabled: true, unknown: errors.New("forbidden")}, want: "cannot be read: forbidden"},
		"KnownInPart":    {reason: "One is enough.", access: access{enabled: true, unknown: errors.New("not complete"), grants: grant(claims, anyClaim)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.access.check("team", volume.SourceRef{Kind: cmp.Or(tc.kind, view.KindClaim), Namespace: "store", Name: "data"})
			var blocked volume.BlockedError
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) || errors.As(err, &blocked) != tc.blocked {
				t.Errorf("%s\nerror %v (blocked: %v), want %q (blocked: %v)", tc.reason, err, errors.As(err, &blocked), tc.want, tc.blocked)
			}
		})
	}
}
