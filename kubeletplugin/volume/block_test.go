package volume_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// blockOf is a raw block volume for a pod.
func blockOf(pod, handle string) volume.Publication {
	p := persistentOf(pod, handle)
	p.Volume.Device, p.Volume.FSType = p.SpecName, ""
	return p
}

// targetPaths has the driver make target paths, which are files for block volumes.
var targetPaths = csitest.Options{TargetPaths: true}

// TestBlockLifecycle: a raw block volume has its own paths and record, which a kubelet would find.
func TestBlockLifecycle(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		want := records.Device{
			SpecVolID: "pv-vol-1", Handle: "vol-1", Driver: testDriver, Node: testNode,
			Attachment: layout.Attachment("vol-1", testDriver, testNode), AttachmentUID: "va-1",
		}
		if rec, err := records.ReadDevice(w.root.DeviceRecordDir("pv-vol-1")); err != nil || rec != want {
			t.Errorf("record: %+v, %v; want %+v", rec, err, want)
		}
		target := w.root.DeviceTarget("uid-a", "pv-vol-1")
		if path, err := os.Readlink(w.root.DeviceLink("uid-a", "pv-vol-1")); err != nil || path != target {
			t.Errorf("the link of the pod leads to %q (%v), want %q", path, err, target)
		}
		for _, dir := range []string{w.root.DeviceMapDir("pv-vol-1"), w.root.DeviceStaging("pv-vol-1")} {
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				t.Errorf("directory %s: %v, %v", dir, info, err)
			}
		}
		w.expectBlockCalls(target)
		w.m.Drop(p.Pod)
		w.expectCalls("it is taken down in reverse", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
		w.expectEmptyPod("a")
	})
}

// expectBlockCalls looks at the requests for a raw block volume.
func (w *world) expectBlockCalls(target string) {
	w.t.Helper()
	for _, c := range w.driver.Calls() {
		if r, ok := c.Request.(interface {
			GetVolumeCapability() *csi.VolumeCapability
			GetStagingTargetPath() string
		}); ok && (r.GetVolumeCapability().GetBlock() == nil || r.GetStagingTargetPath() != w.root.DeviceStaging("pv-vol-1")) {
			w.t.Errorf("%s: capability %v, staging path %q", c.Method, r.GetVolumeCapability(), r.GetStagingTargetPath())
		}
		if r, ok := c.Request.(*csi.NodePublishVolumeRequest); ok && r.GetTargetPath() != target {
			w.t.Errorf("published at %q, want %q", r.GetTargetPath(), target)
		}
	}
	w.expectCalls("a block volume is staged, then published", "NodeStageVolume", "NodePublishVolume")
}

// expectEmptyPod checks that the directory of a pod can be removed.
func (w *world) expectEmptyPod(pod string) {
	w.t.Helper()
	(&gambler{world: w}).cleanPods()
	if _, err := os.Lstat(w.root.Pod(podOf(pod).UID)); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("directory of pod %q: %v", pod, err)
	}
}

// TestBlockLinkComesFirst: when the driver is called, the pod has the link already, and there is no link before the record.
func TestBlockLinkComesFirst(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		link := w.root.DeviceLink("uid-a", "pv-vol-1")
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Code: codes.Internal, Times: 1})
		w.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.DeadlineExceeded, Times: 2})
		w.m.Want(p)
		w.expectPublished(p, false)
		if _, err := os.Lstat(link); err == nil {
			t.Error("the pod has a link although the volume is not staged")
		}
		time.Sleep(time.Second)
		w.expectPublished(p, false)
		if _, err := os.Lstat(link); err != nil {
			t.Errorf("NodePublishVolume has no answer, so the volume may be published, but there is no link: %v", err)
		}
		w.expectEvent("a FailedMapVolume: MapVolume.SetUpDevice failed for volume \"pv-vol-1\"")
		w.expectEvent("a FailedMapVolume: MapVolume.MapPodDevice failed for volume \"pv-vol-1\"")
		w.restart()
		w.driver.ResetCalls()
		w.m.Drop(p.Pod)
		time.Sleep(time.Minute)
		w.expectCalls("after a restart it is taken down", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestBlockRefused: what the driver refuses leaves nothing on disk.
func TestBlockRefused(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		t.Run(method, func(t *testing.T) {
			scenario(t, targetPaths, func(t *testing.T, w *world) {
				p := blockOf("a", "vol-1")
				w.driver.Inject(csitest.Fault{Method: method, Code: codes.InvalidArgument, Times: 1})
				w.m.Want(p)
				w.expectPublished(p, false)
				_, err := os.Lstat(w.root.DeviceLink("uid-a", "pv-vol-1"))
				_, recErr := os.Lstat(w.root.DeviceDir("pv-vol-1"))
				if err == nil || method == "NodeStageVolume" && recErr == nil {
					t.Errorf("left are the link (%v) or the record (%v)", err, recErr)
				}
				time.Sleep(time.Minute)
				w.expectPublished(p, true)
				w.m.Drop(p.Pod)
				w.expectPublished(p, false)
				w.expectClean()
			})
		})
	}
}

// TestBlockPods: pods share a raw block volume as they share a file system, within the limits of its access mode.
func TestBlockPods(t *testing.T) {
	scenario(t, targetPaths, func(_ *testing.T, w *world) {
		a, b := blockOf("a", "vol-1"), blockOf("b", "vol-1")
		w.m.Want(a)
		w.m.Want(b)
		w.expectCalls("one stage for two pods", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
		w.m.Drop(a.Pod)
		w.expectCalls("the other pod keeps the stage", "NodeUnpublishVolume")
		b.Volume.Exclusive, a.Volume.Exclusive = true, true
		w.m.Want(a)
		w.expectCalls("it is ReadWriteOncePod")
		w.expectEvent("a FailedMapVolume: MapVolume.MapPodDevice failed for volume \"pv-vol-1\" : volume uses the ReadWriteOncePod access mode")
		w.m.Drop(b.Pod)
		w.expectPublished(a, true)
		w.m.Drop(a.Pod)
		w.expectPublished(a, false)
		w.expectClean()
	})
}

// TestBlockDetachedAndAttachedAgain: the record has the attachment for which the volume is staged, also after a restart.
func TestBlockDetachedAndAttachedAgain(t *testing.T) {
	scenario(t, targetPaths, func(_ *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.restart()
		w.attach("vol-1", "va-2")
		w.driver.ResetCalls()
		w.m.Want(p)
		w.expectCalls("all of it belongs to a device that is gone", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestBlockExpansion: the driver gets the target path, and the events have the names for block volumes.
func TestBlockExpansion(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		w.addClaim("vol-1")
		w.enlarge("vol-1")
		p := w.claimed("a", "vol-1")
		p.Volume.Device, p.Volume.FSType = p.SpecName, ""
		w.m.Want(p)
		w.expectPublished(p, true)
		found := false
		for _, c := range w.driver.Calls() {
			r, ok := c.Request.(*csi.NodeExpandVolumeRequest)
			if !ok {
				continue
			}
			found = true
			if r.GetVolumePath() != w.root.DeviceTarget("uid-a", p.SpecName) || r.GetVolumeCapability().GetBlock() == nil ||
				r.GetStagingTargetPath() != w.root.DeviceStaging(p.SpecName) {
				t.Errorf("expansion asked for by %v", r)
			}
		}
		if !found {
			t.Error("NodeExpandVolume was not called")
		}
		w.expectEvent("FileSystemResizeSuccessful: MapVolume.NodeExpandVolume succeeded")
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestBlockRepublished: tokens and repeated calls are those of volumes with a file system.
func TestBlockRepublished(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		p = w.withTokens(p)
		p.Republish = true
		w.m.Want(p)
		w.expectPublished(p, true)
		for _, c := range w.driver.Calls() {
			if r, ok := c.Request.(*csi.NodePublishVolumeRequest); ok && r.GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"] == "" {
				t.Errorf("no token in %v", r.GetVolumeContext())
			}
		}
		w.driver.ResetCalls()
		time.Sleep(2 * time.Minute)
		w.expectCalls("it is published again", "NodePublishVolume")
		w.expectPublished(p, true)
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestBlockWithoutStage: a driver without STAGE_UNSTAGE_VOLUME; the record is there all the same.
func TestBlockWithoutStage(t *testing.T) {
	o := targetPaths
	o.Node = []csi.NodeServiceCapability_RPC_Type{}
	scenario(t, o, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		w.m.Want(p)
		w.expectCalls("it is only published", "NodePublishVolume")
		if _, err := records.ReadDevice(w.root.DeviceRecordDir("pv-vol-1")); err != nil {
			t.Error(err)
		}
		w.m.Drop(p.Pod)
		w.expectCalls("and unpublished", "NodeUnpublishVolume")
		w.expectClean()
	})
}

// TestKubeletMap: what a kubelet has mapped for containers is removed before the driver is called.
func TestKubeletMap(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		bind := w.root.DeviceMap("uid-a", "pv-vol-1")
		if err := os.WriteFile(bind, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestKubeletMapStays: a map that cannot be removed keeps the volume, with an event.
func TestKubeletMapStays(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		bind := w.root.DeviceMap("uid-a", "pv-vol-1")
		if err := os.MkdirAll(filepath.Join(bind, "data"), 0o750); err != nil {
			t.Fatal(err)
		}
		w.driver.ResetCalls()
		w.m.Drop(p.Pod)
		w.expectCalls("the device may be open")
		w.expectEvent("a FailedUnMount: UnmapVolume.UnmapPodDevice failed")
		if err := os.Remove(filepath.Join(bind, "data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.expectClean()
	})
}

// TestTwoForms: a volume is a file system or a block device on a node at one time, whatever PersistentVolumes say, and it changes when
// no pod uses it as what it was.
func TestTwoForms(t *testing.T) {
	other := blockOf("b", "vol-1")
	other.SpecName, other.Volume.Device = "pv-other", "pv-other"
	cases := map[string]struct {
		reason        string
		first, second volume.Publication
		text          string
	}{
		"BlockAfterFS": {reason: "another PersistentVolume", first: persistentOf("a", "vol-1"), second: blockOf("b", "vol-1"), text: "as a file system"},
		"FSAfterBlock": {
			reason: "another PersistentVolume", first: blockOf("a", "vol-1"), second: persistentOf("b", "vol-1"),
			text: `as the block device of PersistentVolume "pv-vol-1"`,
		},
		"TwoNames": {
			reason: "the paths of a device have the name of the PersistentVolume", first: blockOf("a", "vol-1"), second: other,
			text: `as the block device of PersistentVolume "pv-vol-1"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, targetPaths, func(t *testing.T, w *world) {
				w.m.Want(tc.first)
				w.expectPublished(tc.first, true)
				w.driver.ResetCalls()
				w.m.Want(tc.second)
				w.expectCalls(tc.reason)
				w.expectEvent(tc.text)
				if st, _ := w.m.Status(tc.second.Volume.Name, tc.second.Key()); st.Err == nil || !strings.Contains(st.Err.Error(), tc.text) {
					t.Errorf("status %v, want %q", st.Err, tc.text)
				}
				w.m.Drop(tc.first.Pod)
				w.expectCalls("its turn", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
				w.expectPublished(tc.second, true)
				w.m.Drop(tc.second.Pod)
				w.expectPublished(tc.second, false)
				w.expectClean()
			})
		})
	}
}

// TestFormBeforeRestart: what is staged in another form is found after a restart, and stays as long as its pod may run.
func TestFormBeforeRestart(t *testing.T) {
	scenario(t, targetPaths, func(_ *testing.T, w *world) {
		first, second := blockOf("a", "vol-1"), attachable("b")
		first.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(first)
		w.expectPublished(first, true)
		w.restart()
		w.driver.ResetCalls()
		w.m.Want(second)
		w.expectCalls("nothing is known about the first pod")
		w.expectEvent(`pods ["uid-a"] may use the volume as the block device of PersistentVolume "pv-vol-1"`)
		w.m.Drop(first.Pod)
		w.expectCalls("it is gone", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.m.Drop(second.Pod)
		w.expectPublished(second, false)
		w.expectClean()
	})
}
