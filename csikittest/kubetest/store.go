package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// store holds the objects of one kind, and what happened to them.
type store struct {
	kind      *kind
	objects   map[string]kube.Object
	history   []change
	compacted uint64 // changes up to this version are forgotten
	serial    uint64 // counts UIDs and generated names
}

// change is one step in the life of an object. Neither object is ever modified.
type change struct {
	version     uint64
	before, now kube.Object // nil: created, deleted
	last        kube.Object // the final state of a deleted object
}

// deleteOptions are the parts of metav1.DeleteOptions that matter.
type deleteOptions struct {
	grace         *int64
	preconditions *metav1.Preconditions
}

// key is namespace/name, or name.
func key(obj metav1.Object) string { return keyOf(obj.GetNamespace(), obj.GetName()) }

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// list returns copies of what match accepts, sorted by key.
func (s *store) list(match func(kube.Object) bool) []kube.Object {
	keys := make([]string, 0, len(s.objects))
	for k, obj := range s.objects {
		if match(obj) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	list := make([]kube.Object, 0, len(keys))
	for _, k := range keys {
		list = append(list, clone(s.objects[k]))
	}
	return list
}

func (c *Cluster) applyLocked(k *kind, obj kube.Object) error {
	obj, err := normalize(k, obj)
	if err != nil {
		return err
	}
	if k.namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	c.stores[k.resource].name(obj)
	if obj.GetName() == "" {
		return apierrors.NewBadRequest("name or generateName is required")
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return apierrors.NewBadRequest("an object that is being deleted must have a finalizer")
	}
	before := c.stores[k.resource].objects[key(obj)]
	if before != nil && obj.GetUID() == "" {
		obj.SetUID(before.GetUID())
		obj.SetCreationTimestamp(before.GetCreationTimestamp())
	}
	if obj, err = k.track(before, obj, fieldOwner{manager: HandManager}); err != nil {
		return err
	}
	c.stores[k.resource].identify(obj)
	c.storeLocked(k, before, obj)
	return nil
}

func (c *Cluster) getLocked(k *kind, namespace, name string) (kube.Object, error) {
	obj, ok := c.stores[k.resource].objects[keyOf(namespace, name)]
	if !ok {
		return nil, apierrors.NewNotFound(k.groupResource(), name)
	}
	return obj, nil
}

func (c *Cluster) createLocked(k *kind, namespace string, obj kube.Object, owner fieldOwner) (kube.Object, error) {
	obj, err := normalize(k, obj)
	if err != nil {
		return nil, err
	}
	if obj, err = k.track(nil, obj, owner); err != nil {
		return nil, err
	}
	return c.insertLocked(k, namespace, obj)
}

// insertLocked is the part of a creation that a server-side apply shares.
func (c *Cluster) insertLocked(k *kind, namespace string, obj kube.Object) (kube.Object, error) {
	if err := placeIn(k, namespace, obj); err != nil {
		return nil, err
	}
	if obj.GetResourceVersion() != "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "resourceVersion should not be set on objects to be created",
		}}
	}
	c.stores[k.resource].name(obj)
	if k.initStatus != nil {
		k.initStatus(obj)
	}
	if err := validateCreate(k, obj); err != nil {
		return nil, err
	}
	if _, ok := c.stores[k.resource].objects[key(obj)]; ok {
		return nil, apierrors.NewAlreadyExists(k.groupResource(), obj.GetName())
	}
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	c.stores[k.resource].identify(obj)
	c.storeLocked(k, nil, obj)
	return obj, nil
}

// updateLocked replaces an object, or its status. It returns the stored object and whether anything changed.
func (c *Cluster) updateLocked(k *kind, namespace string, obj kube.Object, subresource string, owner fieldOwner) (kube.Object, bool, error) {
	obj, err := normalize(k, obj)
	if err != nil {
		return nil, false, err
	}
	if err := placeIn(k, namespace, obj); err != nil {
		return nil, false, err
	}
	before, err := c.getLocked(k, obj.GetNamespace(), obj.GetName())
	if err != nil {
		return nil, false, err
	}
	if uid := obj.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, false, uidConflict(k.groupResource(), obj.GetName(), uid, before.GetUID())
	}
	if obj, err = k.track(before, obj, owner); err != nil {
		return nil, false, err
	}
	return c.writeLocked(k, before, obj, subresource)
}

// writeLocked is the part of an update that patches share. Only an update has the UID as a precondition: in the result
// of a patch another UID is a change of an immutable field.
func (c *Cluster) writeLocked(k *kind, before, obj kube.Object, subresource string) (kube.Object, bool, error) {
	if err := checkVersion(k, before, obj); err != nil {
		return nil, false, err
	}
	obj, err := prepareUpdate(k, before, obj, subresource)
	if err != nil {
		return nil, false, err
	}
	if err := validateUpdate(k, before, obj); err != nil {
		return nil, false, err
	}
	stored, changed := c.replaceLocked(k, before, obj)
	return stored, changed, nil
}

// replaceLocked stores obj in place of before, unless they are the same; the last finalizer takes the object along, and the
// answer then has the version that the object had before.
func (c *Cluster) replaceLocked(k *kind, before, obj kube.Object) (stored kube.Object, changed bool) {
	obj.SetResourceVersion(before.GetResourceVersion())
	if equality.Semantic.DeepEqual(before, obj) {
		return before, false
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && !inGrace(obj) {
		c.dropLocked(k, clone(obj))
		return obj, true
	}
	c.storeLocked(k, before, obj)
	return obj, true
}

// checkVersion refuses writes that are based on another version than the stored one. No version is valid for some kinds.
func checkVersion(k *kind, before, obj kube.Object) error {
	version := obj.GetResourceVersion()
	if version == "" && k.unconditional {
		obj.SetResourceVersion(before.GetResourceVersion())
	}
	if version != "" && version != before.GetResourceVersion() {
		return apierrors.NewConflict(k.groupResource(), obj.GetName(),
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// prepareUpdate takes over the fields that the client cannot change. A change of the immutable fields, on the other
// hand, is for validateUpdate to refuse.
func prepareUpdate(k *kind, before, obj kube.Object, subresource string) (kube.Object, error) {
	switch {
	case subresource == "" && k.copyStatus != nil:
		k.copyStatus(obj, before)
	case subresource == "status" && k.copyStatus != nil:
		next := clone(before)
		k.copyStatus(next, obj)
		next.SetResourceVersion(obj.GetResourceVersion())
		if !k.custom {
			next.SetUID(obj.GetUID())
		}
		if !k.statusResetsMeta {
			next.SetLabels(obj.GetLabels())
			next.SetAnnotations(obj.GetAnnotations())
			next.SetFinalizers(obj.GetFinalizers())
		}
		obj = next
	case subresource != "":
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: k.groupVersion.Group, Resource: k.resource + "/" + subresource}, "")
	}
	if obj.GetUID() == "" {
		obj.SetUID(before.GetUID())
	}
	obj.SetGeneration(before.GetGeneration())
	obj.SetCreationTimestamp(before.GetCreationTimestamp())
	if at := before.GetDeletionTimestamp(); at != nil {
		obj.SetDeletionTimestamp(at)
	}
	if grace := before.GetDeletionGracePeriodSeconds(); grace != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(grace)
	}
	return obj, nil
}

// deleteLocked marks an object or removes it. It returns the object's last state and whether anything changed.
func (c *Cluster) deleteLocked(k *kind, namespace, name string, opts deleteOptions) (kube.Object, bool, error) {
	before, err := c.getLocked(k, namespace, name)
	if err != nil {
		return nil, false, err
	}
	if err := checkPreconditions(k, before, opts.preconditions); err != nil {
		return nil, false, err
	}
	grace := graceOf(before, opts.grace)
	obj := clone(before)
	if grace == 0 && len(obj.GetFinalizers()) == 0 {
		return c.dropLocked(k, obj), true, nil
	}
	if obj.GetDeletionTimestamp() == nil || grace < *graceLeft(obj) {
		at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second).Truncate(time.Second))
		obj.SetDeletionTimestamp(&at)
		obj.SetDeletionGracePeriodSeconds(&grace)
	}
	stored, changed := c.replaceLocked(k, before, obj)
	return stored, changed, nil
}

func checkPreconditions(k *kind, obj kube.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return uidConflict(k.groupResource(), obj.GetName(), *p.UID, obj.GetUID())
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(k.groupResource(), obj.GetName(),
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s)",
				*p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

// graceOf returns how many seconds an object stays after its deletion. Only pods on a node that
// still run stay: the node agent deletes them again, with 0 seconds, when it is done.
func graceOf(obj kube.Object, wanted *int64) int64 {
	const defaultGrace = 30
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0
	}
	switch {
	case wanted != nil:
		return *wanted
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return defaultGrace
}

func graceLeft(obj kube.Object) *int64 {
	if left := obj.GetDeletionGracePeriodSeconds(); left != nil {
		return left
	}
	return new(int64)
}

func inGrace(obj kube.Object) bool { return *graceLeft(obj) > 0 }

// storeLocked gives obj the next version, keeps it and notifies the watchers.
func (c *Cluster) storeLocked(k *kind, before, obj kube.Object) {
	c.version++
	obj.SetResourceVersion(strconv.FormatUint(c.version, 10))
	s := c.stores[k.resource]
	s.objects[key(obj)] = obj
	c.publishLocked(s, change{version: c.version, before: before, now: obj})
}

// dropLocked forgets an object; the version of its last state is that of the deletion.
func (c *Cluster) dropLocked(k *kind, obj kube.Object) kube.Object {
	s := c.stores[k.resource]
	before := s.objects[key(obj)]
	c.version++
	obj.SetResourceVersion(strconv.FormatUint(c.version, 10))
	delete(s.objects, key(obj))
	c.publishLocked(s, change{version: c.version, before: before, last: obj})
	return obj
}

// name makes up a name from generateName.
func (s *store) name(obj kube.Object) {
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		s.serial++
		obj.SetName(fmt.Sprintf("%s%05d", obj.GetGenerateName(), s.serial))
	}
}

// identify makes up what the server gives a new object.
func (s *store) identify(obj kube.Object) {
	if obj.GetUID() == "" {
		s.serial++
		obj.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012d", s.kind.number+1, s.serial)))
	}
	if at := obj.GetCreationTimestamp(); at.IsZero() {
		obj.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
}

// placeIn puts an object that names no namespace into that of the request.
func placeIn(k *kind, namespace string, obj kube.Object) error {
	switch {
	case !k.namespaced:
		obj.SetNamespace("")
	case namespace == "":
		return apierrors.NewBadRequest("an empty namespace may not be set when a resource name is provided")
	case obj.GetNamespace() == "":
		obj.SetNamespace(namespace)
	case obj.GetNamespace() != namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the provided object (%s) does not match the namespace sent on the request (%s)",
			obj.GetNamespace(), namespace))
	}
	return nil
}

// normalize sends an object through JSON, as a real request would: times lose their
// fractions, empty becomes nil, and the caller's object stays the caller's.
func normalize(k *kind, obj kube.Object) (kube.Object, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return decode(k, data)
}

func decode(k *kind, data []byte) (kube.Object, error) {
	obj := k.newObject()
	if err := json.Unmarshal(data, obj); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if k.defaults != nil {
		k.defaults(obj)
	}
	return obj, nil
}

func clone(obj kube.Object) kube.Object {
	copied, _ := obj.DeepCopyObject().(kube.Object)
	return copied
}

func uidConflict(gr schema.GroupResource, name string, wanted, actual types.UID) error {
	return apierrors.NewConflict(gr, name, fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", wanted, actual)) //nolint:staticcheck // the server's text
}
