package volume_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// TestRecoveredVolumeWithoutAttachment: a record does not show whether a volume is attached, so after a restart each
// counts as in use. Once its pod is known it leaves volumesInUse if its driver needs no attachment, unless it is in
// volumesAttached all the same: then it could be detached under the pod.
func TestRecoveredVolumeWithoutAttachment(t *testing.T) {
	cases := map[string]struct {
		reason   string
		attached bool
	}{
		"NotAttached": {reason: "nobody could detach it"},
		"Attached":    {reason: "it was attached when the driver needed that", attached: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := persistentOf("a", "vol-1")
				w.m.Want(p)
				w.expectPublished(p, true)
				w.restart()
				unique := layout.Unique(testDriver, "vol-1")
				w.set(func() { w.inUse[unique] = true; w.notAttachable = "vol-1" })
				if tc.attached {
					w.attach("vol-1", "va-1")
				}
				w.m.Want(p)
				w.expectPublished(p, true)
				w.set(func() {
					if w.inUse[unique] != tc.attached {
						t.Errorf("%s: in use %t, want %t", tc.reason, w.inUse[unique], tc.attached)
					}
				})
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestAttachmentNoLongerRequired: the CSIDriver object is replaced by one without attachRequired while a pod has the volume.
func TestAttachmentNoLongerRequired(t *testing.T) {
	cases := map[string]struct {
		reason   string
		attached bool
	}{
		"Detached": {reason: "nobody could detach it"},
		"Attached": {reason: "kube-controller-manager would detach it under the pod", attached: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := attachable("a")
				unique := p.Volume.Name
				w.attach("vol-1", "va-1")
				w.m.Want(p)
				w.expectPublished(p, true)
				w.driver.ResetCalls()
				w.set(func() {
					w.notAttachable = "vol-1"
					if !tc.attached {
						delete(w.attached, unique)
					}
				})
				p.Volume.Attachable, p.Republish = false, true
				w.m.Refresh(p)
				synctest.Wait()
				w.set(func() {
					if w.inUse[unique] != tc.attached {
						t.Errorf("%s: in use %t, want %t", tc.reason, w.inUse[unique], tc.attached)
					}
				})
				time.Sleep(2 * time.Minute)
				w.expectCalls("the attachment is not read any more", "NodePublishVolume")
				w.expectPublished(p, true)
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}
