package volume_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// TestAttachedWhileLooking attaches the volume between the look at volumesAttached and the record of what the look
// found: the volume is published at once, not at the recheck a minute later.
func TestAttachedWhileLooking(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		p.Volume.Attachable = true
		w.set(func() { w.afterLook = func() { w.attach("vol-1", "va-1") } })
		begin := time.Now()
		w.m.Want(p)
		w.expectPublished(p, true)
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("the attachment was noticed after %v, want at once", waited)
		}
	})
}

// TestOnlyTheAttachedVolumeLooks: when one volume is attached, the others that wait do not look again.
func TestOnlyTheAttachedVolumeLooks(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		waiting, attached := persistentOf("a", "vol-1"), persistentOf("a", "vol-2")
		waiting.Volume.Attachable, attached.Volume.Attachable = true, true
		w.m.Want(waiting)
		w.m.Want(attached)
		synctest.Wait()
		looks := 0
		w.set(func() {
			var count func()
			count = func() { looks++; w.set(func() { w.afterLook = count }) }
			w.afterLook = count
		})
		w.attach("vol-2", "va-2")
		w.m.Attached(layout.Unique(testDriver, "of another node"))
		w.expectPublished(attached, true)
		if looks != 1 {
			t.Errorf("volumesAttached was looked at %d times, want once, by the volume that was attached", looks)
		}
	})
}

// TestWaitForAttachIsReported: a pod whose volume is not attached learns after ten seconds what it waits for, once, and
// with what the VolumeAttachment shows.
func TestWaitForAttachIsReported(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := attachable("a")
		w.m.Want(p)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		w.set(func() {
			if len(w.events) > 0 {
				t.Errorf("events after nine seconds: %q", w.events)
			}
		})
		time.Sleep(time.Hour)
		w.expectEvent(`a FailedMount: MountVolume.WaitForAttach failed for volume "pv-vol-1" : volume is not attached`)
		w.set(func() {
			if len(w.events) != 1 || !strings.Contains(w.events[0], layout.Attachment("vol-1", testDriver, testNode)) {
				t.Errorf("events are %q, want one that names the VolumeAttachment", w.events)
			}
		})
		w.attach("vol-1", "va-1")
		w.expectPublished(p, true)
	})
}

// TestExclusiveVolumeIsReported: a pod that waits for the pod that has a ReadWriteOncePod volume gets one event about it.
func TestExclusiveVolumeIsReported(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := persistentOf("a", "vol-1"), persistentOf("b", "vol-1")
		a.Volume.Exclusive, b.Volume.Exclusive = true, true
		w.m.Want(a)
		w.expectPublished(a, true)
		w.m.Want(b)
		time.Sleep(time.Hour)
		w.expectEvent(`b FailedMount: MountVolume.SetUp failed for volume "pv-vol-1" : volume uses the ReadWriteOncePod access mode and is already in use by pod "ns/a"`)
		w.set(func() {
			if len(w.events) != 1 {
				t.Errorf("events are %q, want one", w.events)
			}
		})
	})
}
