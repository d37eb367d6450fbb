package controller

import (
	"encoding/json"
	"slices"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxMessage is the largest size of a message in a status, in bytes.
const maxMessage = 1024

// statusPatch renders fields of the status, null for those to remove, as a merge patch that applies only to the very content.
func statusPatch(r record, fields map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.uid}, "status": fields})
}

// learned returns what the status of a content of a snapshot lacks of an answer of the driver. The first handle, time and size win; 0 is none.
func learned(r record, s snapshot, now time.Time) map[string]any {
	fields := learnedReady(r, s)
	if r.status.handle == "" {
		fields["snapshotHandle"] = s.handle
	}
	if valueOf(r.status.created) == 0 {
		fields["creationTime"] = createdOr(s.created, now).UnixNano()
	}
	if valueOf(r.status.size) == 0 && s.size > 0 {
		fields["restoreSize"] = s.size
	}
	if r.status.group == "" && s.group != "" {
		fields["volumeGroupSnapshotHandle"] = s.group
	}
	return fields
}

// learnedGroup is learned for a group snapshot. Members of one that existed before its content are not recorded: their contents are the
// admin's, and a snapshot-controller would make others.
func learnedGroup(r record, s snapshot, now time.Time) map[string]any {
	fields := learnedReady(r, s)
	if r.status.handle == "" {
		fields["volumeGroupSnapshotHandle"] = s.handle
	}
	if valueOf(r.status.created) <= 0 {
		fields["creationTime"] = metav1.NewTime(createdOr(s.created, now))
	}
	if r.given == "" && len(s.infos) > 0 {
		if infos := mergeInfos(r.status.infos, s.infos, now); !equality.Semantic.DeepEqual(infos, r.status.infos) {
			fields["volumeSnapshotInfoList"] = infos
		}
	}
	return fields
}

// learnedReady returns what both have in common. An answer ends an error.
func learnedReady(r record, s snapshot) map[string]any {
	fields := map[string]any{}
	if r.status.ready == nil || *r.status.ready != s.ready {
		fields["readyToUse"] = s.ready
	}
	if r.status.failed {
		fields["error"] = nil
	}
	return fields
}

// createdOr returns the time that the driver has said, or now: without a time, as CSI allows it to say 0 where it must say nothing.
func createdOr(created, now time.Time) time.Time {
	if created.UnixNano() <= 0 {
		return now
	}
	return created
}

// mergeInfos returns the members of an answer, in the order in which they are known. What the driver does not say stays as it is known, members
// that it leaves out included: the deletion of the group names all of them.
func mergeInfos(known, infos []groupv1.VolumeSnapshotInfo, now time.Time) []groupv1.VolumeSnapshotInfo {
	position := func(info groupv1.VolumeSnapshotInfo) int {
		return slices.IndexFunc(known, func(k groupv1.VolumeSnapshotInfo) bool { return k.SnapshotHandle == info.SnapshotHandle })
	}
	merged := slices.Clone(infos)
	for _, k := range known {
		if !slices.ContainsFunc(infos, func(info groupv1.VolumeSnapshotInfo) bool { return info.SnapshotHandle == k.SnapshotHandle }) {
			merged = append(merged, k)
		}
	}
	for i, info := range merged {
		if at := position(info); at >= 0 {
			was := known[at]
			if was.CreationTime != nil {
				merged[i].CreationTime = was.CreationTime
			}
			if was.RestoreSize != nil {
				merged[i].RestoreSize = was.RestoreSize
			}
		}
		if valueOf(merged[i].CreationTime) <= 0 {
			merged[i].CreationTime = new(now.UnixNano())
		}
	}
	slices.SortStableFunc(merged, func(a, b groupv1.VolumeSnapshotInfo) int {
		at, bt := position(a), position(b)
		if at < 0 || bt < 0 {
			return bt - at // those that are known come first
		}
		return at - bt
	})
	return merged
}

// failure returns the status of a content with an error.
func failure(r record, message string, now time.Time) map[string]any {
	fields := map[string]any{"error": map[string]any{"message": message, "time": metav1.NewTime(now)}}
	if r.status.ready == nil || *r.status.ready {
		fields["readyToUse"] = false
	}
	return fields
}

// creatingPatch renders a change of what says that the snapshot is being taken, nil removes it, as a merge patch that applies only to the
// very content: what others do to other annotations and labels at the same time stays.
func creatingPatch(n names, r record, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{
		"uid": r.uid, "annotations": map[string]any{n.beingCreated: value}, "labels": map[string]any{snapshotapi.LabelBeingCreated: value},
	}}
}

// setFinalizers adds a list of finalizers to a patch. The list is replaced as a whole, so that the content must be as it was read.
func setFinalizers(patch map[string]any, r record, finalizers []string) {
	if metadata, ok := patch["metadata"].(map[string]any); ok {
		metadata["resourceVersion"], metadata["finalizers"] = r.version, finalizers
	}
}
