package controller

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Indexes of the caches.
const (
	indexClaim    = "claim"    // snapshots by the claim that they are to be taken of
	indexContent  = "content"  // snapshots by the content that they name or are bound to
	indexWaiting  = "waiting"  // snapshots without a content, by class; those without a class by ""
	indexRef      = "ref"      // contents by the owner that they refer to
	indexHandle   = "handle"   // contents, and volumes, by driver and volume handle
	indexRestored = "restored" // unbound claims by the snapshot that they are restored from
	indexGroup    = "group"    // snapshots by the UID of the group snapshot that owns them, contents by the handle of the group
	indexNode     = "node"     // contents by the node that is in charge of them, and by that and their driver; see nodeKey
	// indexNamespace has claims, and the group snapshots without a content, by their namespace.
	indexNamespace = "namespace"
)

// waitingDefault is the value of indexWaiting for snapshots that wait for a default class: no class can have the name.
const waitingDefault = "/"

func indexSnapshots() map[string]func(*snapshotv1.VolumeSnapshot) []string {
	return map[string]func(*snapshotv1.VolumeSnapshot) []string{
		indexClaim: func(s *snapshotv1.VolumeSnapshot) []string {
			if name := s.Spec.Source.PersistentVolumeClaimName; name != nil {
				return []string{s.Namespace + "/" + *name}
			}
			return nil
		},
		indexContent: func(s *snapshotv1.VolumeSnapshot) []string { return []string{ownerOfSnapshot(s).contentName()} },
		indexGroup: func(s *snapshotv1.VolumeSnapshot) []string {
			if group := ownerGroup(s); group != nil {
				return []string{string(group.uid)}
			}
			return nil
		},
		indexWaiting: func(s *snapshotv1.VolumeSnapshot) []string {
			switch o := ownerOfSnapshot(s); {
			case o.bound() != "" || !o.dynamic:
				return nil
			case o.class == nil:
				return []string{waitingDefault}
			default:
				return []string{*o.class}
			}
		},
	}
}

func indexContents() map[string]func(*snapshotv1.VolumeSnapshotContent) []string {
	index := contentIndexes(contentOfSnapshot)
	index[indexGroup] = func(of *snapshotv1.VolumeSnapshotContent) []string { return nonempty(statusGroup(of)) }
	return index
}

func indexGroups() map[string]func(*groupv1.VolumeGroupSnapshot) []string {
	return map[string]func(*groupv1.VolumeGroupSnapshot) []string{
		indexContent: func(group *groupv1.VolumeGroupSnapshot) []string { return []string{ownerOfGroup(group).contentName()} },
		indexNamespace: func(group *groupv1.VolumeGroupSnapshot) []string {
			if o := ownerOfGroup(group); o.bound() != "" || !o.dynamic {
				return nil
			}
			return []string{group.Namespace, "/"} // "/": those of all namespaces
		},
	}
}

func indexGroupContents() map[string]func(*groupv1.VolumeGroupSnapshotContent) []string {
	index := contentIndexes(contentOfGroup)
	index[indexGroup] = func(of *groupv1.VolumeGroupSnapshotContent) []string {
		return nonempty(contentOfGroup(of).groupHandle())
	}
	return index
}

// contentIndexes are the indexes that contents of both kinds have.
func contentIndexes[C any](contentOf func(C) *content) map[string]func(C) []string {
	return map[string]func(C) []string{
		indexRef: func(of C) []string { return []string{contentOf(of).refKey()} },
		indexHandle: func(of C) []string {
			c := contentOf(of)
			keys := make([]string, 0, len(c.volumes))
			for _, handle := range c.volumes {
				keys = append(keys, handleKey(c.driver, handle))
			}
			return keys
		},
		indexNode: func(of C) []string {
			c := contentOf(of)
			if len(c.volumes) == 0 {
				return nil
			}
			label := c.GetLabels()[snapshotapi.LabelManagedBy]
			return []string{nodeKey(label, ""), nodeKey(label, c.driver)}
		},
	}
}

// groupHandle returns the handle of a group content, empty for none.
func (c *content) groupHandle() string {
	switch source := c.group.Spec.Source.GroupSnapshotHandles; {
	case c.status != nil && c.status.handle != "":
		return c.status.handle
	case source != nil:
		return source.VolumeGroupSnapshotHandle
	}
	return ""
}

func nonempty(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

func indexClaims() map[string]func(*corev1.PersistentVolumeClaim) []string {
	return map[string]func(*corev1.PersistentVolumeClaim) []string{
		indexRestored:  restoredFrom,
		indexNamespace: func(claim *corev1.PersistentVolumeClaim) []string { return []string{claim.Namespace} },
	}
}

func indexPVs() map[string]func(*corev1.PersistentVolume) []string {
	return map[string]func(*corev1.PersistentVolume) []string{indexHandle: func(pv *corev1.PersistentVolume) []string {
		if pv.Spec.CSI == nil {
			return nil
		}
		return []string{handleKey(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)}
	}}
}

func handleKey(driver, handle string) string { return driver + "/" + handle }

// restoredFrom returns the keys of the snapshots that an unbound claim is to be restored from.
func restoredFrom(claim *corev1.PersistentVolumeClaim) []string {
	if claim.Status.Phase != corev1.ClaimPending && claim.Status.Phase != "" {
		return nil
	}
	var keys []string
	if ref := claim.Spec.DataSourceRef; ref != nil && isSnapshot(ref.APIGroup, ref.Kind) {
		namespace := claim.Namespace
		if ref.Namespace != nil && *ref.Namespace != "" {
			namespace = *ref.Namespace
		}
		keys = append(keys, namespace+"/"+ref.Name)
	}
	if ref := claim.Spec.DataSource; ref != nil && isSnapshot(ref.APIGroup, ref.Kind) {
		keys = append(keys, claim.Namespace+"/"+ref.Name)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func isSnapshot(group *string, kind string) bool {
	return group != nil && *group == snapshotapi.Group && kind == snapshotapi.KindVolumeSnapshot
}

// isResync reports whether nothing has changed: the period of Config.Resync has passed.
func isResync(before, after metav1.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion()
}

// onChange has a function called with the owners or contents that change; nil is none.
func onChange[T kube.Object, R any](in *kube.Informer[T], convert func(T) *R, changed func(before, after *R)) {
	var none T
	optional := func(obj T) *R {
		if any(obj) == any(none) {
			return nil
		}
		return convert(obj)
	}
	in.OnChange(func(before, after T) { changed(optional(before), optional(after)) })
}

// ownerChanged queues an owner, and forgets what was known of one that is gone.
func (p *pairs) ownerChanged(before, after *owner) {
	if before != nil && (after == nil || after.GetUID() != before.GetUID()) {
		p.gone.Delete(before.contentName())
		p.contentKnown(before.GetUID())
		p.deleted.Delete(before.GetUID())
		p.vanished.note(before)
	}
	p.queue.Add(keyOf(cmp.Or(after, before)))
}

// contentChanged queues the owners that a content belongs to, and the claims of its volumes. It returns the owners that name it.
func (p *pairs) contentChanged(before, after *content) (named []*owner) {
	last := cmp.Or(after, before)
	named = p.ownersOf(last.GetName())
	p.noteContent(before, after, len(named) > 0)
	for _, o := range named {
		p.queue.Add(keyOf(o))
	}
	p.queue.Add(last.refKey())
	if before != nil && before.refKey() != last.refKey() {
		p.queue.Add(before.refKey())
	}
	if before == nil || after == nil || !isResync(before, after) {
		p.wakeClaims(last)
	}
	if before != nil && after != nil && before.GetUID() != after.GetUID() { // another content of that name
		p.wakeClaims(before)
	}
	return named
}

// noteContent remembers that the content of an owner is gone, and forgets what was known of contents that are.
func (p *pairs) noteContent(before, after *content, named bool) {
	if after != nil {
		p.gone.Delete(after.GetName())
	} else if named {
		p.gone.Store(before.GetName(), nil)
	}
	if before != nil && (after == nil || after.GetUID() != before.GetUID()) {
		p.deleted.Delete(before.GetUID())
		p.created.Delete(before.GetUID())
	}
}

// wakeClaims queues the claims of the volumes of a content.
func (c *Controller) wakeClaims(of *content) {
	for _, handle := range of.volumes {
		for _, pv := range c.pvs.ByIndex(indexHandle, handleKey(of.driver, handle)) {
			if ref := pv.Spec.ClaimRef; ref != nil {
				c.claimQueue.Add(ref.Namespace + "/" + ref.Name)
			}
		}
	}
}

// snapshotContentChanged also queues the claims that the snapshots of a content have been taken of, which may have another volume now.
func (c *Controller) snapshotContentChanged(before, after *content) {
	for _, o := range c.singles.contentChanged(before, after) {
		if name := o.snapshot.Spec.Source.PersistentVolumeClaimName; name != nil {
			c.claimQueue.Add(o.GetNamespace() + "/" + *name)
		}
	}
}

// groupChanged also queues the members of a group that comes, goes or is being deleted.
func (g *groups) groupChanged(before, after *owner) {
	g.ownerChanged(before, after)
	if before != nil && after != nil && before.GetUID() == after.GetUID() && (before.GetDeletionTimestamp() == nil) == (after.GetDeletionTimestamp() == nil) {
		return
	}
	for _, group := range []*owner{before, after} {
		if group == nil {
			continue
		}
		snapshots := g.snapshots.ByIndex(indexGroup, string(group.GetUID()))
		members := make([]string, 0, len(snapshots))
		for _, s := range snapshots {
			members = append(members, keyOf(s))
		}
		addSorted(g.singles.queue, members)
	}
}

// groupContentChanged also queues the members of a group content.
func (g *groups) groupContentChanged(before, after *content) {
	g.contentChanged(before, after)
	if before != nil && after != nil && isResync(before, after) {
		return
	}
	for _, c := range []*content{before, after} {
		if c == nil || c.groupHandle() == "" {
			continue
		}
		for _, member := range g.singles.contentsWith(indexGroup, c.groupHandle()) {
			g.singles.queue.Add(member.refKey())
		}
	}
}

// wakeWaitingGroups queues the group snapshots of a namespace that have no content.
func (g *groups) wakeWaitingGroups(namespace string) {
	for _, group := range g.owners.ByIndex(indexNamespace, namespace) {
		g.queue.Add(keyOf(group))
	}
}

// addSorted adds keys in their order.
func addSorted(queue *reconcile.Controller[string], keys []string) {
	slices.Sort(keys)
	for _, key := range keys {
		queue.Add(key)
	}
}

func (c *Controller) classChanged(before, after *snapshotv1.VolumeSnapshotClass) {
	for _, value := range []string{cmp.Or(after, before).Name, waitingDefault} {
		for _, s := range c.snapshots.ByIndex(indexWaiting, value) {
			c.singles.queue.Add(keyOf(s))
		}
	}
}

func (c *Controller) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	for _, claim := range []*corev1.PersistentVolumeClaim{before, after} {
		if claim == nil {
			continue
		}
		for _, key := range restoredFrom(claim) {
			c.singles.queue.Add(key)
			c.wakeGroupOf(key)
		}
	}
	if after == nil {
		after = before
	}
	if isProtected(after) {
		c.claimQueue.Add(keyOf(after))
	}
	if before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec) || before.Status.Phase != after.Status.Phase || before.UID != after.UID ||
		!maps.Equal(before.Labels, after.Labels) {
		c.wakeWaiting(keyOf(after))
	}
}

func (c *Controller) pvChanged(before, after *corev1.PersistentVolume) {
	if after == nil || after.Spec.ClaimRef == nil || before != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return
	}
	c.wakeWaiting(after.Spec.ClaimRef.Namespace + "/" + after.Spec.ClaimRef.Name)
}

// wakeGroupOf queues the group snapshot that a snapshot is a member of.
func (c *Controller) wakeGroupOf(key string) {
	namespace, name, _ := strings.Cut(key, "/")
	on, _ := c.served()
	s, ok := c.snapshots.Get(namespace, name)
	if !ok || on == nil {
		return
	}
	if group := ownerGroup(s); group != nil {
		on.queue.Add(namespace + "/" + group.name)
	}
}

// wakeWaiting queues the snapshots of a claim, and the group snapshots in its namespace, that have no content.
func (c *Controller) wakeWaiting(claim string) {
	if on, _ := c.served(); on != nil {
		namespace, _, _ := strings.Cut(claim, "/")
		on.wakeWaitingGroups(namespace)
	}
	for _, s := range c.snapshots.ByIndex(indexClaim, claim) {
		if ownerOfSnapshot(s).bound() == "" {
			c.singles.queue.Add(keyOf(s))
		}
	}
}
