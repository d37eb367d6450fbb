package controller

import (
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// view is what the caches have about one owner.
type view struct {
	*kind

	owner *owner
	// content is that which the owner names, is bound to, or was made for it. nil: there is none.
	content *content
	// contentGone: the API server, not only the cache, has no such content. unanswered is how much longer one may come: a creation has had no answer.
	contentGone bool
	unanswered  time.Duration
	// contentDeleted: the API server has accepted the deletion of the content, whatever the cache has.
	contentDeleted bool
	// named is the class that the owner names, nil if it does not exist. classes are all, for the default.
	named   *class
	classes []*class
	// sources are the claims that a snapshot is asked for of.
	sources     []source
	selectorErr error
	// inUse is what the snapshot, or one of the group, is being used for; empty: nothing.
	inUse string
	// grace is how long the owner is not yet shown as bound to the content that was just created: most are ready soon, and then need one write of
	// the status.
	grace time.Duration
	// node is the value of the label that says which node's csi-snapshotter is in charge of the volumes; empty: no label, or it stays.
	node string
	// sourceVolumeMode says that contents record the mode of their volume.
	sourceVolumeMode bool

	// group is the group snapshot that a snapshot is a member of, nil for none. groupUnknown: it is not known yet whether it exists, groupUnread: and that will
	// not be known soon. groupVersion is the one that is served.
	group                                                 *groupRef
	groupUnknown, groupUnread, groupExists, groupDeleting bool
	groupVersion                                          string

	// members are the volumes of a group that the driver has taken a snapshot of. memberRefused: the API server has refused one of them.
	members       []member
	memberRefused bool
	// snapshots are the VolumeSnapshots of a group that is being deleted.
	snapshots []*snapshotv1.VolumeSnapshot
}

// source is a claim by its name, and its volume. Both are nil if they do not exist.
type source struct {
	name   string
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// groupRef identifies a VolumeGroupSnapshot in the namespace of its members.
type groupRef struct {
	name string
	uid  types.UID
}

// verdict is the next write for an owner.
type verdict string

const (
	doNothing verdict = "nothing"
	// doPatch writes finalizers, class and owner of the owner.
	doPatch verdict = "patch"
	// doCreate puts the finalizer on the claims, then creates the content.
	doCreate verdict = "create"
	// doPatchContent writes plan.contentPatch, which needs the content to be as it was read.
	doPatchContent verdict = "patchContent"
	// doStatus writes the status of the owner.
	doStatus verdict = "status"
	// doMark says on the content that it may be deleted.
	doMark verdict = "mark"
	// doDelete deletes the content.
	doDelete verdict = "delete"
	// doVerify asks the API server whether the content exists, as the cache has none.
	doVerify verdict = "verify"
	// doMember makes a write for plan.member, doDeleteMember deletes its snapshot.
	doMember       verdict = "member"
	doDeleteMember verdict = "deleteMember"
)

// plan is the next write for an owner, and what users are told.
type plan struct {
	verdict verdict
	// finalizers, owners and class are those of the owner after doPatch; class is empty if it stays.
	finalizers []string
	owners     []metav1.OwnerReference
	class      string
	// content is what doCreate creates; contentPatch the changes of doPatchContent.
	content      *newContent
	contentPatch map[string]any
	// status is that of doStatus.
	status *status
	// member is that of doMember and doDeleteMember.
	member *member
	// events are recorded once the write has succeeded.
	events []event
	// after is when to look again after doNothing, although nothing has changed. 0: never.
	after time.Duration
}

// event is one for users, about the owner.
type event struct {
	warning         bool
	reason, message string
}

// problem is what keeps an owner from what it asks for, until an object changes.
type problem struct{ reason, message string }

// Error implements error.
func (p *problem) Error() string { return p.message }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// plan decides what is next for an owner.
func (v view) plan() plan {
	o := v.owner
	if o.GetDeletionTimestamp() != nil {
		return v.planDelete()
	}
	switch {
	case o.dynamic == (o.existing != nil):
		return report(o, problemf(ReasonValidation, "exactly one of %s must be set", v.kind.sources))
	case v.content != nil:
		return v.planBound()
	case o.existing != nil:
		return report(o, problemf(ReasonContentMissing, "%s %q is missing: create it, or delete the %s", v.contentKind, *o.existing, v.what))
	case o.bound() != "":
		return report(o, problemf(ReasonContentMissing, "%s %q is missing: it was deleted, and %s with it", v.contentKind, o.bound(), v.all))
	case v.group != nil:
		return plan{verdict: doNothing} // the content of a member is created with the group
	}
	class, content, err := v.newContent()
	if err != nil {
		return report(o, err)
	}
	if todo, needed := v.planMeta(class.GetName(), class.policy); needed {
		return todo
	}
	return plan{verdict: doCreate, content: content}
}

// planMeta puts finalizers, class and owner on the owner, if any of them is missing.
func (v view) planMeta(class string, policy snapshotv1.DeletionPolicy) (plan, bool) {
	o := v.owner
	todo := plan{verdict: doPatch, finalizers: withAll(o.GetFinalizers(), v.finalizers...), owners: o.GetOwnerReferences()}
	if policy == snapshotv1.VolumeSnapshotContentDelete {
		todo.finalizers = withAll(todo.finalizers, v.finalizersDelete...)
	}
	if o.class == nil {
		todo.class = class
	}
	if v.group != nil && v.groupExists && !v.groupDeleting {
		todo.finalizers = withAll(todo.finalizers, snapshotapi.FinalizerInGroup)
		if ownerGroup(o) == nil {
			todo.owners = append(slices.Clone(todo.owners), groupOwner(*v.group, v.groupVersion))
		}
	}
	needed := todo.class != "" || len(todo.finalizers) != len(o.GetFinalizers()) || len(todo.owners) != len(o.GetOwnerReferences())
	return todo, needed
}

// planBound binds an owner and its content to each other, makes the members of a group, and copies the status.
func (v view) planBound() plan {
	o, c := v.owner, v.content
	if err := v.mismatch(); err != nil {
		return report(o, err)
	}
	if todo, needed := v.planMeta("", c.policy); needed {
		return todo
	}
	if c.status == nil && c.has(snapshotapi.AnnVolumeGroupSnapshotHandle) {
		return plan{verdict: doNothing} // what creates a member writes its first status, too
	}
	if patch := v.bindingPatch(); patch != nil {
		return plan{verdict: doPatchContent, contentPatch: patch}
	}
	if todo, needed := v.planMembers(); needed {
		return todo
	}
	if v.grace > 0 && c.status == nil && o.status == nil {
		return plan{verdict: doNothing, after: v.grace}
	}
	now := v.copiedStatus()
	todo := planStatus(o, now)
	todo.events = append(todo.events, v.statusEvents(now)...)
	return todo
}

// planMembers makes the next write for the members of a group that is not ready.
func (v view) planMembers() (plan, bool) {
	if v.owner.isReady() {
		return plan{}, false
	}
	for i := range v.members {
		if m := &v.members[i]; m.info.SnapshotHandle == "" {
			return report(v.owner, problemf(ReasonCreateContentFailed, "%s %q has no handle of the snapshot of volume %q, which is a defect of the driver: delete the %s",
				v.contentKind, v.content.GetName(), m.info.VolumeHandle, v.what)), true
		} else if m.lacks() {
			return plan{verdict: doMember, member: m}, true
		}
	}
	return plan{verdict: doNothing}, v.memberRefused
}

// mismatch returns what keeps an owner and its content from being bound.
func (v view) mismatch() error {
	o, c := v.owner, v.content
	name := c.GetName()
	switch preProvisioned := o.existing != nil; {
	case preProvisioned && !c.existing:
		return problemf(ReasonContentMismatch, "%s %q is dynamically provisioned while expecting a pre-provisioned one", v.contentKind, name)
	case !preProvisioned && len(c.volumes) == 0 && ownerGroup(o) == nil:
		return problemf(ReasonContentMismatch, "%s %q is pre-provisioned while expecting a dynamically provisioned one", v.contentKind, name)
	case refersTo(c.ref, o), preProvisioned && c.ref.UID == "" && c.refKey() == keyOf(o):
		return nil
	case o.bound() != "":
		return problemf(ReasonMisbound, "%s %q is not bound to the %s correctly: it refers to %s", v.contentKind, name, v.ownerKind, refText(c.ref))
	}
	return problemf(ReasonContentMisbound, "%s %q is bound to a different %s: %s", v.contentKind, name, v.what, refText(c.ref))
}

// bindingPatch is what the content lacks of being bound: the uid of the owner, its class, the finalizer, the node. A mark of a former owner's
// deletion goes, which is none of this one's. nil: nothing is lacking.
func (v view) bindingPatch() map[string]any {
	o, c := v.owner, v.content
	patch, meta := map[string]any{}, v.lacks(c, v.node)
	if c.ref.UID == "" {
		spec := map[string]any{v.refField: map[string]any{"uid": o.GetUID()}}
		if o.class != nil && c.class == nil {
			spec[v.classField] = *o.class
		}
		patch["spec"] = spec
		if c.has(v.beingDeleted) && c.GetDeletionTimestamp() == nil {
			meta["annotations"] = map[string]any{v.beingDeleted: nil}
		}
	}
	if len(meta) > 0 {
		patch["metadata"] = meta
	}
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// lacks is what a content lacks of its metadata: the finalizer, and the node that is in charge of it.
func (k *kind) lacks(c *content, node string) map[string]any {
	meta := map[string]any{}
	if c.GetDeletionTimestamp() == nil && !slices.Contains(c.GetFinalizers(), k.contentFinalizer) {
		meta["finalizers"] = withAll(c.GetFinalizers(), k.contentFinalizer)
	}
	if node != "" && c.GetLabels()[snapshotapi.LabelManagedBy] != node {
		meta["labels"] = map[string]any{snapshotapi.LabelManagedBy: node}
	}
	return meta
}

// planDelete takes an owner that is being deleted apart, in the order that csi-snapshotter relies on: the annotation beingDeleted on the content, then
// its deletion, and the finalizers of the owner when the content is gone. The members of a group are deleted before.
func (v view) planDelete() plan {
	o, c := v.owner, v.content
	rest := without(o.GetFinalizers(), v.ownFinalizers()...)
	if len(rest) == len(o.GetFinalizers()) {
		return plan{verdict: doNothing}
	}
	if todo, waits := v.planWaiting(); waits {
		return todo
	}
	owned := c != nil && refersTo(c.ref, o)
	deleting := owned && (c.GetDeletionTimestamp() != nil || v.contentDeleted)
	if owned {
		if todo, needed := v.planContentDelete(deleting); needed {
			return todo
		}
	}
	for _, s := range v.snapshots {
		if s.DeletionTimestamp == nil {
			return plan{verdict: doDeleteMember, member: &member{snapshot: s}}
		}
	}
	if deleting {
		return v.planDeleting()
	}
	return plan{verdict: doPatch, finalizers: rest, owners: o.GetOwnerReferences()}
}

// planContentDelete marks the content of an owner that is being deleted, and deletes it if its policy says so.
func (v view) planContentDelete(deleting bool) (plan, bool) {
	switch c, meta := v.content, v.lacks(v.content, v.node); {
	case len(meta) > 0:
		return plan{verdict: doPatchContent, contentPatch: map[string]any{"metadata": meta}}, true
	case !c.has(v.beingDeleted):
		return plan{verdict: doMark}, true
	case !deleting && c.policy == snapshotv1.VolumeSnapshotContentDelete:
		return plan{verdict: doDelete}, true
	}
	return plan{}, false
}

// planWaiting says what an owner that is being deleted waits for: a use of the snapshot, its group, or certainty that there is no content.
func (v view) planWaiting() (plan, bool) {
	switch {
	case v.inUse != "":
		return v.pending(v.inUse), true
	case v.groupUnread:
		return v.pending(fmt.Sprintf("It is not known whether VolumeGroupSnapshot %q exists, which the snapshot is a member of: the API server does not say whether it has group snapshots", v.group.name)), true
	case v.groupUnknown, v.groupDeleting:
		return plan{verdict: doNothing}, true // the group comes first
	case v.groupExists:
		return v.pending(fmt.Sprintf("Snapshot is a member of VolumeGroupSnapshot %q: it is deleted with the group", v.group.name)), true
	case v.content == nil && !v.contentGone:
		return plan{verdict: doVerify}, true
	case v.content == nil && v.unanswered > 0:
		return plan{verdict: doNothing, after: v.unanswered}, true
	}
	return plan{}, false
}

// planDeleting shows the driver's error while csi-snapshotter deletes the snapshot. An older one is of the creation.
func (v view) planDeleting() plan {
	o, c := v.owner, v.content
	if c.status == nil || c.status.err == nil {
		return plan{verdict: doNothing}
	}
	what := "Failed to delete " + v.what + ": "
	switch err, deleted := c.status.err, c.GetDeletionTimestamp(); {
	case c.has(v.beingCreated):
		what = v.What + " is deleted when the driver has answered whether it was created: "
	case deleted == nil, err.Time != nil && err.Time.Before(deleted):
		return plan{verdict: doNothing}
	}
	now := o.copyStatus()
	now.Error = copiedError(now.Error, c.status.err)
	todo := planStatus(o, now)
	todo.events = []event{{true, ReasonDeleteError, what + messageOf(c.status.err)}}
	return todo
}

// pending waits, and says why. Meanwhile the status is kept up to date, as a restore may need it.
func (v view) pending(message string) plan {
	todo := plan{verdict: doNothing}
	if v.content != nil && v.mismatch() == nil {
		now := v.copiedStatus()
		todo = planStatus(v.owner, now)
		todo.events = v.statusEvents(now)
	}
	todo.events = append(todo.events, event{true, ReasonDeletePending, message})
	return todo
}

// report writes a problem to the status, if it is not there yet.
func report(o *owner, err error) plan {
	now := o.copyStatus()
	now.Ready = new(false)
	message := kube.Cut(err.Error(), maxMessage)
	now.Error = copiedError(now.Error, &snapshotv1.VolumeSnapshotError{Message: &message})
	todo := planStatus(o, now)
	todo.events = []event{{true, reasonOf(err), message}}
	return todo
}

// reasonOf returns the reason of a problem.
func reasonOf(err error) string {
	if p, ok := err.(*problem); ok { //nolint:errorlint // problems are never wrapped
		return p.reason
	}
	return ReasonValidation
}
