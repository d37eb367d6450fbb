package controller

import (
	"context"
	"fmt"
	"maps"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// reconcileGroupOrphan makes the writes that a group content needs whose group snapshot is not there. named says that one of that name is.
func (g *groups) reconcileGroupOrphan(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, named bool) error {
	ref, from := content.Spec.VolumeGroupSnapshotRef, content.Spec.Source
	mark := func(ctx context.Context) error { return g.markGroup(ctx, content) }
	switch {
	case (len(from.VolumeHandles) == 0) == (from.GroupSnapshotHandles == nil):
		g.cfg.Events.Warning(refTo(content, groupv1.SchemeGroupVersion.String(), "VolumeGroupSnapshotContent"), "Group"+ReasonContentValidation,
			"exactly one of volumeHandles and groupSnapshotHandles must be set")
		return nil
	case content.DeletionTimestamp == nil:
		if meta := contentMeta(content, ""); len(meta) > 0 && ref.UID != "" {
			maps.Copy(meta, asRead(content))
			_, err := g.sendGroupContent(ctx, content, map[string]any{"metadata": meta})
			return err
		}
		if _, deleted := g.deleted.Load(content.UID); deleted {
			return nil
		}
		return g.groupVanished.delete(ctx, content, g.groupSnapshotExists, mark,
			func(ctx context.Context) error { return g.deleteGroupContent(ctx, content) })
	case ref.UID == "" && (named || from.GroupSnapshotHandles != nil), content.Annotations[snapshotapi.AnnGroupBeingDeleted] != "":
		return nil
	}
	if exists, err := g.groupSnapshotExists(ctx, ref); err != nil || exists {
		return err
	}
	return mark(ctx)
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
