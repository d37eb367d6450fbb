package volume_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// expectMeasured compares the operations that were measured: name, seconds, and whether they failed.
func (w *world) expectMeasured(reason string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.set(func() {
		var got []string
		for _, x := range w.measured {
			if x.Driver != testDriver {
				w.t.Errorf("%s: driver %q", reason, x.Driver)
			}
			got = append(got, fmt.Sprintf("%s %v %t", x.Operation, x.Took.Seconds(), x.Err == nil))
		}
		w.measured = nil
		if !slices.Equal(got, want) {
			w.t.Errorf("%s: measured %q, want %q", reason, got, want)
		}
	})
}

// slow has the driver take some seconds for a call.
func (w *world) slow(method string, seconds int) {
	w.driver.Inject(csitest.Fault{Method: method, Delay: time.Duration(seconds) * time.Second})
}

// TestMeasure: operations have the kubelet's names, which count NodeStageVolume as a part of mounting.
func TestMeasure(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.slow("NodeStageVolume", 5)
		w.slow("NodePublishVolume", 2)
		w.slow("NodeUnpublishVolume", 3)
		w.slow("NodeUnstageVolume", 4)
		a, b := attachable("a"), attachable("b")
		w.m.Want(a)
		w.expectMeasured("it is not attached yet", "verify_controller_attached_volume 0 false")
		time.Sleep(time.Second)
		w.attach("vol-1", "va-1")
		time.Sleep(10 * time.Second)
		w.expectMeasured("the first pod", "verify_controller_attached_volume 0 true", "volume_mount 7 true", "overall_volume_mount 8 true")
		w.m.Want(b)
		time.Sleep(10 * time.Second)
		w.expectMeasured("the second pod needs no stage", "verify_controller_attached_volume 0 true", "volume_mount 2 true", "overall_volume_mount 2 true")
		w.m.Drop(a.Pod)
		w.m.Drop(b.Pod)
		time.Sleep(20 * time.Second)
		w.expectMeasured("the way back", "volume_unmount 3 true", "volume_unmount 3 true", "unmount_device 4 true")
		w.expectClean()
	})
}

// TestMeasureBlock: operations on raw block volumes have names of their own.
func TestMeasureBlock(t *testing.T) {
	scenario(t, targetPaths, func(_ *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Code: codes.InvalidArgument, Times: 1})
		w.m.Want(p)
		time.Sleep(time.Minute)
		w.expectMeasured("it failed once", "map_volume 0 false", "map_volume 0 true")
		w.m.Drop(p.Pod)
		w.expectMeasured("the way back", "unmap_volume 0 true", "unmap_device 0 true")
		w.expectClean()
	})
}

// TestMeasureOthers: what comes after the publication is measured, too.
func TestMeasureOthers(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.addClaim("vol-1")
		p := w.claimed("a", "vol-1")
		group := int64(1000)
		p.Republish, p.FSGroup, p.ChangeGroup = true, &group, true
		w.m.Want(p)
		w.expectMeasured("with a group", "volume_mount 0 true", "overall_volume_mount 0 true", "volume_apply_access_control 0 true")
		w.grown("vol-1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.set(func() {
			for _, want := range []string{"volume_mount", "volume_fs_resize"} {
				if !slices.ContainsFunc(w.measured, func(x volume.Measurement) bool { return x.Operation == want }) {
					w.t.Errorf("measured %+v, want %s", w.measured, want)
				}
			}
			w.measured = nil
		})
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestBlockIsReported: a pod that gets a raw block volume gets the event of a kubelet.
func TestBlockIsReported(t *testing.T) {
	scenario(t, targetPaths, func(t *testing.T, w *world) {
		p := blockOf("a", "vol-1")
		p.Republish = true
		w.m.Want(p)
		time.Sleep(time.Hour)
		w.expectEvent(fmt.Sprintf("a SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"pv-vol-1\" volumeMapPath %q", w.root.PodDevices("uid-a")))
		w.set(func() {
			if len(w.events) != 1 {
				t.Errorf("events are %q, want one", w.events)
			}
		})
	})
}
