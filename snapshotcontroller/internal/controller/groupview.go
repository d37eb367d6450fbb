package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// groupView collects what the caches have about a group snapshot.
func (g *groups) groupView(group *groupv1.VolumeGroupSnapshot) groupView {
	v := groupView{group: group, version: g.version}
	name := groupContentName(group)
	if content, ok := g.groupContents.Get("", name); ok {
		v.content = content
		v.node = g.nodeForGroup(content, content.Spec.Driver, content.Spec.Source.VolumeHandles)
		_, v.contentDeleted = g.deleted.Load(content.UID)
	} else {
		_, v.contentGone = g.gone.Load(name)
	}
	if group.DeletionTimestamp != nil {
		v.snapshots = slices.DeleteFunc(g.snapshots.ByIndex(indexGroup, string(group.UID)), func(s *snapshotv1.VolumeSnapshot) bool {
			_, deleted := g.deleted.Load(s.UID)
			return deleted
		})
		slices.SortFunc(v.snapshots, func(a, b *snapshotv1.VolumeSnapshot) int { return cmp.Compare(a.Name, b.Name) })
		for _, s := range v.snapshots {
			v.restoring = cmp.Or(v.restoring, g.restoring(s))
		}
		return v
	}
	if v.content != nil {
		v.members = g.members(group, v.content)
		return v
	}
	if selector := group.Spec.Source.Selector; selector != nil {
		v.sources, v.selectorErr = g.selected(group.Namespace, selector)
		if class := group.Spec.VolumeGroupSnapshotClassName; class != nil {
			v.class, _ = g.groupClasses.Get("", *class)
		} else {
			v.classes = g.groupClasses.List()
		}
		var driver string
		var handles []string
		for _, s := range v.sources {
			if s.volume != nil && s.volume.Spec.CSI != nil {
				driver, handles = s.volume.Spec.CSI.Driver, append(handles, s.volume.Spec.CSI.VolumeHandle)
			}
		}
		v.node = g.nodeForGroup(nil, driver, handles)
	}
	return v
}

// nodeForGroup is nodeFor for the volumes of a group, which one node must be able to reach.
func (g *groups) nodeForGroup(content *groupv1.VolumeGroupSnapshotContent, driver string, handles []string) string {
	if g.nodes == nil || len(handles) == 0 {
		return ""
	}
	var volumes []*corev1.PersistentVolume
	for _, handle := range handles {
		volumes = append(volumes, g.volumeOf(driver, handle))
	}
	if content == nil {
		return g.nodeFor(nil, driver, volumes...)
	}
	return g.nodeFor(content, driver, volumes...)
}

// selected returns the claims of a namespace that a selector matches, by name.
func (g *groups) selected(namespace string, by *metav1.LabelSelector) ([]source, error) {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, claim := range g.claims.ByIndex(indexNamespace, namespace) {
		if selector.Matches(labels.Set(claim.Labels)) {
			_, pv := g.claimOf(namespace, claim.Name)
			sources = append(sources, source{claim, pv})
		}
	}
	slices.SortFunc(sources, func(a, b source) int { return cmp.Compare(a.claim.Name, b.claim.Name) })
	return sources, nil
}

// inputs identifies what a group snapshot, and the contents that refer to its name, are decided by, without what the controller writes into the group.
func (g *groups) inputs(key string) any {
	namespace, name, _ := strings.Cut(key, "/")
	var parts []string
	if group, ok := g.groups.Get(namespace, name); ok {
		parts = g.groupView(group).inputs()
	}
	return strings.Join(append(parts, versions(g.groupContents.ByIndex(indexRef, key))...), "\n")
}

// inputs identifies what planGroup decides about.
func (v groupView) inputs() []string {
	parts := []string{
		string(v.group.UID), fmt.Sprint(v.group.DeletionTimestamp != nil, v.group.Finalizers), v.restoring, version(v.content), version(v.class), v.node,
		ptr.Deref(v.group.Spec.VolumeGroupSnapshotClassName, ""),
	}
	parts = append(parts, versions(v.classes)...)
	for _, s := range v.sources {
		parts = append(parts, string(s.claim.UID), s.claim.Spec.VolumeName, string(s.claim.Status.Phase))
		if s.volume != nil {
			parts = append(parts, string(s.volume.UID), fmt.Sprint(s.volume.Spec.ClaimRef))
		}
	}
	for _, m := range v.members {
		parts = append(parts, fmt.Sprint(m.snapshot != nil), version(m.content))
	}
	return parts
}
