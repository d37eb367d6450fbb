package conformance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// RunSnapshots checks a server that has the CustomResourceDefinitions of snapshots and group snapshots: their rules, and what
// distinguishes custom resources from the kinds of Kubernetes.
func RunSnapshots(t *testing.T, client snapshotapi.Client, namespace string) {
	t.Helper()
	kinds := map[string]kindRequests{
		"vs":       requestsFor(client.VolumeSnapshots(namespace), func() *snapshotv1.VolumeSnapshot { return &snapshotv1.VolumeSnapshot{} }),
		"vsc":      requestsFor(client.VolumeSnapshotContents(), func() *snapshotv1.VolumeSnapshotContent { return &snapshotv1.VolumeSnapshotContent{} }),
		"vsclass":  requestsFor(client.VolumeSnapshotClasses(), func() *snapshotv1.VolumeSnapshotClass { return &snapshotv1.VolumeSnapshotClass{} }),
		"vgs":      requestsFor(client.VolumeGroupSnapshots(namespace), func() *groupv1.VolumeGroupSnapshot { return &groupv1.VolumeGroupSnapshot{} }),
		"vgsc":     requestsFor(client.VolumeGroupSnapshotContents(), func() *groupv1.VolumeGroupSnapshotContent { return &groupv1.VolumeGroupSnapshotContent{} }),
		"vgsclass": requestsFor(client.VolumeGroupSnapshotClasses(), func() *groupv1.VolumeGroupSnapshotClass { return &groupv1.VolumeGroupSnapshotClass{} }),
	}
	t.Run("Served", func(t *testing.T) {
		if version, ok, err := client.Served(t.Context()); version != "v1" || !ok || err != nil {
			t.Errorf("group snapshots: version %q, served %v, error %v", version, ok, err)
		}
	})
	t.Run("SnapshotCreation", func(t *testing.T) { snapshotCreation(t, kinds) })
	t.Run("SnapshotChanges", func(t *testing.T) { snapshotChanges(t, kinds) })
	t.Run("CustomResources", func(t *testing.T) { customResources(t, client, namespace) })
}

// kindRequests are requests for objects of one kind, given and returned as JSON.
type kindRequests struct {
	create func(ctx context.Context, object string) error
	patch  func(ctx context.Context, name string, pt types.PatchType, patch string, subresources ...string) error
}

func requestsFor[T kube.Object, L runtime.Object](resource kube.Resource[T, L], newObject func() T) kindRequests {
	return kindRequests{
		create: func(ctx context.Context, object string) error {
			obj := newObject()
			if err := json.Unmarshal([]byte(object), obj); err != nil {
				return err
			}
			_, err := resource.Create(ctx, obj, metav1.CreateOptions{})
			return err
		},
		patch: func(ctx context.Context, name string, pt types.PatchType, patch string, subresources ...string) error {
			_, err := resource.Patch(ctx, name, pt, []byte(patch), metav1.PatchOptions{}, subresources...)
			return err
		},
	}
}

// Valid objects, without metadata.
const (
	validVS        = `"spec":{"source":{"persistentVolumeClaimName":"data"}}`
	validVSC       = `"spec":{"driver":"d","deletionPolicy":"Delete","source":{"volumeHandle":"v"},"volumeSnapshotRef":{"name":"s","namespace":"ns"}}`
	validVSCMode   = `"spec":{"driver":"d","deletionPolicy":"Delete","source":{"snapshotHandle":"v"},"volumeSnapshotRef":{"name":"s","namespace":"ns"},"sourceVolumeMode":"Block"}`
	validVSClass   = `"driver":"d","deletionPolicy":"Retain"`
	validVGS       = `"spec":{"source":{"selector":{"matchLabels":{"a":"b"}}}}`
	validVGSC      = `"spec":{"driver":"d","deletionPolicy":"Delete","source":{"volumeHandles":["v","w"]},"volumeGroupSnapshotRef":{"name":"g","namespace":"ns"}}`
	validVGSCBound = `"spec":{"driver":"d","deletionPolicy":"Delete","volumeGroupSnapshotClassName":"c","source":{"groupSnapshotHandles":{"volumeGroupSnapshotHandle":"g","volumeSnapshotHandles":["s"]}},"volumeGroupSnapshotRef":{"name":"g","namespace":"ns","uid":"u"}}`
	validVGSClass  = `"driver":"d","deletionPolicy":"Delete","parameters":{"a":"b"}`
)

// snapshotCreation checks which objects are refused.
func snapshotCreation(t *testing.T, kinds map[string]kindRequests) {
	t.Helper()
	const (
		invalid   = "422 Invalid named "
		unchecked = " <nil>:FieldValueInvalid" // the rules of CEL
	)
	edit := func(valid, from, to string) string { return strings.Replace(valid, from, to, 1) }
	cases := map[string]struct {
		kind, object string
		want         string // "": ok
		message      string
	}{
		"VS":           {kind: "vs", object: validVS},
		"VSContent":    {kind: "vs", object: `"spec":{"source":{"volumeSnapshotContentName":"c"},"volumeSnapshotClassName":"k"}`},
		"VSNoSource":   {kind: "vs", object: `"spec":{"source":{}}`, want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"},
		"VSTwoSources": {kind: "vs", object: `"spec":{"source":{"persistentVolumeClaimName":"a","volumeSnapshotContentName":"b"}}`, want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"},
		"VSNoClass":    {kind: "vs", object: `"spec":{"source":{"persistentVolumeClaimName":"a"},"volumeSnapshotClassName":""}`, want: invalid + "spec.volumeSnapshotClassName:FieldValueInvalid", message: "volumeSnapshotClassName must not be the empty string when set"},
		"VSBadName":    {kind: "vs", object: `"metadata":{"name":"A"},` + validVS, want: invalid + "metadata.name:FieldValueInvalid", message: "RFC 1123"},

		"VSC":           {kind: "vsc", object: validVSC},
		"VSCMode":       {kind: "vsc", object: validVSCMode},
		"VSCNoDriver":   {kind: "vsc", object: edit(validVSC, `"driver":"d"`, `"driver":""`)},
		"VSCNoSource":   {kind: "vsc", object: edit(validVSC, `"volumeHandle":"v"`, ``), want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeHandle and snapshotHandle must be set"},
		"VSCTwoSources": {kind: "vsc", object: edit(validVSC, `"volumeHandle":"v"`, `"volumeHandle":"v","snapshotHandle":"w"`), want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeHandle and snapshotHandle must be set"},
		"VSCPolicy":     {kind: "vsc", object: edit(validVSC, `"Delete"`, `"Recycle"`), want: invalid + "spec.deletionPolicy:FieldValueNotSupported" + unchecked, message: `supported values: "Delete", "Retain"`},
		"VSCNoRef":      {kind: "vsc", object: edit(validVSC, `"name":"s",`, ``), want: invalid + "spec.volumeSnapshotRef:FieldValueInvalid", message: "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"},

		"VSClass":       {kind: "vsclass", object: validVSClass},
		"VSClassPolicy": {kind: "vsclass", object: `"driver":"d"`, want: invalid + "deletionPolicy:FieldValueNotSupported"},

		"VGS":           {kind: "vgs", object: validVGS},
		"VGSContent":    {kind: "vgs", object: `"spec":{"source":{"volumeGroupSnapshotContentName":"c"},"volumeGroupSnapshotClassName":"k"}`},
		"VGSAll":        {kind: "vgs", object: `"spec":{"source":{"selector":{}}}`},
		"VGSNoSource":   {kind: "vgs", object: `"spec":{"source":{}}`, want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of selector and volumeGroupSnapshotContentName must be set"},
		"VGSTwoSources": {kind: "vgs", object: `"spec":{"source":{"selector":{},"volumeGroupSnapshotContentName":"c"}}`, want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of selector and volumeGroupSnapshotContentName must be set"},
		"VGSNoClass":    {kind: "vgs", object: `"spec":{"source":{"selector":{}},"volumeGroupSnapshotClassName":""}`, want: invalid + "spec.volumeGroupSnapshotClassName:FieldValueInvalid", message: "volumeGroupSnapshotClassName must not be the empty string when set"},

		"VGSC":           {kind: "vgsc", object: validVGSC},
		"VGSCBound":      {kind: "vgsc", object: validVGSCBound},
		"VGSCNoSource":   {kind: "vgsc", object: edit(validVGSC, `"volumeHandles":["v","w"]`, ``), want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeHandles and groupSnapshotHandles must be set"},
		"VGSCTwoSources": {kind: "vgsc", object: edit(validVGSCBound, `"source":{`, `"source":{"volumeHandles":["v"],`), want: invalid + "spec.source:FieldValueInvalid", message: "exactly one of volumeHandles and groupSnapshotHandles must be set"},
		"VGSCPolicy":     {kind: "vgsc", object: edit(validVGSC, `"Delete"`, `""`), want: invalid + "spec.deletionPolicy:FieldValueNotSupported" + unchecked},
		"VGSCNoRef":      {kind: "vgsc", object: edit(validVGSC, `,"namespace":"ns"`, ``), want: invalid + "spec.volumeGroupSnapshotRef:FieldValueInvalid", message: "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set"},

		"VGSClass":       {kind: "vgsclass", object: validVGSClass},
		"VGSClassPolicy": {kind: "vgsclass", object: `"driver":"d","deletionPolicy":"delete"`, want: invalid + "deletionPolicy:FieldValueNotSupported" + unchecked},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object := tc.object
			if !strings.Contains(object, `"metadata"`) {
				object = `"metadata":{"name":"` + nameOf(t) + `"},` + object
			}
			check(t, kinds[tc.kind].create(t.Context(), "{"+object+"}"), tc.want, tc.message)
		})
	}
}

// check compares the answer to a request, and looks for a message in it.
func check(t *testing.T, err error, want, message string) {
	t.Helper()
	if want == "" {
		want = "ok"
	}
	if got := answer(err); got != want {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}
	if err != nil && !strings.Contains(err.Error(), message) {
		t.Errorf("got %q, want %q in it", err, message)
	}
}

// snapshotChanges checks which fields of an object may change, by merge patches.
func snapshotChanges(t *testing.T, kinds map[string]kindRequests) { //nolint:funlen // one table
	t.Helper()
	const invalid = "422 Invalid named "
	cases := map[string]struct {
		kind, object string
		first        string // a patch of the status that comes before
		patch        string
		status       bool
		want         string // "": ok
		message      string
	}{
		"VSClaim":        {kind: "vs", object: validVS, patch: `{"spec":{"source":{"persistentVolumeClaimName":"x"}}}`, want: invalid + "spec.source.persistentVolumeClaimName:FieldValueInvalid", message: "persistentVolumeClaimName is immutable"},
		"VSClaimRemoved": {kind: "vs", object: validVS, patch: `{"spec":{"source":{"persistentVolumeClaimName":null,"volumeSnapshotContentName":"c"}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "persistentVolumeClaimName is required once set"},
		"VSContent":      {kind: "vs", object: `"spec":{"source":{"volumeSnapshotContentName":"c"}}`, patch: `{"spec":{"source":{"volumeSnapshotContentName":"x"}}}`, want: invalid + "spec.source.volumeSnapshotContentName:FieldValueInvalid", message: "volumeSnapshotContentName is immutable"},
		"VSContentGone":  {kind: "vs", object: `"spec":{"source":{"volumeSnapshotContentName":"c"}}`, patch: `{"spec":{"source":{"volumeSnapshotContentName":null}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "volumeSnapshotContentName is required once set"},
		"VSClass":        {kind: "vs", object: validVS, patch: `{"spec":{"volumeSnapshotClassName":"k"}}`},
		"VSClassEmpty":   {kind: "vs", object: validVS, patch: `{"spec":{"volumeSnapshotClassName":""}}`, want: invalid + "spec.volumeSnapshotClassName:FieldValueInvalid"},
		"VSBound":        {kind: "vs", object: validVS, first: `{"status":{"boundVolumeSnapshotContentName":"a"}}`, patch: `{"status":{"boundVolumeSnapshotContentName":"b"}}`, status: true},

		"VSCHandle":     {kind: "vsc", object: validVSC, patch: `{"spec":{"source":{"volumeHandle":"x"}}}`, want: invalid + "spec.source.volumeHandle:FieldValueInvalid", message: "volumeHandle is immutable"},
		"VSCSnapshot":   {kind: "vsc", object: validVSCMode, patch: `{"spec":{"source":{"snapshotHandle":"x"}}}`, want: invalid + "spec.source.snapshotHandle:FieldValueInvalid", message: "snapshotHandle is immutable"},
		"VSCExchange":   {kind: "vsc", object: validVSC, patch: `{"spec":{"source":{"volumeHandle":null,"snapshotHandle":"x"}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "volumeHandle is required once set"},
		"VSCMode":       {kind: "vsc", object: validVSCMode, patch: `{"spec":{"sourceVolumeMode":"Filesystem"}}`, want: invalid + "spec.sourceVolumeMode:FieldValueInvalid", message: "sourceVolumeMode is immutable"},
		"VSCModeGone":   {kind: "vsc", object: validVSCMode, patch: `{"spec":{"sourceVolumeMode":null}}`, want: invalid + "spec:FieldValueInvalid", message: "sourceVolumeMode is required once set"},
		"VSCModeSet":    {kind: "vsc", object: validVSC, patch: `{"spec":{"sourceVolumeMode":"Block"}}`},
		"VSCRef":        {kind: "vsc", object: validVSC, patch: `{"spec":{"volumeSnapshotRef":{"name":"other","uid":"u"}}}`},
		"VSCRefGone":    {kind: "vsc", object: validVSC, patch: `{"spec":{"volumeSnapshotRef":{"name":null}}}`, want: invalid + "spec.volumeSnapshotRef:FieldValueInvalid"},
		"VSCDriver":     {kind: "vsc", object: validVSC, patch: `{"spec":{"driver":"x","volumeSnapshotClassName":"k","deletionPolicy":"Retain"}}`},
		"VSCPolicy":     {kind: "vsc", object: validVSC, patch: `{"spec":{"deletionPolicy":"x"}}`, want: invalid + "spec.deletionPolicy:FieldValueNotSupported <nil>:FieldValueInvalid"},
		"VSCSize":       {kind: "vsc", object: validVSC, patch: `{"status":{"restoreSize":-1}}`, status: true, want: invalid + "status.restoreSize:FieldValueInvalid", message: "should be greater than or equal to 0"},
		"VSCSizeZero":   {kind: "vsc", object: validVSC, patch: `{"status":{"restoreSize":0,"creationTime":1700000000123456789}}`, status: true},
		"VSCHandleSet":  {kind: "vsc", object: validVSC, first: `{"status":{"snapshotHandle":"a"}}`, patch: `{"status":{"snapshotHandle":null}}`, status: true},
		"VSClassChange": {kind: "vsclass", object: validVSClass, patch: `{"driver":"x","deletionPolicy":"Delete","parameters":{"a":"b"}}`},

		"VGSSelector":   {kind: "vgs", object: validVGS, patch: `{"spec":{"source":{"selector":{"matchLabels":{"a":"c"}}}}}`, want: invalid + "spec.source.selector:FieldValueInvalid", message: "selector is immutable"},
		"VGSExchange":   {kind: "vgs", object: validVGS, patch: `{"spec":{"source":{"selector":null,"volumeGroupSnapshotContentName":"c"}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "selector is required once set"},
		"VGSContent":    {kind: "vgs", object: `"spec":{"source":{"volumeGroupSnapshotContentName":"c"}}`, patch: `{"spec":{"source":{"volumeGroupSnapshotContentName":"x"}}}`, want: invalid + "spec.source.volumeGroupSnapshotContentName:FieldValueInvalid", message: "volumeGroupSnapshotContentName is immutable"},
		"VGSContentOff": {kind: "vgs", object: `"spec":{"source":{"volumeGroupSnapshotContentName":"c"}}`, patch: `{"spec":{"source":{"volumeGroupSnapshotContentName":null}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "volumeGroupSnapshotContentName is required once set"},
		"VGSBound":      {kind: "vgs", object: validVGS, first: `{"status":{"boundVolumeGroupSnapshotContentName":"a"}}`, patch: `{"status":{"boundVolumeGroupSnapshotContentName":"b"}}`, status: true, want: invalid + "status.boundVolumeGroupSnapshotContentName:FieldValueInvalid", message: "boundVolumeGroupSnapshotContentName is immutable once set"},
		"VGSUnbound":    {kind: "vgs", object: validVGS, first: `{"status":{"boundVolumeGroupSnapshotContentName":"a"}}`, patch: `{"status":{"boundVolumeGroupSnapshotContentName":null}}`, status: true},

		"VGSCHandles":     {kind: "vgsc", object: validVGSC, patch: `{"spec":{"source":{"volumeHandles":["v"]}}}`, want: invalid + "spec.source.volumeHandles:FieldValueInvalid", message: "volumeHandles is immutable"},
		"VGSCHandlesGone": {kind: "vgsc", object: validVGSC, patch: `{"spec":{"source":{"volumeHandles":null}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "volumeHandles is required once set"},
		"VGSCGroup":       {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"source":{"groupSnapshotHandles":{"volumeGroupSnapshotHandle":"x"}}}}`, want: invalid + "spec.source.groupSnapshotHandles:FieldValueInvalid", message: "groupSnapshotHandles is immutable"},
		"VGSCGroupGone":   {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"source":{"groupSnapshotHandles":null}}}`, want: invalid + "spec.source:FieldValueInvalid", message: "groupSnapshotHandles is required once set"},
		"VGSCDriver":      {kind: "vgsc", object: validVGSC, patch: `{"spec":{"driver":"x"}}`, want: invalid + "spec.driver:FieldValueInvalid", message: "driver is immutable once set"},
		"VGSCClass":       {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"volumeGroupSnapshotClassName":"x"}}`, want: invalid + "spec.volumeGroupSnapshotClassName:FieldValueInvalid", message: "volumeGroupSnapshotClassName is immutable once set"},
		"VGSCClassGone":   {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"volumeGroupSnapshotClassName":null}}`},
		"VGSCRefName":     {kind: "vgsc", object: validVGSC, patch: `{"spec":{"volumeGroupSnapshotRef":{"name":"x"}}}`, want: invalid + "spec.volumeGroupSnapshotRef:FieldValueInvalid", message: "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable"},
		"VGSCRefSet":      {kind: "vgsc", object: validVGSC, patch: `{"spec":{"volumeGroupSnapshotRef":{"uid":"u"}}}`},
		"VGSCRefUID":      {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"volumeGroupSnapshotRef":{"uid":"x"}}}`, want: invalid + "spec.volumeGroupSnapshotRef:FieldValueInvalid", message: "volumeGroupSnapshotRef.uid is immutable once set"},
		"VGSCRefUIDGone":  {kind: "vgsc", object: validVGSCBound, patch: `{"spec":{"volumeGroupSnapshotRef":{"uid":null}}}`, want: invalid + "spec.volumeGroupSnapshotRef:FieldValueInvalid", message: "volumeGroupSnapshotRef.uid is immutable once set"},
		"VGSCPolicy":      {kind: "vgsc", object: validVGSC, patch: `{"spec":{"deletionPolicy":"Retain"}}`},
		"VGSCBound":       {kind: "vgsc", object: validVGSC, first: `{"status":{"volumeGroupSnapshotHandle":"a"}}`, patch: `{"status":{"volumeGroupSnapshotHandle":"b"}}`, status: true, want: invalid + "status.volumeGroupSnapshotHandle:FieldValueInvalid", message: "volumeGroupSnapshotHandle is immutable once set"},
		"VGSCUnbound":     {kind: "vgsc", object: validVGSC, first: `{"status":{"volumeGroupSnapshotHandle":"a"}}`, patch: `{"status":{"volumeGroupSnapshotHandle":null}}`, status: true},

		"VGSClassDriver":     {kind: "vgsclass", object: validVGSClass, patch: `{"driver":"x"}`, want: invalid + "driver:FieldValueInvalid", message: "driver is immutable once set"},
		"VGSClassPolicy":     {kind: "vgsclass", object: validVGSClass, patch: `{"deletionPolicy":"Retain"}`, want: invalid + "deletionPolicy:FieldValueInvalid", message: "deletionPolicy is immutable once set"},
		"VGSClassParameters": {kind: "vgsclass", object: validVGSClass, patch: `{"parameters":{"a":"c"}}`, want: invalid + "parameters:FieldValueInvalid", message: "parameters are immutable once set"},
		"VGSClassDefault":    {kind: "vgsclass", object: validVGSClass, patch: `{"metadata":{"annotations":{"groupsnapshot.storage.kubernetes.io/is-default-class":"true"}}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			requests, object := kinds[tc.kind], nameOf(t)
			check(t, requests.create(t.Context(), `{"metadata":{"name":"`+object+`"},`+tc.object+`}`), "", "")
			if tc.first != "" {
				check(t, requests.patch(t.Context(), object, types.MergePatchType, tc.first, "status"), "", "")
			}
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			check(t, requests.patch(t.Context(), object, types.MergePatchType, tc.patch, subresources...), tc.want, tc.message)
		})
	}
}

// customResources checks what distinguishes custom resources from the kinds of Kubernetes.
func customResources(t *testing.T, client snapshotapi.Client, namespace string) {
	t.Helper()
	snapshots := client.VolumeSnapshots(namespace)
	claim, content := "data", "content"
	cases := map[string]struct {
		reason string
		kind   types.PatchType
		patch  string
		status bool
		want   string // "": ok
		path   []string
		left   string // of the path; "": what was there
	}{
		"Strategic":    {reason: "Custom resources have no strategic patches.", kind: types.StrategicMergePatchType, patch: `{"metadata":{"labels":{"a":"1"}}}`, want: "415 UnsupportedMediaType without details", path: []string{"metadata", "labels"}, left: "null"},
		"StatusMeta":   {reason: "The status does not change the metadata.", kind: types.MergePatchType, patch: `{"metadata":{"labels":{"a":"1"},"finalizers":null},"status":{"readyToUse":true}}`, status: true, path: []string{"metadata"}, left: ""},
		"StatusSpec":   {reason: "Nor the spec.", kind: types.MergePatchType, patch: `{"spec":{"volumeSnapshotClassName":"k"},"status":{"readyToUse":true}}`, status: true, path: []string{"spec"}, left: `{"source":{"persistentVolumeClaimName":"data"}}`},
		"StatusByMain": {reason: "And the object does not change the status.", kind: types.MergePatchType, patch: `{"status":{"readyToUse":true}}`, path: []string{"status"}, left: "null"},
		"StatusUID":    {reason: "Another UID in a patch of the status is ignored.", kind: types.MergePatchType, patch: `{"metadata":{"uid":"other"},"status":{"readyToUse":true}}`, status: true, path: []string{"status"}, left: `{"readyToUse":true}`},
		"UID":          {reason: "Elsewhere it is refused.", kind: types.MergePatchType, patch: `{"metadata":{"uid":"other","labels":{"a":"1"}}}`, want: "422 Invalid named metadata.uid:FieldValueInvalid", path: []string{"metadata", "labels"}, left: "null"},
		"StatusOld":    {reason: "Another version is a conflict.", kind: types.MergePatchType, patch: `{"metadata":{"resourceVersion":"1"},"status":{"readyToUse":true}}`, status: true, want: "409 Conflict named", path: []string{"status"}, left: "null"},
		"Operations":   {reason: "A JSON patch that tests the UID is a precondition of the status, too.", kind: types.JSONPatchType, patch: `[{"op":"test","path":"/metadata/uid","value":"other"},{"op":"add","path":"/status","value":{"readyToUse":true}}]`, status: true, want: "422 Invalid", path: []string{"status"}, left: "null"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := must[*snapshotv1.VolumeSnapshot](t)(snapshots.Create(t.Context(), &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: nameOf(t), Finalizers: []string{"e.x/a"}},
				Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
				Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content},
			}, metav1.CreateOptions{}))
			if before.Status != nil {
				t.Errorf("a new object has the status %+v", before.Status)
			}
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			_, err := snapshots.Patch(t.Context(), before.Name, tc.kind, []byte(tc.patch), metav1.PatchOptions{}, subresources...)
			check(t, err, tc.want, "")
			after := must[*snapshotv1.VolumeSnapshot](t)(snapshots.Get(t.Context(), before.Name, metav1.GetOptions{}))
			if tc.left == "" {
				after.ResourceVersion, after.ManagedFields, before.ManagedFields = before.ResourceVersion, nil, nil
				tc.left = leaf(t, before, tc.path...)
			}
			if d := cmp.Diff(tc.left, leaf(t, after, tc.path...)); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
	t.Run("NoVersion", func(t *testing.T) {
		before := must[*snapshotv1.VolumeSnapshot](t)(snapshots.Create(t.Context(), &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: nameOf(t)},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
		}, metav1.CreateOptions{}))
		before.ResourceVersion = ""
		_, err := snapshots.Update(t.Context(), before, metav1.UpdateOptions{})
		check(t, err, "422 Invalid named metadata.resourceVersion:FieldValueInvalid", "")
	})
}
