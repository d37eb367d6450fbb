package controller

import (
	"context"
	"encoding/json"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

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
