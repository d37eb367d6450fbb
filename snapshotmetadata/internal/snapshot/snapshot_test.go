package snapshot

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

const driver = "d.example"

// world has the objects of a test: a bound, ready snapshot, its content, a class with a secret, and one without.
type world struct {
	vs      *snapshotv1.VolumeSnapshot
	content *snapshotv1.VolumeSnapshotContent
	class   *snapshotv1.VolumeSnapshotClass
	secret  *corev1.Secret
	others  []runtime.Object
	cluster *kubetest.Cluster
}

func newWorld() *world {
	return &world{
		vs: &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "monday", UID: "u1"},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}},
			Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("content"), ReadyToUse: new(true)},
		},
		content: &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "content"},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: new("fast"),
				Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("v1")},
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "shop", Name: "monday", UID: "u1"},
			},
			Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("s1"), ReadyToUse: new(true)},
		},
		class: &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			Parameters: map[string]string{
				snapshotapi.ParamSecretName: "${volumesnapshot.name}-of-${volumesnapshotcontent.name}", snapshotapi.ParamSecretNamespace: "${volumesnapshot.namespace}",
			},
		},
		secret:  &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "monday-of-content"}, Data: map[string][]byte{"of": []byte("class")}},
		cluster: kubetest.New(),
	}
}

// preprovision makes the content one of an admin, without annotations.
func (w *world) preprovision() {
	w.content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("s1")}
}

func (w *world) annotate(namespace, name string) {
	w.content.Annotations = map[string]string{snapshotapi.AnnDeletionSecretName: name, snapshotapi.AnnDeletionSecretNamespace: namespace}
}

func TestFind(t *testing.T) {
	errAny := errors.New("any")
	tests := map[string]struct {
		reason  string
		arrange func(*world)
		secrets map[string]string
		err     error
		words   string
	}{
		"Ready":          {reason: "a snapshot is found by its handle; what the snapshot controller has not noted, it has not found", arrange: func(*world) {}},
		"Absent":         {reason: "the name is wrong", arrange: func(w *world) { w.vs.Name = "tuesday" }, err: ErrNotFound, words: "shop/monday"},
		"NoStatus":       {reason: "S27: as after its creation", arrange: func(w *world) { w.vs.Status = nil }, err: ErrNotReady, words: "is not bound to a VolumeSnapshotContent"},
		"NotBound":       {reason: "the status has an error only", arrange: func(w *world) { w.vs.Status.BoundVolumeSnapshotContentName = nil }, err: ErrNotReady, words: "is not bound"},
		"EmptyBound":     {reason: "no name", arrange: func(w *world) { w.vs.Status.BoundVolumeSnapshotContentName = new("") }, err: ErrNotReady, words: "is not bound"},
		"NotReady":       {reason: "the driver is still copying", arrange: func(w *world) { w.vs.Status.ReadyToUse = new(false) }, err: ErrNotReady, words: "has no status.readyToUse"},
		"ReadyUnknown":   {reason: "nobody knows yet", arrange: func(w *world) { w.vs.Status.ReadyToUse = nil }, err: ErrNotReady, words: "has no status.readyToUse"},
		"ContentGone":    {reason: "it may come back", arrange: func(w *world) { w.content.Name = "other" }, err: ErrNotReady, words: `VolumeSnapshotContent "content" of VolumeSnapshot shop/monday does not exist`},
		"ContentOfOther": {reason: "a user has written another's content into the status", arrange: func(w *world) { w.content.Spec.VolumeSnapshotRef.Name = "bank" }, err: ErrNotReady, words: "is not bound to VolumeSnapshot shop/monday"},
		"OtherNamespace": {reason: "the same", arrange: func(w *world) { w.content.Spec.VolumeSnapshotRef.Namespace = "bank" }, err: ErrNotReady, words: "is not bound"},
		"OtherUID":       {reason: "the snapshot was deleted, and re-created under its name", arrange: func(w *world) { w.content.Spec.VolumeSnapshotRef.UID = "u0" }, err: ErrNotReady, words: "is not bound"},
		"NoUID":          {reason: "an admin's content that is not bound yet", arrange: func(w *world) { w.content.Spec.VolumeSnapshotRef.UID = "" }, err: ErrNotReady, words: "is not bound"},
		"OtherDriver":    {reason: "the caller has the address of another driver's service", arrange: func(w *world) { w.content.Spec.Driver = "e.example" }, err: ErrOtherDriver, words: `is of driver "e.example", this service is for driver "d.example"`},
		"NoContentState": {reason: "S27", arrange: func(w *world) { w.content.Status = nil }, err: ErrNotReady, words: "has no status.snapshotHandle"},
		"NoHandle":       {reason: "S27", arrange: func(w *world) { w.content.Status.SnapshotHandle = nil }, err: ErrNotReady, words: "has no status.snapshotHandle"},
		"ContentUnready": {reason: "the snapshot's status is late", arrange: func(w *world) { w.content.Status.ReadyToUse = nil }, err: ErrNotReady, words: `VolumeSnapshotContent "content" has no status.readyToUse`},
		"Annotated": {reason: "the secret that the snapshot controller has noted", arrange: func(w *world) {
			w.annotate("shop", "monday-of-content")
			w.class.Name = "gone"
		}, secrets: map[string]string{"of": "class"}},
		"HalfAnnotated": {reason: "it is ambiguous", arrange: func(w *world) { w.annotate("shop", "") }, err: errAny, words: "must both name a secret, or be absent"},
		"NoSecret":      {reason: "the error names it", arrange: func(w *world) { w.annotate("shop", "lost") }, err: errAny, words: "get secret shop/lost"},
		"OtherSecrets":  {reason: "--secret-namespaces", arrange: func(w *world) { w.annotate("kube-system", "keys") }, err: errAny, words: "--secret-namespaces=shop"},
		"ByClass":       {reason: "an admin's content has no annotation", arrange: (*world).preprovision, secrets: map[string]string{"of": "class"}},
		"ClassGone":     {reason: "a class is not needed", arrange: func(w *world) { w.preprovision(); w.class.Name = "gone" }},
		"NoClass":       {reason: "an admin needs none", arrange: func(w *world) { w.preprovision(); w.content.Spec.VolumeSnapshotClassName = nil }},
		"DefaultClass": {reason: "what backup programs restore names no class: as in the external-snapshot-metadata", arrange: func(w *world) {
			w.preprovision()
			w.content.Spec.VolumeSnapshotClassName, w.class.Annotations = nil, map[string]string{snapshotapi.AnnDefaultClass: "true"}
		}, secrets: map[string]string{"of": "class"}},
		"DefaultOfOther": {reason: "the default class of another driver", arrange: func(w *world) {
			w.preprovision()
			w.content.Spec.VolumeSnapshotClassName, w.class.Annotations = nil, map[string]string{snapshotapi.AnnDefaultClass: "true"}
			w.class.Driver = "e.example"
		}},
		"TwoDefaults": {reason: "which secret is meant is not known", arrange: func(w *world) {
			w.preprovision()
			w.content.Spec.VolumeSnapshotClassName, w.class.Annotations = nil, map[string]string{snapshotapi.AnnDefaultClass: "true"}
			second := w.class.DeepCopy()
			second.Name = "second"
			w.others = append(w.others, second)
		}, err: errAny, words: `driver "d.example" has 2 default ones, "fast" and "second" among them: keep one`},
		"DefaultForbidden": {reason: "the right to list classes is optional", arrange: func(w *world) {
			w.preprovision()
			w.content.Spec.VolumeSnapshotClassName, w.class.Annotations = nil, map[string]string{snapshotapi.AnnDefaultClass: "true"}
			w.cluster.Fail("list", "volumesnapshotclasses", apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no rule")), 0)
		}},
		"ClassNoSecret":  {reason: "most have none", arrange: func(w *world) { w.preprovision(); w.class.Parameters = nil }},
		"HalfParameters": {reason: "nobody knows what is meant", arrange: func(w *world) { w.preprovision(); delete(w.class.Parameters, snapshotapi.ParamSecretName) }, err: errAny, words: "must be given together"},
		"BadToken": {reason: "a user's name must not choose the namespace", arrange: func(w *world) {
			w.preprovision()
			w.class.Parameters[snapshotapi.ParamSecretNamespace] = "${volumesnapshot.name}"
		}, err: errAny, words: `invalid tokens: ["volumesnapshot.name"]`},
		"BadName": {reason: "not a name", arrange: func(w *world) { w.preprovision(); w.class.Parameters[snapshotapi.ParamSecretName] = "a b" }, err: errAny, words: `gives "a b"`},
		"APIDown": {reason: "the API server is busy", arrange: func(w *world) {
			w.cluster.Fail("get", "volumesnapshots", apierrors.NewTooManyRequests("busy", 1), 0)
		}, err: errAny, words: "get VolumeSnapshot shop/monday: busy"},
		"ContentsDown": {reason: "the API server is busy", arrange: func(w *world) {
			w.cluster.Fail("get", "volumesnapshotcontents", apierrors.NewTooManyRequests("busy", 1), 0)
		}, err: errAny, words: `get VolumeSnapshotContent "content": busy`},
		"ClassesDown": {reason: "a secret may be named there", arrange: func(w *world) {
			w.preprovision()
			w.cluster.Fail("get", "volumesnapshotclasses", apierrors.NewTooManyRequests("busy", 1), 0)
		}, err: errAny, words: `get VolumeSnapshotClass "fast": busy`},
		"ClassesForbidden": {reason: "the role of the external-snapshot-metadata has no right to get classes: the error names it", arrange: func(w *world) {
			w.preprovision()
			w.cluster.Fail("get", "volumesnapshotclasses", apierrors.NewForbidden(schema.GroupResource{Group: snapshotapi.Group, Resource: "volumesnapshotclasses"}, "fast", errors.New("no rule")), 0)
		}, err: ErrNoRight, words: `get volumesnapshotclasses.snapshot.storage.k8s.io, for the VolumeSnapshotClass "fast" of the pre-provisioned VolumeSnapshotContent "content"`},
		"ClassesUnused": {reason: "the snapshot controller has noted that there is no secret: the right is not needed", arrange: func(w *world) {
			w.cluster.Fail("get", "volumesnapshotclasses", apierrors.NewForbidden(schema.GroupResource{}, "fast", errors.New("no rule")), 0)
		}},
		"NotInstalled": {reason: "the kinds are missing, not the snapshot", arrange: func(w *world) { w.cluster.SetServed(snapshotapi.Group, false) }, err: errAny, words: "CustomResourceDefinitions of snapshots are not installed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tt.arrange(w)
			snapshotapitest.Install(w.cluster)
			if err := w.cluster.Apply(append(w.others, w.vs, w.content, w.class, w.secret)...); err != nil {
				t.Fatal(err)
			}
			finder := Finder{Driver: driver, Snapshots: snapshotapitest.New(w.cluster), Secrets: kube.NewSecretCache(w.cluster.Client(), []string{"shop"})}
			found, err := finder.Find(t.Context(), "shop", "monday")
			if tt.err == nil {
				if diff := cmp.Diff(&Snapshot{Handle: "s1", Secrets: tt.secrets}, found); err != nil || diff != "" {
					t.Errorf("%s: error %v, -want +got\n%s", tt.reason, err, diff)
				}
				return
			}
			known := errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotReady) || errors.Is(err, ErrOtherDriver) || errors.Is(err, ErrNoRight)
			if err == nil || !strings.Contains(err.Error(), tt.words) || known == errors.Is(tt.err, errAny) || known && !errors.Is(err, tt.err) {
				t.Errorf("%s: got %v, want %v with %q", tt.reason, err, tt.err, tt.words)
			}
		})
	}
}
