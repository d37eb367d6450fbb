package controller

import (
	"context"
	"fmt"
	"maps"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxGroupSteps bounds the writes for a group snapshot in a row, members apart.
const maxGroupSteps = 20

// reconcileGroup makes the writes that a group snapshot, and the contents that refer to its name, need.
func (g *groups) reconcileGroup(ctx context.Context, key string) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(key, "/")
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("groupSnapshot", key))
	if err := g.reconcileOne(ctx, namespace, name); err != nil {
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
	return reconcile.Result{After: g.groupVanished.forget(key, g.groupContents.ByIndex(indexRef, key))}, nil
}

// reconcileOne makes the writes that a group snapshot needs.
func (g *groups) reconcileOne(ctx context.Context, namespace, name string) error {
	key, verified := namespace+"/"+name, false
	for steps := 0; ; steps++ {
		group, ok := g.groups.Get(namespace, name)
		if !ok {
			g.cfg.Operations.finish("group " + key)
			return nil
		}
		v := g.groupView(group)
		if v.content != nil {
			g.contentKnown(group.UID)
		}
		if steps > maxGroupSteps+4*len(v.members)+len(v.snapshots) {
			return fmt.Errorf("group snapshot %s: %d writes in a row have not been enough", key, steps)
		}
		v.contentGone = v.contentGone || verified
		g.cfg.Operations.observeGroup(group, v.content)
		p := planGroup(v)
		var err error
		switch p.verdict {
		case doNothing:
			g.recordGroup(group, p.events)
			return nil
		case doVerify:
			verified, err = g.verifyGroupGone(ctx, groupContentName(group))
		default:
			err = g.refusedGroup(ctx, group, p.verdict, g.performGroup(ctx, v, p))
		}
		if err != nil {
			return err
		}
		g.recordGroup(group, p.events)
		reconcile.Progress(ctx)
	}
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
