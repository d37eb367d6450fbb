package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxGroupSteps bounds the writes for a group snapshot in a row, members apart.
const maxGroupSteps = 20

// reconcileGroup makes the writes that a group snapshot, and the contents that refer to its name, need.
func (g *groups) reconcileGroup(ctx context.Context, key string) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(key, "/")
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("groupSnapshot", key))
	pause, err := g.reconcileOne(ctx, namespace, name)
	if err != nil {
		return reconcile.Result{}, ignoreGone(err)
	}
	group, exists := g.groups.Get(namespace, name)
	for _, content := range g.groupContents.ByIndex(indexRef, key) {
		if !exists || !refersTo(content.Spec.VolumeGroupSnapshotRef, group) {
			if err := g.reconcileGroupOrphan(ctx, content, exists); err != nil {
				return reconcile.Result{}, ignoreGone(err)
			}
		}
	}
	return reconcile.Result{After: pause}, nil
}

// reconcileOne makes the writes that a group snapshot needs, and returns the pause after a failure.
func (g *groups) reconcileOne(ctx context.Context, namespace, name string) (time.Duration, error) {
	key, verified := namespace+"/"+name, false
	for steps := 0; ; steps++ {
		group, ok := g.groups.Get(namespace, name)
		if !ok {
			g.cfg.Operations.finish("group " + key)
			g.groupRetries.forget(key)
			return 0, nil
		}
		v := g.groupView(group)
		if v.content != nil {
			g.contentKnown(group.UID)
		}
		if pause := g.groupRetries.until(key, v.inputs()); pause > 0 {
			return pause, nil
		}
		if steps > maxGroupSteps+4*len(v.members)+len(v.snapshots) {
			return 0, fmt.Errorf("group snapshot %s: %d writes in a row have not been enough", key, steps)
		}
		v.contentGone = v.contentGone || verified
		g.cfg.Operations.observeGroup(group, v.content)
		p := planGroup(v)
		var err error
		switch p.verdict {
		case doNothing:
			g.recordGroup(group, p.events)
			g.groupRetries.forget(key)
			return 0, nil
		case doVerify:
			verified, err = g.verifyGroupGone(ctx, groupContentName(group))
		default:
			err = g.refusedGroup(ctx, group, p.verdict, g.performGroup(ctx, v, p))
		}
		switch {
		case err == nil:
			g.recordGroup(group, p.events)
		case kube.IsStale(err), errors.Is(err, kube.ErrGone), ctx.Err() != nil:
			return 0, err
		default:
			pause := g.groupRetries.fail(key, v.inputs())
			klog.FromContext(ctx).Error(err, "Write did not succeed, trying again", logging.KeyState, p.verdict, logging.KeyDelay, pause)
			return pause, nil
		}
	}
}

// groupView collects what the caches have about a group snapshot.
func (g *groups) groupView(group *groupv1.VolumeGroupSnapshot) groupView {
	v := groupView{group: group}
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

// members returns the volumes of which the driver has taken snapshots, with what exists of them, found by handle: other versions gave them
// other names.
func (g *groups) members(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) []member {
	if content.Status == nil || ptr.Deref(content.Status.VolumeGroupSnapshotHandle, "") == "" {
		return nil
	}
	var members []member
	for _, info := range snapshotapi.InfoList(content) {
		m := member{info: info}
		for _, pv := range g.pvs.ByIndex(indexHandle, handleKey(content.Spec.Driver, info.VolumeHandle)) {
			m.source.volume = pv
			if ref := pv.Spec.ClaimRef; ref != nil {
				m.source.claim, _ = g.claims.Get(ref.Namespace, ref.Name)
			}
		}
		m.content = g.memberContentOf(content, info)
		name := snapshotapi.MemberSnapshotName(group.UID, info.VolumeHandle)
		if m.content != nil {
			name = m.content.Spec.VolumeSnapshotRef.Name
		}
		m.snapshot, _ = g.snapshots.Get(group.Namespace, name)
		members = append(members, m)
	}
	return members
}

// memberContentOf returns the content of a member, nil if there is none: it has the annotation, or names group and snapshot in its status.
func (g *groups) memberContentOf(group *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo) *snapshotv1.VolumeSnapshotContent {
	handle := *group.Status.VolumeGroupSnapshotHandle
	for _, of := range g.contents.ByIndex(indexHandle, handleKey(group.Spec.Driver, info.VolumeHandle)) {
		if of.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle] == handle {
			return of
		}
	}
	for _, of := range g.contents.ByIndex(indexGroup, handle) {
		if of.Spec.Driver == group.Spec.Driver && ptr.Deref(of.Status.SnapshotHandle, "") == info.SnapshotHandle {
			return of
		}
	}
	return nil
}

// performGroup makes the write of a plan.
func (g *groups) performGroup(ctx context.Context, v groupView, p groupPlan) error {
	group := v.group
	switch p.verdict { //nolint:exhaustive // the others are no writes
	case doPatch:
		meta := asRead(group)
		meta["finalizers"] = p.finalizers
		change := map[string]any{"metadata": meta}
		if p.class != "" {
			change["spec"] = map[string]any{"volumeGroupSnapshotClassName": p.class}
		}
		return g.sendGroup(ctx, group, change)
	case doStatus:
		return g.patchGroupStatus(ctx, group, p.status)
	case doCreate:
		claims := make([]*corev1.PersistentVolumeClaim, 0, len(v.sources))
		for _, s := range v.sources {
			claims = append(claims, s.claim)
		}
		return g.protect(ctx, claims, group.UID, func(ctx context.Context) error { return g.createGroupContent(ctx, p.content) })
	case doPatchContent:
		meta := asRead(v.content)
		if changes, ok := p.contentPatch["metadata"].(map[string]any); ok {
			maps.Copy(meta, changes)
		}
		_, err := g.sendGroupContent(ctx, v.content, map[string]any{"metadata": meta, "spec": p.contentPatch["spec"]})
		return err
	case doMark:
		return g.markGroup(ctx, v.content)
	case doDelete:
		return g.deleteGroupContent(ctx, v.content)
	case doMember:
		return g.performMember(ctx, v, *p.member)
	case doDeleteMember:
		return g.deleteMember(ctx, p.member.snapshot)
	}
	return fmt.Errorf("no write is known for %q", p.verdict)
}

// refusedGroup tells users of an error that they can do something about, and returns it.
func (g *groups) refusedGroup(ctx context.Context, group *groupv1.VolumeGroupSnapshot, what verdict, err error) error {
	if !isRefused(err) {
		return err
	}
	reason := map[verdict]string{
		doPatch: ReasonFinalizerError, doStatus: ReasonStatusUpdateFailed, doCreate: ReasonCreateContentFailed, doPatchContent: ReasonBindFailed,
		doMember: ReasonCreateContentFailed, doMark: ReasonContentDeleteError, doDelete: ReasonContentDeleteError, doDeleteMember: ReasonContentDeleteError,
	}[what]
	p := problemf(reason, "Failed to %v", err)
	if current, ok := g.groups.Get(group.Namespace, group.Name); ok && current.DeletionTimestamp == nil && what != doStatus {
		if told := reportGroup(current, p); told.verdict == doStatus {
			_ = g.patchGroupStatus(ctx, current, told.status) // the error itself is retried
		}
	}
	g.recordGroup(group, []event{{true, p.reason, cut(p.message)}})
	return err
}

// performMember makes the next write for a member: its VolumeSnapshot, then its content, then the first status of that.
func (g *groups) performMember(ctx context.Context, v groupView, m member) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	snapshots, contents := g.cfg.Snapshots.VolumeSnapshots(v.group.Namespace), g.cfg.Snapshots.VolumeSnapshotContents()
	switch {
	case m.snapshot == nil && (m.content == nil || m.content.Spec.VolumeSnapshotRef.UID == ""):
		s := memberSnapshot(v, m)
		created, err := snapshots.Create(ctx, s, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			created, err = snapshots.Get(ctx, s.Name, metav1.GetOptions{})
		}
		if err != nil {
			return fmt.Errorf("create VolumeSnapshot %s: %w", keyOf(s), err)
		}
		if owner := ownerGroup(created); owner == nil || owner.uid != v.group.UID {
			return apierrors.NewInvalid(snapshotv1.SchemeGroupVersion.WithKind(snapshotapi.KindVolumeSnapshot).GroupKind(), created.Name, nil)
		}
		g.snapshots.Remember(created)
		return nil
	case m.content == nil:
		return g.create(ctx, memberContent(v, m, g.cfg.SourceVolumeMode))
	case m.content.Spec.VolumeSnapshotRef.UID == "":
		return g.patchContent(ctx, m.content, map[string]any{"spec": map[string]any{"volumeSnapshotRef": map[string]any{"uid": m.snapshot.UID}}})
	}
	patch, err := json.Marshal(map[string]any{"metadata": asRead(m.content), "status": memberStatus(v, m)})
	if err != nil {
		return err
	}
	patched, err := contents.Patch(ctx, m.content.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return kube.PatchError("VolumeSnapshotContent", m.content.Name, err)
	}
	g.contents.Remember(patched)
	return nil
}

// deleteMember deletes the VolumeSnapshot of a member.
func (g *groups) deleteMember(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	err := g.cfg.Snapshots.VolumeSnapshots(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete VolumeSnapshot %s: %w", keyOf(s), err)
	}
	g.deleted.Store(s.UID, nil)
	return nil
}

func (g *groups) patchGroupStatus(ctx context.Context, group *groupv1.VolumeGroupSnapshot, status *groupv1.VolumeGroupSnapshotStatus) error {
	patch, err := statusPatch(group, group.Status, status)
	if err != nil {
		return err
	}
	return g.sendGroupPatch(ctx, group, patch, "status")
}

func (g *groups) sendGroup(ctx context.Context, group *groupv1.VolumeGroupSnapshot, change map[string]any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return g.sendGroupPatch(ctx, group, patch)
}

func (g *groups) sendGroupPatch(ctx context.Context, group *groupv1.VolumeGroupSnapshot, patch []byte, subresources ...string) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	patched, err := g.cfg.Snapshots.VolumeGroupSnapshots(group.Namespace).
		Patch(ctx, group.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return kube.PatchError("VolumeGroupSnapshot", keyOf(group), err)
	}
	g.groups.Remember(patched)
	return nil
}

// createGroupContent creates a group content. One of that name is what an earlier attempt has created, or is refused by planGroupBound.
func (g *groups) createGroupContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	created, err := g.cfg.Snapshots.VolumeGroupSnapshotContents().Create(ctx, content, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		created, err = g.cfg.Snapshots.VolumeGroupSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("create VolumeGroupSnapshotContent %q: %w", content.Name, err)
	}
	g.groupContents.Remember(created)
	return nil
}

func (g *groups) markGroup(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	patched, err := g.sendGroupContent(ctx, content, map[string]any{"metadata": map[string]any{
		"uid": content.UID, "annotations": map[string]any{snapshotapi.AnnGroupBeingDeleted: "yes"},
	}})
	if err == nil && patched.Annotations[snapshotapi.AnnGroupBeingDeleted] == "" {
		err = fmt.Errorf("mark VolumeGroupSnapshotContent %q: the annotation %s is not there", content.Name, snapshotapi.AnnGroupBeingDeleted)
	}
	return err
}

func (g *groups) sendGroupContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, change map[string]any) (*groupv1.VolumeGroupSnapshotContent, error) {
	if change["spec"] == nil {
		delete(change, "spec")
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	patched, err := g.cfg.Snapshots.VolumeGroupSnapshotContents().Patch(ctx, content.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, kube.PatchError("VolumeGroupSnapshotContent", content.Name, err)
	}
	g.groupContents.Remember(patched)
	return patched, nil
}

func (g *groups) deleteGroupContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	err := g.cfg.Snapshots.VolumeGroupSnapshotContents().
		Delete(ctx, content.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &content.UID}})
	if apierrors.IsNotFound(err) {
		return kube.ErrGone // the watch brings it
	}
	if err != nil {
		return fmt.Errorf("delete VolumeGroupSnapshotContent %q: %w", content.Name, err)
	}
	g.deleted.Store(content.UID, nil)
	return nil
}

// verifyGroupGone asks the API server whether there is no group content of that name.
func (g *groups) verifyGroupGone(ctx context.Context, name string) (bool, error) {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	content, err := g.cfg.Snapshots.VolumeGroupSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !snapshotapi.IsAbsent(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get VolumeGroupSnapshotContent %q: %w", name, err)
	}
	g.groupContents.Remember(content)
	return false, nil
}

// reconcileGroupOrphan marks a group content that an admin has deleted and whose group snapshot the API server does not have.
func (g *groups) reconcileGroupOrphan(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, named bool) error {
	ref, from := content.Spec.VolumeGroupSnapshotRef, content.Spec.Source
	switch {
	case (len(from.VolumeHandles) == 0) == (from.GroupSnapshotHandles == nil):
		g.cfg.Events.Warning(refTo(content, groupv1.SchemeGroupVersion.String(), "VolumeGroupSnapshotContent"), "Group"+ReasonContentValidation,
			"exactly one of volumeHandles and groupSnapshotHandles must be set")
		return nil
	case ref.UID == "" && (named || from.GroupSnapshotHandles != nil), content.Annotations[snapshotapi.AnnGroupBeingDeleted] != "":
		return nil
	case content.DeletionTimestamp == nil:
		if meta := contentMeta(content, ""); len(meta) > 0 && ref.UID != "" {
			maps.Copy(meta, asRead(content))
			_, err := g.sendGroupContent(ctx, content, map[string]any{"metadata": meta})
			return err
		}
		return nil
	}
	if exists, err := g.groupSnapshotExists(ctx, ref); err != nil || exists {
		return err
	}
	return g.markGroup(ctx, content)
}

// groupSnapshotExists asks the API server for the group snapshot that a content refers to.
func (g *groups) groupSnapshotExists(ctx context.Context, ref corev1.ObjectReference) (bool, error) {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	group, err := g.cfg.Snapshots.VolumeGroupSnapshots(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !snapshotapi.IsAbsent(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get VolumeGroupSnapshot %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return ref.UID == "" || group.UID == ref.UID, nil
}

// recordGroup records the events of a plan.
func (g *groups) recordGroup(group *groupv1.VolumeGroupSnapshot, events []event) {
	ref := refTo(group, groupv1.SchemeGroupVersion.String(), snapshotapi.KindVolumeGroupSnapshot)
	for _, e := range events {
		if e.warning {
			g.cfg.Events.Warning(ref, groupReason(e.reason), e.message)
		} else {
			g.cfg.Events.Normal(ref, groupReason(e.reason), e.message)
		}
	}
}

// inputs identifies what planGroup decides about, without what the controller writes itself.
func (v groupView) inputs() string {
	parts := []string{
		string(v.group.UID), fmt.Sprint(v.group.DeletionTimestamp != nil, v.group.Finalizers), v.restoring, version(v.content), version(v.class), v.node,
		ptr.Deref(v.group.Spec.VolumeGroupSnapshotClassName, ""),
	}
	for _, class := range v.classes {
		parts = append(parts, version(class))
	}
	for _, s := range v.sources {
		parts = append(parts, string(s.claim.UID), s.claim.Spec.VolumeName, string(s.claim.Status.Phase))
		if s.volume != nil {
			parts = append(parts, string(s.volume.UID), fmt.Sprint(s.volume.Spec.ClaimRef))
		}
	}
	for _, m := range v.members {
		parts = append(parts, fmt.Sprint(m.snapshot != nil), version(m.content))
	}
	return strings.Join(parts, "\n")
}
