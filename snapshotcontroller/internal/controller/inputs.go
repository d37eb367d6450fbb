package controller

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// inputs identifies what a snapshot, and the contents that refer to its name, are decided by, without what the controller writes into the snapshot.
func (c *Controller) inputs(key string) any {
	namespace, name, _ := strings.Cut(key, "/")
	var parts []string
	if s, ok := c.snapshots.Get(namespace, name); ok {
		parts = c.view(s).inputs()
	}
	return strings.Join(append(parts, versions(c.contents.ByIndex(indexRef, key))...), "\n")
}

// inputs identifies what planSnapshot decides about.
func (v view) inputs() []string {
	s := v.snapshot
	parts := []string{
		string(s.UID), fmt.Sprint(s.DeletionTimestamp != nil, s.Finalizers), ptr.Deref(s.Spec.VolumeSnapshotClassName, ""), v.restoring, v.node,
		fmt.Sprint(v.groupKnown, v.groupExists, v.groupDeleting), version(v.content), version(v.class),
	}
	if v.claim != nil {
		parts = append(parts, string(v.claim.UID), v.claim.Spec.VolumeName, string(v.claim.Status.Phase))
	}
	if v.volume != nil {
		parts = append(parts, string(v.volume.UID), fmt.Sprint(v.volume.Spec.ClaimRef))
	}
	return append(parts, versions(v.classes)...)
}

// versions identifies the states of objects, whatever their order.
func versions[T any, P interface {
	*T
	metav1.Object
}](objects []P) []string {
	parts := make([]string, 0, len(objects))
	for _, obj := range objects {
		parts = append(parts, version(obj))
	}
	slices.Sort(parts)
	return parts
}

// version identifies the state of an object; the empty text is none.
func version[T any, P interface {
	*T
	metav1.Object
}](obj P) string {
	if obj == nil {
		return ""
	}
	return string(obj.GetUID()) + "/" + obj.GetResourceVersion()
}
