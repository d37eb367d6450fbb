package controller

import (
	"context"
	"fmt"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// owner is a VolumeSnapshot or a VolumeGroupSnapshot.
type owner struct {
	metav1.Object

	// dynamic: a snapshot of volumes is asked for. existing is the content of one that existed before, as the spec names it. One of the two is set.
	dynamic  bool
	existing *string
	class    *string
	// status is nil until there is one.
	status *status

	// The object itself is one of these.
	snapshot *snapshotv1.VolumeSnapshot
	group    *groupv1.VolumeGroupSnapshot
}

// status is that of an owner. Its fields are exported for comparisons.
type status struct {
	Bound   string // name of the content
	Ready   *bool
	Created *metav1.Time
	Error   *snapshotv1.VolumeSnapshotError
	// Size and Group, the name of the group that it is a member of, are of VolumeSnapshots alone.
	Size  *resource.Quantity
	Group *string
}

// content is a VolumeSnapshotContent or a VolumeGroupSnapshotContent.
type content struct {
	metav1.Object

	ref    corev1.ObjectReference
	driver string
	policy snapshotv1.DeletionPolicy
	class  *string
	// volumes are the handles of the volumes to take a snapshot of. existing: it existed before. One of the two is set.
	volumes  []string
	existing bool
	// status is nil until there is one.
	status *contentStatus

	// The object itself is one of these.
	single *snapshotv1.VolumeSnapshotContent
	group  *groupv1.VolumeGroupSnapshotContent
}

// contentStatus is what csi-snapshotter has reported.
type contentStatus struct {
	handle  string
	ready   bool
	created time.Time // zero: not known
	size    *int64
	err     *snapshotv1.VolumeSnapshotError
}

// class is a VolumeSnapshotClass or a VolumeGroupSnapshotClass.
type class struct {
	metav1.Object

	driver     string
	policy     snapshotv1.DeletionPolicy
	parameters map[string]string
}

func ownerOfSnapshot(s *snapshotv1.VolumeSnapshot) *owner {
	o := &owner{
		Object: s, snapshot: s, dynamic: s.Spec.Source.PersistentVolumeClaimName != nil, existing: s.Spec.Source.VolumeSnapshotContentName, class: s.Spec.VolumeSnapshotClassName,
	}
	if from := s.Status; from != nil {
		o.status = &status{
			Bound: ptr.Deref(from.BoundVolumeSnapshotContentName, ""), Ready: from.ReadyToUse, Created: from.CreationTime, Size: from.RestoreSize,
			Error: from.Error, Group: from.VolumeGroupSnapshotName,
		}
	}
	return o
}

func ownerOfGroup(group *groupv1.VolumeGroupSnapshot) *owner {
	o := &owner{
		Object: group, group: group, dynamic: group.Spec.Source.Selector != nil, existing: group.Spec.Source.VolumeGroupSnapshotContentName,
		class: group.Spec.VolumeGroupSnapshotClassName,
	}
	if from := group.Status; from != nil {
		o.status = &status{Bound: ptr.Deref(from.BoundVolumeGroupSnapshotContentName, ""), Ready: from.ReadyToUse, Created: from.CreationTime, Error: from.Error}
	}
	return o
}

func contentOfSnapshot(of *snapshotv1.VolumeSnapshotContent) *content {
	c := &content{
		Object: of, single: of, ref: of.Spec.VolumeSnapshotRef, driver: of.Spec.Driver, policy: of.Spec.DeletionPolicy, class: of.Spec.VolumeSnapshotClassName,
		existing: of.Spec.Source.SnapshotHandle != nil,
	}
	if handle := of.Spec.Source.VolumeHandle; handle != nil {
		c.volumes = []string{*handle}
	}
	if from := of.Status; from != nil {
		c.status = &contentStatus{handle: ptr.Deref(from.SnapshotHandle, ""), ready: ptr.Deref(from.ReadyToUse, false), size: from.RestoreSize, err: from.Error}
		if ns := ptr.Deref(from.CreationTime, 0); ns != 0 {
			c.status.created = time.Unix(0, ns)
		}
	}
	return c
}

func contentOfGroup(of *groupv1.VolumeGroupSnapshotContent) *content {
	c := &content{
		Object: of, group: of, ref: of.Spec.VolumeGroupSnapshotRef, driver: of.Spec.Driver, policy: of.Spec.DeletionPolicy, class: of.Spec.VolumeGroupSnapshotClassName,
		volumes: of.Spec.Source.VolumeHandles, existing: of.Spec.Source.GroupSnapshotHandles != nil,
	}
	if from := of.Status; from != nil {
		c.status = &contentStatus{handle: ptr.Deref(from.VolumeGroupSnapshotHandle, ""), ready: ptr.Deref(from.ReadyToUse, false), err: from.Error}
		if !isUnknown(from.CreationTime) {
			c.status.created = from.CreationTime.Time
		}
	}
	return c
}

func classOfSnapshots(of *snapshotv1.VolumeSnapshotClass) *class {
	return &class{Object: of, driver: of.Driver, policy: of.DeletionPolicy, parameters: of.Parameters}
}

func classOfGroups(of *groupv1.VolumeGroupSnapshotClass) *class {
	return &class{Object: of, driver: of.Driver, policy: of.DeletionPolicy, parameters: of.Parameters}
}

// bound returns the name of the content that the owner is bound to, or nothing.
func (o *owner) bound() string {
	if o.status == nil {
		return ""
	}
	return o.status.Bound
}

// copyStatus returns a copy of the status, which may be changed.
func (o *owner) copyStatus() *status {
	if o.status == nil {
		return &status{}
	}
	c := *o.status
	return &c
}

func (o *owner) isReady() bool { return o.status != nil && ptr.Deref(o.status.Ready, false) }

// isCreated reports whether the driver has taken the snapshot.
func (s *status) isCreated() bool {
	return s != nil && (!isUnknown(s.Created) || ptr.Deref(s.Ready, false))
}

// refKey returns the key of the owner that a content refers to.
func (c *content) refKey() string { return c.ref.Namespace + "/" + c.ref.Name }

// has reports whether a content has an annotation with a value.
func (c *content) has(annotation string) bool { return c.GetAnnotations()[annotation] != "" }

// isOpen reports whether the driver may be taking the snapshot of a content: it was asked for, or will be, and the outcome is not known.
// refused: a snapshot that the driver has refused, which is tried again, does not count.
func (c *content) isOpen(k *kind, refused bool) bool {
	switch {
	case len(c.volumes) == 0, c.has(snapshotapi.AnnVolumeGroupSnapshotHandle):
		return false
	case c.status != nil && c.status.handle != "":
		return false
	case c.has(k.beingCreated):
		return true
	}
	return !refused || c.status == nil || c.status.err == nil
}

// objects are the snapshots, or the group snapshots, with their contents and classes: in the caches, and at the API server.
type objects interface {
	// findOwner, findContent and findClass look in the caches; nil is that there is none.
	findOwner(namespace, name string) *owner
	findContent(name string) *content
	findClass(name string) *class
	allClasses() []*class
	// contentsOf returns the contents that refer to the owner of a key, ownersOf the owners that name a content or are bound to it.
	contentsOf(key string) []*content
	ownersOf(content string) []*owner
	// contentsWith returns the contents under a value of an index.
	contentsWith(index, value string) []*content

	// The others ask the API server, and remember the answer. getOwner and getContent return nil for what does not exist.
	getOwner(ctx context.Context, namespace, name string) (*owner, error)
	getContent(ctx context.Context, name string) (*content, error)
	listClasses(ctx context.Context) ([]*class, error)
	patchOwner(ctx context.Context, o *owner, patch []byte, subresources ...string) error
	patchContent(ctx context.Context, c *content, patch []byte, subresources ...string) (*content, error)
	// createContent creates a content, or gets the one of that name; created is false then.
	createContent(ctx context.Context, c *newContent) (found *content, created bool, err error)
	deleteContent(ctx context.Context, c *content) error
}

// client is what is asked of a client of one kind of objects.
type client[T kube.Object] interface {
	Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// store are the objects of one kind of snapshots: S and C with the classes L.
type store[S, C, L kube.Object] struct {
	*kind

	owners   *kube.Informer[S]
	contents *kube.Informer[C]
	classes  *kube.Informer[L]

	ownersIn   func(namespace string) client[S]
	contentsIn client[C]
	classesNow func(ctx context.Context) (runtime.Object, error)
	timeout    time.Duration // of a call

	ownerOf   func(S) *owner
	contentOf func(C) *content
	classOf   func(L) *class
	encode    func(*newContent) C
}

func (s *store[S, C, L]) findOwner(namespace, name string) *owner {
	return found(s.owners, namespace, name, s.ownerOf)
}

func (s *store[S, C, L]) findContent(name string) *content {
	return found(s.contents, "", name, s.contentOf)
}

func (s *store[S, C, L]) findClass(name string) *class { return found(s.classes, "", name, s.classOf) }

func (s *store[S, C, L]) allClasses() []*class { return convert(s.classes.List(), s.classOf) }

func (s *store[S, C, L]) contentsOf(key string) []*content { return s.contentsWith(indexRef, key) }

func (s *store[S, C, L]) contentsWith(index, value string) []*content {
	return convert(s.contents.ByIndex(index, value), s.contentOf)
}

func (s *store[S, C, L]) ownersOf(content string) []*owner {
	return convert(s.owners.ByIndex(indexContent, content), s.ownerOf)
}

// found returns an object of a cache, or nil.
func found[T kube.Object, R any](in *kube.Informer[T], namespace, name string, convert func(T) *R) *R {
	if obj, ok := in.Get(namespace, name); ok {
		return convert(obj)
	}
	return nil
}

func convert[T, R any](list []T, one func(T) R) []R {
	converted := make([]R, 0, len(list))
	for _, obj := range list {
		converted = append(converted, one(obj))
	}
	return converted
}

func (s *store[S, C, L]) getOwner(ctx context.Context, namespace, name string) (*owner, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	obj, err := s.ownersIn(namespace).Get(ctx, name, metav1.GetOptions{})
	if isGone(err) {
		return nil, nil //nolint:nilnil // nil is that there is none
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", s.ownerKind, namespace, name, err)
	}
	return s.ownerOf(obj), nil
}

func (s *store[S, C, L]) getContent(ctx context.Context, name string) (*content, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	obj, err := s.contentsIn.Get(ctx, name, metav1.GetOptions{})
	if isGone(err) {
		return nil, nil //nolint:nilnil // nil is that there is none
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %q: %w", s.contentKind, name, err)
	}
	s.contents.Remember(obj)
	return s.contentOf(obj), nil
}

// listClasses returns the classes that the API server has, which the caches may not have yet: another watch brings them than that of the owners.
func (s *store[S, C, L]) listClasses(ctx context.Context) ([]*class, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	list, err := s.classesNow(ctx)
	if err != nil {
		return nil, fmt.Errorf("list each %s: %w", s.classKind, err)
	}
	classes := []*class{}
	return classes, meta.EachListItem(list, func(obj runtime.Object) error {
		of, ok := obj.(L)
		if !ok {
			return fmt.Errorf("list each %s: got a %T", s.classKind, obj)
		}
		classes = append(classes, s.classOf(of))
		return nil
	})
}

// isGone reports whether the API server has answered that it has no such object; that it has no such kind is another answer.
func isGone(err error) bool { return apierrors.IsNotFound(err) && !snapshotapi.IsAbsent(err) }

func (s *store[S, C, L]) patchOwner(ctx context.Context, o *owner, patch []byte, subresources ...string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	patched, err := s.ownersIn(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return kube.PatchError(s.ownerKind, keyOf(o), err)
	}
	s.owners.Remember(patched)
	return nil
}

func (s *store[S, C, L]) patchContent(ctx context.Context, c *content, patch []byte, subresources ...string) (*content, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	patched, err := s.contentsIn.Patch(ctx, c.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, kube.PatchError(s.contentKind, c.GetName(), err)
	}
	s.contents.Remember(patched)
	return s.contentOf(patched), nil
}

func (s *store[S, C, L]) createContent(ctx context.Context, c *newContent) (found *content, created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	obj, err := s.contentsIn.Create(ctx, s.encode(c), metav1.CreateOptions{})
	created = err == nil
	if apierrors.IsAlreadyExists(err) {
		obj, err = s.contentsIn.Get(ctx, c.name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, false, fmt.Errorf("create %s %q: %w", s.contentKind, c.name, err)
	}
	s.contents.Remember(obj)
	return s.contentOf(obj), created, nil
}

// deleteContent deletes the content as it was read: one whose policy or mark has changed since is a conflict.
func (s *store[S, C, L]) deleteContent(ctx context.Context, c *content) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.contentsIn.Delete(ctx, c.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(c.GetUID()), ResourceVersion: new(c.GetResourceVersion())}})
	if apierrors.IsNotFound(err) {
		return kube.ErrGone // the watch brings it
	}
	if err != nil {
		return fmt.Errorf("delete %s %q: %w", s.contentKind, c.GetName(), err)
	}
	return nil
}
