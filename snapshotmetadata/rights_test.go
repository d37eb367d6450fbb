package snapshotmetadata

import (
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/kubeapi"
)

func rights() []sidecartest.Right {
	return []sidecartest.Right{
		{Group: "authentication.k8s.io", Resource: "tokenreviews", Verbs: "create", Why: "whose token it is"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews", Verbs: "create", Why: "whether that user may get the VolumeSnapshot"},
		{Group: kubeapi.Group, Resource: kubeapi.Resource, Verbs: "get", Why: "the audience of tokens; not needed with `--audience`"},
		{Group: snapshotapi.Group, Resource: "volumesnapshots", Verbs: "get", Why: "the snapshot that a caller names"},
		{Group: snapshotapi.Group, Resource: "volumesnapshotcontents", Verbs: "get", Why: "its handle"},
		{Group: snapshotapi.Group, Resource: "volumesnapshotclasses", Verbs: "get", Why: "pre-provisioned snapshots that name a class, which may name a secret; not needed without such snapshots"},
		{Resource: "secrets", Verbs: "get", Why: "optional: snapshots whose class names a secret; a Role in the namespace of the secrets is enough"},
	}
}

func TestRightsDoc(t *testing.T) {
	sidecartest.RightsDocument(t, "csi-snapshot-metadata", rights(), "VolumeSnapshotClass or a VolumeSnapshotContent", `
The role of the external-snapshot-metadata is enough for snapshots that the snapshot-controller has created, and that need no secret: its sample has
neither volumesnapshotclasses nor secrets. The role of the external-snapshotter, which service accounts of the same pod often have, has both. Without `+"`get`"+` of volumesnapshotclasses, calls about pre-provisioned snapshots that name a class end with
`+"`INTERNAL`"+` and the name of the right: the class may name the secret that the driver needs.

A backup program needs `+"`get`"+` of volumesnapshots in the namespaces that it saves, to be authorized; to call the service, `+"`get`"+` of
snapshotmetadataservices, and `+"`create`"+` of serviceaccounts/token if it requests its tokens itself. To find the handle of an earlier snapshot
it reads volumesnapshotcontents.
`)
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	r := start(t)
	vs, content := testSnapshot("monday")
	content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("handle-monday")}
	content.Spec.VolumeSnapshotClassName = new("fast")
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: map[string]string{snapshotapi.ParamSecretName: "keys", snapshotapi.ParamSecretNamespace: "${volumesnapshot.namespace}"},
	}
	if err := r.cluster.Remove("volumesnapshotcontents", "", content.Name); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.Apply(vs, content, class, testSecret("shop", "keys")); err != nil {
		t.Fatal(err)
	}
	used := sidecartest.Record(r.cluster)
	if err := r.call(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	used.Compare(t, rights())
	var reviews []string
	for _, right := range rights() {
		if !slices.Contains(r.cluster.Resources(), right.Resource) {
			reviews = append(reviews, right.Resource+" "+right.Verbs)
		}
	}
	slices.Sort(reviews)
	if got := r.reviews.used(); !slices.Equal(got, reviews) {
		t.Errorf("used %q, documented %q", strings.Join(got, ", "), strings.Join(reviews, ", "))
	}
	r.Stop()
}
