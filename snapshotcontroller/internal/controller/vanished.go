package controller

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// vanishGrace is how long a snapshot may have been taken when its VolumeSnapshot vanishes, and how late its content may be seen: the API server
// reads an object that it deletes once, and the content is made right after the finalizers are put on. It has room for a watch that was broken.
const vanishGrace = 2 * time.Minute

// vanished knows the snapshots, or the group snapshots, that went without a deletion that waits for finalizers, until their contents are
// dealt with. An API server may delete an object although a finalizer was put on it: it has read the object before, and has found none.
// Nobody else would delete the content that is made for it. A snapshot whose finalizers somebody has removed by hand was seen as being deleted,
// and its content stays: also if the watch was broken meanwhile, unless the snapshot was just taken.
type vanished[T any] struct {
	of func(content T) orphan

	mu   sync.Mutex
	keys map[string]map[types.UID]time.Time // when which snapshots of a name have vanished
}

// orphan is the content of a snapshot, or of a group snapshot, that is not there.
type orphan struct {
	metav1.Object
	ref corev1.ObjectReference
	// dependent: snapshot-controller has created the content for ref, with the policy Delete.
	dependent bool
	// taken is when the snapshot was taken, zero if that is not known.
	taken time.Time
}

func orphanOf(content *snapshotv1.VolumeSnapshotContent) orphan {
	o := orphan{Object: content, ref: content.Spec.VolumeSnapshotRef}
	o.dependent = content.Name == snapshotapi.ContentName(o.ref.UID) && content.Spec.Source.VolumeHandle != nil &&
		content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
	if content.Status != nil && content.Status.CreationTime != nil {
		o.taken = time.Unix(0, *content.Status.CreationTime)
	}
	return o
}

func groupOrphanOf(content *groupv1.VolumeGroupSnapshotContent) orphan {
	o := orphan{Object: content, ref: content.Spec.VolumeGroupSnapshotRef}
	o.dependent = content.Name == snapshotapi.GroupContentName(o.ref.UID) && len(content.Spec.Source.VolumeHandles) > 0 &&
		content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
	if content.Status != nil && content.Status.CreationTime != nil {
		o.taken = content.Status.CreationTime.Time
	}
	return o
}

func (o orphan) key() string { return o.ref.Namespace + "/" + o.ref.Name }

// outlives reports whether a content is to be deleted because its snapshot has vanished: that was taken shortly before, or later, or not at all.
func (o orphan) outlives(at time.Time) bool {
	return o.dependent && o.GetDeletionTimestamp() == nil && (o.taken.IsZero() || at.Sub(o.taken) < vanishGrace)
}

// note remembers a snapshot that is gone, unless it was seen as being deleted.
func (v *vanished[T]) note(gone metav1.Object) {
	if gone.GetDeletionTimestamp() == nil {
		v.add(keyOf(gone), gone.GetUID(), time.Now())
	}
}

func (v *vanished[T]) add(key string, uid types.UID, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys == nil {
		v.keys = map[string]map[types.UID]time.Time{}
	}
	if v.keys[key] == nil {
		v.keys[key] = map[types.UID]time.Time{}
	}
	v.keys[key][uid] = at
}

// find remembers the snapshots that have vanished while no controller was there to see it: their contents are new.
func (v *vanished[T]) find(contents iter.Seq[T], exists func(corev1.ObjectReference) bool) {
	now := time.Now()
	for content := range contents {
		if o := v.of(content); o.outlives(now) && !exists(o.ref) {
			v.add(o.key(), o.ref.UID, now)
		}
	}
}

// delete makes the steps by which the content of a snapshot that has vanished is deleted, unless the API server has the snapshot.
func (v *vanished[T]) delete(ctx context.Context, content T, exists func(context.Context, corev1.ObjectReference) (bool, error), steps ...func(context.Context) error) error {
	o := v.of(content)
	v.mu.Lock()
	at, ok := v.keys[o.key()][o.ref.UID]
	v.mu.Unlock()
	if !ok || !o.outlives(at) {
		return nil
	}
	if found, err := exists(ctx, o.ref); err != nil || found {
		return err
	}
	klog.FromContext(ctx).Info("Snapshot was deleted before its finalizers were seen, its content is deleted", "content", o.GetName())
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// forget forgets the vanished snapshots of a key that have left none of the contents, once vanishGrace is over: until then, a content may come that an
// earlier instance has created. It returns when to look again, 0 for never.
func (v *vanished[T]) forget(key string, contents []T) (after time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, at := range v.keys[key] {
		rest := vanishGrace - time.Since(at)
		left := slices.ContainsFunc(contents, func(content T) bool {
			o := v.of(content)
			return o.ref.UID == uid && o.outlives(at)
		})
		if !left && rest <= 0 {
			delete(v.keys[key], uid)
		}
		after = max(after, rest)
	}
	if len(v.keys[key]) == 0 {
		delete(v.keys, key)
	}
	return after
}
