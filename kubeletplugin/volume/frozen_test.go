package volume_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestFrozenDriver: a driver that does not even tell its capabilities is given up after ten seconds,
// not after the two minutes that a mount may take, and asked again.
func TestFrozenDriver(t *testing.T) {
	cases := map[string]struct {
		reason string
		frozen time.Duration
		within time.Duration
	}{
		"Thaws":     {reason: "soon after it is back", frozen: 15 * time.Second, within: 12 * time.Second},
		"FrozenFor": {reason: "the pauses between the tries stay below their limit", frozen: 30 * time.Minute, within: 3 * time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				w.driver.Inject(csitest.Fault{Method: "NodeGetCapabilities", Hang: true})
				p := persistentOf("a", "vol-1")
				w.m.Want(p)
				time.Sleep(tc.frozen)
				w.expectCalls("nothing is staged before it is known how")
				if left := w.files(); len(left) > 0 {
					t.Errorf("%s: there are records of what never began: %v", tc.reason, left)
				}
				w.driver.Heal()
				time.Sleep(tc.within)
				w.expectPublished(p, true)
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestFrozenDriverIsTold: the user learns after ten seconds what the pod waits for.
func TestFrozenDriverIsTold(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodeGetCapabilities", Hang: true})
		w.m.Want(persistentOf("a", "vol-1"))
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		w.set(func() {
			if len(w.events) != 1 || !strings.Contains(w.events[0], "MountVolume.MountDevice failed") || !strings.Contains(w.events[0], "capabilities") {
				t.Errorf("events are %q, want one that names the capabilities", w.events)
			}
		})
	})
}

// TestDropFromAFrozenDriver: a pod that never got anything from the driver can go at once.
func TestDropFromAFrozenDriver(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodeGetCapabilities", Hang: true})
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		w.m.Drop(p.Pod)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if w.m.Busy(p.Pod.UID) {
			t.Error("the pod is podUnknown although nothing was done for it")
		}
		w.expectClean()
	})
}

// TestSlowMountIsWaitedFor: the short deadline is for capabilities alone.
func TestSlowMountIsWaitedFor(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Delay: time.Minute, Times: 1})
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		time.Sleep(61 * time.Second)
		w.expectCalls("one call, however long it takes", "NodeStageVolume", "NodePublishVolume")
		w.expectPublished(p, true)
	})
}

// TestEndIsNoFailure: a call that our own end cuts off is not reported to users.
func TestEndIsNoFailure(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Hang: true})
		w.m.Want(persistentOf("a", "vol-1"))
		synctest.Wait()
		w.halt()
		w.set(func() {
			if len(w.events) > 0 {
				t.Errorf("users were told %v", w.events)
			}
		})
	})
}

// TestFailingUnpublish holds the pod and tells why, until the driver can.
func TestFailingUnpublish(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
	}{
		"Refused":    {reason: "a final error removes nothing", fault: csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.Internal}},
		"Unanswered": {reason: "nor does none", fault: csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.Unavailable}},
		"NotFound":   {reason: "a persistent volume that is not found is no success", fault: csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.NotFound}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := persistentOf("a", "vol-1")
				w.m.Want(p)
				w.expectPublished(p, true)
				w.driver.Inject(tc.fault)
				w.m.Drop(p.Pod)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if !w.m.Busy(p.Pod.UID) || len(w.files()) != 2 {
					t.Errorf("%s: busy %t, records %v", tc.reason, w.m.Busy(p.Pod.UID), w.files())
				}
				w.set(func() {
					if len(w.events) == 0 || !strings.Contains(w.events[0], "a FailedUnMount: UnmountVolume.TearDown failed for volume \"pv-vol-1\"") {
						t.Errorf("%s: events are %q", tc.reason, w.events)
					}
				})
				w.driver.Heal()
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestFailingUnstage keeps the volume in use until the driver has unstaged it.
func TestFailingUnstage(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.driver.Inject(csitest.Fault{Method: "NodeUnstageVolume", Code: codes.Internal})
		w.m.Drop(p.Pod)
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.m.Busy(p.Pod.UID) {
			t.Error("the pod has to wait for what is no longer its own")
		}
		w.set(func() {
			if !w.inUse[p.Volume.Name] {
				t.Error("the volume may be detached while it is staged")
			}
		})
		if got := w.m.InUse(); len(got) != 1 {
			t.Errorf("in use: %v", got)
		}
		w.driver.Heal()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		w.expectClean()
	})
}

// TestRaiseWithoutAnswer: nobody knows whether the name is in volumesInUse. It must not stay there forever when the
// pod goes, or the volume would never be detached.
func TestRaiseWithoutAnswer(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.set(func() { w.raiseErr = context.DeadlineExceeded })
		p := persistentOf("a", "vol-1")
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		time.Sleep(10 * time.Minute)
		w.expectCalls("nothing is touched before the flag is confirmed")
		w.m.Drop(p.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

// TestLifeGoesOnBeside: a volume whose driver hangs does not hold another one up.
func TestLifeGoesOnBeside(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Hang: true, Times: 1})
		stuck, well := persistentOf("a", "vol-1"), persistentOf("a", "vol-2")
		w.m.Want(stuck)
		synctest.Wait()
		w.m.Want(well)
		w.expectPublished(well, true)
		w.expectPublished(stuck, false)
		w.m.Drop(stuck.Pod)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		w.expectClean()
	})
}

// TestDump is what the debug page shows of a volume on its way.
func TestDump(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		look := func(reason, device, mount string, wanted, inError bool) {
			t.Helper()
			synctest.Wait()
			all := w.m.Dump()
			if len(all) != 1 || len(all[0].Uses) != 1 {
				t.Fatalf("%s: dump is %+v", reason, all)
			}
			d, u := all[0], all[0].Uses[0]
			if d.Volume != p.Volume.Name || d.Device != device || u.Mount != mount || u.Wanted != wanted || (u.Error != "") != inError {
				t.Errorf("%s: dump is %+v", reason, d)
			}
		}
		w.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.Unavailable})
		w.m.Want(p)
		look("publish is in doubt", "staged", "uncertain", true, true)
		w.driver.Heal()
		time.Sleep(time.Minute)
		look("published", "staged", "published", true, false)
		w.driver.Inject(csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.Internal})
		w.m.Drop(p.Pod)
		look("being taken down", "staged", "uncertain", false, true)
	})
}

// TestUnknownDriverAfterRestart: what an earlier process mounted for a driver that is not there yet
// stays until the driver comes, and goes then without being asked for again.
func TestUnknownDriverAfterRestart(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.set(func() { w.registered = false })
		w.driver.ResetCalls()

		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, Targets: []volume.Key{p.Key()}}})
		if !w.m.Busy(p.Pod.UID) {
			t.Error("an adopted use does not count as one")
		}
		w.start()
		w.m.Drop(volume.Pod{UID: p.Pod.UID})
		time.Sleep(time.Hour)
		w.expectCalls("nobody to call")
		w.set(func() { w.registered = true })
		w.m.DriverChanged("other.example")
		w.expectCalls("another driver is no reason to try")
		w.m.DriverChanged(testDriver)
		w.expectCalls("taken down at once", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}
