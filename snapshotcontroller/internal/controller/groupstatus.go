package controller

import (
	"fmt"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

func reportGroup(group *groupv1.VolumeGroupSnapshot, err error) groupPlan {
	status := groupStatusOf(group)
	status.ReadyToUse = new(false)
	message := cut(err.Error())
	status.Error = copiedError(status.Error, &snapshotv1.VolumeSnapshotError{Message: &message})
	p := planGroupStatus(group, status)
	p.events = []event{{true, reasonOf(err), message}}
	return p
}

func groupStatusOf(group *groupv1.VolumeGroupSnapshot) *groupv1.VolumeGroupSnapshotStatus {
	if group.Status == nil {
		return &groupv1.VolumeGroupSnapshotStatus{}
	}
	return group.Status.DeepCopy()
}

func copiedGroupStatus(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotStatus {
	status, from := groupStatusOf(group), content.Status
	if from == nil {
		from = &groupv1.VolumeGroupSnapshotContentStatus{}
	}
	status.BoundVolumeGroupSnapshotContentName = &content.Name
	status.ReadyToUse = new(ptr.Deref(from.ReadyToUse, false))
	if !isUnknown(from.CreationTime) && isUnknown(status.CreationTime) {
		status.CreationTime = from.CreationTime.DeepCopy()
	}
	status.Error = copiedError(status.Error, from.Error)
	return status
}

func planGroupStatus(group *groupv1.VolumeGroupSnapshot, status *groupv1.VolumeGroupSnapshotStatus) groupPlan {
	if equality.Semantic.DeepEqual(group.Status, status) {
		return groupPlan{verdict: doNothing}
	}
	return groupPlan{verdict: doStatus, status: status}
}

// groupEvents are the events about what the content reports.
func groupEvents(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent, now *groupv1.VolumeGroupSnapshotStatus) []event {
	var events []event
	was := groupStatusOf(group)
	if isGroupCreated(now) && !isGroupCreated(was) && !ptr.Deref(now.ReadyToUse, false) {
		events = append(events, event{reason: ReasonCreated, message: fmt.Sprintf("Group snapshot %s was successfully created by the CSI driver.", keyOf(group))})
	}
	if ptr.Deref(now.ReadyToUse, false) && !ptr.Deref(was.ReadyToUse, false) {
		events = append(events, event{reason: ReasonReady, message: fmt.Sprintf("Group snapshot %s is ready to use.", keyOf(group))})
	}
	if content.Status != nil && content.Status.Error != nil {
		events = append(events, event{true, ReasonCreationFailed, messageOf(now.Error)})
	}
	return events
}

func isGroupCreated(status *groupv1.VolumeGroupSnapshotStatus) bool {
	return status != nil && (!isUnknown(status.CreationTime) || ptr.Deref(status.ReadyToUse, false))
}

// groupReason is the reason of an event on a VolumeGroupSnapshot.
func groupReason(reason string) string {
	if reason == ReasonDeletePending || reason == ReasonDeleteError {
		return reason
	}
	return strings.Replace(reason, "Snapshot", "GroupSnapshot", 1)
}
