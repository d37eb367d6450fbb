package volume_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// attachable returns a publication of vol-1 for a pod.
func attachable(pod string) volume.Publication {
	p := persistentOf(pod, "vol-1")
	p.Volume.Attachable = true
	return p
}

func (w *world) expectEvent(part string) {
	w.t.Helper()
	synctest.Wait()
	w.set(func() {
		for _, e := range w.events {
			if strings.Contains(e, part) {
				return
			}
		}
		w.t.Errorf("events are %q, want one with %q", w.events, part)
	})
}

// restart starts another manager over what the present one has left on disk.
func (w *world) restart() {
	w.t.Helper()
	w.halt()
	found, err := recovery.Scan(w.root, func(string) ([]volume.MountPoint, error) { return nil, nil })
	if err != nil {
		w.t.Fatal(err)
	}
	w.m = w.manager()
	w.m.Adopt(found.Volumes)
	w.start()
}

// TestStagedForOtherAttachment: the volume was detached and attached again while a pod has it mounted. What is staged
// belongs to a device that is gone. An idempotent driver would answer another NodeStageVolume with OK and leave the old
// mount as it is (CSI v1.13, "NodeStageVolume"), so staging on top would give the second pod the dead device. The whole
// way down has to come first, but not under the first pod, which may be running: it gets an event, and the second one waits.
func TestStagedForOtherAttachment(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := attachable("a"), attachable("b")
		w.attach("vol-1", "va-1")
		w.m.Want(a)
		w.expectPublished(a, true)
		w.driver.ResetCalls()
		w.attach("vol-1", "va-2")
		w.m.Want(b)
		time.Sleep(time.Hour)
		w.expectCalls("nothing is mounted over the old attachment, nor taken from the running pod")
		w.expectPublished(b, false)
		w.expectEvent(`a StaleVolumeMount: volume "pv-vol-1" was detached and attached again`)
		w.expectEvent(`b FailedMount: MountVolume.SetUp failed for volume "pv-vol-1" : `)
		w.m.Drop(a.Pod)
		w.expectCalls("all the way down, then up again", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.expectPublished(b, true)
		w.m.Drop(b.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

// TestReattachedAfterReboot: nothing can be open after the machine has started again, so that a pod that is still there gets its volume from the new attachment.
func TestReattachedAfterReboot(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := attachable("a")
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.driver.ResetCalls()
		w.attach("vol-1", "va-2")
		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, StagedFor: "va-1", Targets: []volume.Key{p.Key()}, Rebooted: true}})
		w.start()
		p.Running = true
		w.m.Want(p)
		w.expectCalls("all the way down, then up again", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.expectPublished(p, true)
	})
}

// TestStagedForOtherAttachmentWithSecondWant: a second pod comes while the volume is being staged for the first. The
// stage belongs to the attachment that its call was made for, whatever was forgotten meanwhile.
func TestStagedForOtherAttachmentWithSecondWant(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := attachable("a"), attachable("b")
		w.attach("vol-1", "va-1")
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Delay: time.Second, Times: 1})
		w.m.Want(a)
		synctest.Wait()
		w.attach("vol-1", "va-2")
		w.m.Want(b)
		time.Sleep(time.Minute)
		w.expectCalls("the stage of the old attachment is undone",
			"NodeStageVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
		w.expectPublished(a, true)
		w.expectPublished(b, true)
	})
}

// TestStagedForOtherAttachmentAfterRestart: the volume is attached again while the agent is down. The record on disk
// knows for which attachment it was staged.
func TestStagedForOtherAttachmentAfterRestart(t *testing.T) {
	cases := map[string]struct {
		reason  string
		running bool
		want    []string
		event   string
	}{
		"PodPending": {
			reason: "no container of the pod has run: its mount is made again, from the bottom",
			want:   []string{"NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"},
		},
		"PodRunning": {
			reason:  "its containers may have files open: nothing is taken from it, but it gets an event",
			running: true,
			event:   "a StaleVolumeMount: ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := attachable("a")
				w.attach("vol-1", "va-1")
				w.m.Want(p)
				w.expectPublished(p, true)
				w.driver.ResetCalls()
				w.halt()
				w.attach("vol-1", "va-2")
				w.restart()
				p.Running = tc.running
				w.m.Want(p)
				time.Sleep(time.Minute)
				w.expectCalls(tc.reason, tc.want...)
				w.expectPublished(p, !tc.running)
				if tc.event != "" {
					w.expectEvent(tc.event)
				}
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestUncertainStageForOtherAttachment: a stage without an answer counts as one for the attachment of its call.
func TestUncertainStageForOtherAttachment(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := attachable("a")
		w.attach("vol-1", "va-1")
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Code: codes.DeadlineExceeded, After: true, Times: 1})
		w.m.Want(p)
		synctest.Wait()
		w.attach("vol-1", "va-2")
		time.Sleep(time.Minute)
		w.expectCalls("what the lost call may have staged is unstaged", "NodeStageVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.expectPublished(p, true)
	})
}

// TestPinnedVolumeStaysStaged: a volume that may be mounted where no record explains it is never unstaged, also after a
// pod has used it and gone, until the mount is explained.
func TestPinnedVolumeStaysStaged(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.driver.ResetCalls()
		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, Pinned: true, Targets: []volume.Key{p.Key()}}})
		w.start()
		w.m.Want(p)
		w.expectPublished(p, true)
		w.m.Drop(p.Pod)
		time.Sleep(time.Hour)
		w.expectCalls("the pod's mount goes, the stage stays", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume")
		w.m.Unpin(p.Volume.Name)
		w.expectCalls("all mounts are explained", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestPinnedStageOfOtherAttachment: nor is it unstaged to be staged for another attachment; the pod gets an event.
func TestPinnedStageOfOtherAttachment(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := attachable("a")
		w.attach("vol-1", "va-2")
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, StagedFor: "va-1", Pinned: true}})
		w.m.Want(p)
		time.Sleep(time.Hour)
		w.expectCalls("nothing is safe to do")
		w.expectEvent(`a FailedMount: MountVolume.SetUp failed for volume "pv-vol-1" : volume was detached and attached again`)
	})
}
