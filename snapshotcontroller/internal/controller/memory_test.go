package controller

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Objects as the API server sends them, of snapshot number %[1]d.
const (
	sentSnapshot = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z",
"finalizers":["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection","snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"],
"generation":1,"name":"backup-%[1]d","namespace":"team","resourceVersion":"1%[1]d","uid":"3f2504e0-4f89-11d3-9a0c-%012[1]d",
"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"snapshot.storage.k8s.io/v1\",\"kind\":\"VolumeSnapshot\"}"}},
"spec":{"source":{"persistentVolumeClaimName":"data-%[1]d"},"volumeSnapshotClassName":"fast"},
"status":{"boundVolumeSnapshotContentName":"snapcontent-3f2504e0-4f89-11d3-9a0c-%012[1]d","creationTime":"2026-01-01T00:00:00Z","readyToUse":true,"restoreSize":"1Gi"}}`
	sentContent = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshotContent","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z",
"finalizers":["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],"generation":1,
"name":"snapcontent-3f2504e0-4f89-11d3-9a0c-%012[1]d","resourceVersion":"2%[1]d","uid":"0a1b2c3d-4f89-11d3-9a0c-%012[1]d"},
"spec":{"deletionPolicy":"Delete","driver":"hostpath.csi.k8s.io","source":{"volumeHandle":"pvc-4f89-11d3-9a0c-%012[1]d"},"sourceVolumeMode":"Filesystem",
"volumeSnapshotClassName":"fast","volumeSnapshotRef":{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","name":"backup-%[1]d","namespace":"team",
"resourceVersion":"3%[1]d","uid":"3f2504e0-4f89-11d3-9a0c-%012[1]d"}},
"status":{"creationTime":1767225600000000000,"readyToUse":true,"restoreSize":1073741824,"snapshotHandle":"0a1b2c3d-4f89-11d3-9a0c-%012[1]d"}}`
)

// TestMemory measures the heap that the caches take for snapshots with their contents: as objects without what is never read, and encoded, as they
// are kept. Keys and indexes come to that.
func TestMemory(t *testing.T) {
	const number, most = 2000, 900
	snapshots, contents := snapshotapi.Encoding[*snapshotv1.VolumeSnapshot](), snapshotapi.Encoding[*snapshotv1.VolumeSnapshotContent]()
	measure := func(keep func(*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent) any) int64 {
		kept := make([]any, number)
		before := heap()
		for i := range kept {
			s, content := &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshotContent{}
			for text, obj := range map[string]any{sentSnapshot: s, sentContent: content} {
				if err := json.Unmarshal(fmt.Appendf(nil, text, i), obj); err != nil {
					t.Fatal(err)
				}
			}
			kept[i] = keep(slimSnapshot(s), slimContent(content))
		}
		each := (heap() - before) / number
		runtime.KeepAlive(kept)
		return each
	}
	plain := measure(func(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) any {
		return []any{s, content}
	})
	encoded := measure(func(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) any {
		a, errA := snapshots.Encode(s)
		b, errB := contents.Encode(content)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		return [2]string{string(a), string(b)}
	})
	t.Logf("a snapshot with its content takes %d bytes as objects, %d encoded", plain, encoded)
	if encoded > most || encoded > plain/2 {
		t.Errorf("%d bytes encoded, want %d at most, and half of %d", encoded, most, plain)
	}
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	var stats runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // no heap is that large
}
