package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
)

// TestLearned writes what has changed by value (S26, S32), and nothing that was known before.
func TestLearned(t *testing.T) {
	now, created := time.Unix(1000, 0), time.Unix(500, 0)
	known := status{handle: "s", ready: new(false), created: new(created.UnixNano()), size: new(int64(5))}
	tests := map[string]struct {
		reason string
		status status
		answer snapshot
		want   map[string]any
	}{
		"First":    {reason: "all is new", answer: snapshot{handle: "s", created: created, size: 5}, want: map[string]any{"snapshotHandle": "s", "readyToUse": false, "creationTime": created.UnixNano(), "restoreSize": int64(5)}},
		"Minimal":  {reason: "S25: no time is now, no size is none", answer: snapshot{handle: "s", ready: true}, want: map[string]any{"snapshotHandle": "s", "readyToUse": true, "creationTime": now.UnixNano()}},
		"Same":     {reason: "nothing is new", status: known, answer: snapshot{handle: "s", created: created, size: 5}, want: map[string]any{}},
		"Ready":    {reason: "only that is new", status: known, answer: snapshot{handle: "s", ready: true, created: now, size: 9}, want: map[string]any{"readyToUse": true}},
		"Recovers": {reason: "an answer ends an error", status: status{handle: "s", ready: new(false), created: new(int64(1)), size: new(int64(5)), failed: true}, answer: snapshot{handle: "s"}, want: map[string]any{"error": nil}},
		"Group":    {reason: "a member of a group", status: known, answer: snapshot{handle: "s", group: "g"}, want: map[string]any{"volumeGroupSnapshotHandle": "g"}},
		"Epoch":    {reason: "S25: 1970 is corrected", status: status{handle: "s", ready: new(true), created: new(int64(0)), size: new(int64(5))}, answer: snapshot{handle: "s", ready: true, created: created}, want: map[string]any{"creationTime": created.UnixNano()}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, learned(record{status: tt.status}, tt.answer, now)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// TestMergeInfos keeps order, times and sizes of members, follows their readiness, and forgets none.
func TestMergeInfos(t *testing.T) {
	now := time.Unix(1000, 0)
	known := []groupv1.VolumeSnapshotInfo{
		{SnapshotHandle: "b", CreationTime: new(int64(7)), ReadyToUse: new(false), RestoreSize: new(int64(5))}, {SnapshotHandle: "a", CreationTime: new(int64(8)), ReadyToUse: new(false)},
		{SnapshotHandle: "left out", CreationTime: new(int64(9)), ReadyToUse: new(true)},
	}
	answer := []groupv1.VolumeSnapshotInfo{
		{SnapshotHandle: "n", ReadyToUse: new(true)}, {SnapshotHandle: "a", ReadyToUse: new(true), RestoreSize: new(int64(6))}, {SnapshotHandle: "b", CreationTime: new(int64(9)), ReadyToUse: new(false)},
	}
	want := []groupv1.VolumeSnapshotInfo{
		{SnapshotHandle: "b", CreationTime: new(int64(7)), ReadyToUse: new(false), RestoreSize: new(int64(5))},
		{SnapshotHandle: "a", CreationTime: new(int64(8)), ReadyToUse: new(true), RestoreSize: new(int64(6))},
		{SnapshotHandle: "left out", CreationTime: new(int64(9)), ReadyToUse: new(true)},
		{SnapshotHandle: "n", CreationTime: new(now.UnixNano()), ReadyToUse: new(true)},
	}
	if diff := cmp.Diff(want, mergeInfos(known, answer, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
