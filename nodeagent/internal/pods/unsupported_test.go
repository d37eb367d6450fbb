package pods

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestFeatureOfARunningPod: a change of the CSIDriver object may let a volume ask for something while its pod runs. It is
// reported once, and nothing is read as long as no CSIDriver object has changed.
func TestFeatureOfARunningPod(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod())
		b.set(func() {
			b.ignored = []volume.Unsupported{{Feature: "selinux-mount", Reason: volume.ReasonUnsupported, Message: "it asks for more"}}
		})
		for range 3 {
			time.Sleep(6 * time.Minute)
			b.show()
		}
		b.set(func() {
			if b.resolves != 1 || len(b.events) > 0 {
				t.Errorf("%d looks at the volumes although nothing has changed, want 1; events %q", b.resolves, b.events)
			}
		})
		b.c.Refresh()
		b.c.Refresh()
		synctest.Wait()
		b.set(func() {
			want := `UnsupportedVolumeFeature: volume "pv-1": it asks for more`
			if !slices.Equal(b.events, []string{want}) || !slices.Equal(b.counted, []string{"selinux-mount"}) {
				t.Errorf("events %q, counted %q, want %q once", b.events, b.counted, want)
			}
			if b.refreshed != 1 {
				t.Errorf("the volume was refreshed %d times, want once for changes at one time", b.refreshed)
			}
			if len(b.wants) != 1 {
				t.Errorf("a running pod was set up again: %q", b.wants)
			}
		})
	})
}

// TestUnattachedVolumesAreNamed: as in the kubelet's event, with the names of the pod's volumes.
func TestUnattachedVolumesAreNamed(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.statusErr = volume.ErrNotAttached })
		b.add(testPod())
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want := "FailedMount: Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], " +
			"failed to process volumes=[]: timed out waiting for the condition"
		b.set(func() {
			if len(b.events) != 1 || b.events[0] != want {
				t.Errorf("events are %q, want %q", b.events, want)
			}
		})
	})
}
