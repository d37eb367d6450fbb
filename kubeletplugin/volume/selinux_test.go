package volume_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const (
	blue  = "system_u:object_r:container_file_t:s0:c1"
	green = "system_u:object_r:container_file_t:s0:c2"
)

// labeled is a volume that a pod wants mounted with an SELinux context.
func labeled(pod, context string) volume.Publication {
	p := persistentOf(pod, "vol-1")
	p.Volume.SELinuxContext, p.Volume.Exclusive, p.Volume.Attachable = context, true, true
	return p
}

// TestSELinuxContext: the context is in the records, and a pod that wants another one gets the volume after it was unstaged.
func TestSELinuxContext(t *testing.T) {
	cases := map[string]struct{ reason, first, second string }{
		"Other":   {reason: "another context", first: blue, second: green},
		"Without": {reason: "no context after one", first: blue},
		"With":    {reason: "a context after none", second: green},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, restart := range []bool{false, true} {
				scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
					w.attach("vol-1", "va-1")
					first, second := labeled("a", tc.first), labeled("b", tc.second)
					w.m.Want(first)
					w.expectPublished(first, true)
					w.expectContext(first)
					if restart {
						w.restart()
					}
					w.driver.ResetCalls()
					w.m.Want(second)
					w.expectCalls("the first pod may be running")
					w.m.Drop(first.Pod)
					w.expectCalls(tc.reason, "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
					w.expectPublished(second, true)
					w.expectContext(second)
					w.m.Drop(second.Pod)
					w.expectPublished(second, false)
					w.expectClean()
				})
			}
		})
	}
}

// expectContext looks at the records of a volume that was published.
func (w *world) expectContext(p volume.Publication) {
	w.t.Helper()
	staging, err := records.ReadStaging(w.root.StagingDir(testDriver, p.Volume.Handle))
	if err != nil || staging.SELinuxContext != p.Volume.SELinuxContext {
		w.t.Errorf("staging record %+v (%v), want the context %q", staging, err, p.Volume.SELinuxContext)
	}
	target, err := records.ReadTarget(w.root.TargetDir(p.Pod.UID, p.SpecName))
	if err != nil || target.SELinuxContext != p.Volume.SELinuxContext {
		w.t.Errorf("target record %+v (%v), want the context %q", target, err, p.Volume.SELinuxContext)
	}
}

// TestSELinuxContextIsShared: pods that want the same context share the stage; one that wants another waits, with an event.
func TestSELinuxContextIsShared(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.attach("vol-1", "va-1")
		a, b, c := labeled("a", blue), labeled("b", blue), labeled("c", green)
		for _, p := range []*volume.Publication{&a, &b, &c} {
			p.Volume.Exclusive = false
		}
		w.m.Want(a)
		w.m.Want(b)
		w.expectCalls("one stage for two pods", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
		w.m.Want(c)
		w.expectCalls("the other pods have it")
		w.expectEvent(`c FailedMount: MountVolume.SetUp failed for volume "pv-vol-1" : volume is in use as a file system with the SELinux context "` + blue)
		w.m.Drop(a.Pod)
		w.expectCalls("one pod keeps the stage", "NodeUnpublishVolume")
		w.m.Drop(b.Pod)
		w.expectCalls("its turn", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.m.Drop(c.Pod)
		w.expectPublished(c, false)
		w.expectClean()
	})
}

// TestSELinuxContextOfARunningPod: a pod keeps the context with which its volume is mounted, when the CSIDriver object has changed, also after a
// restart.
func TestSELinuxContextOfARunningPod(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.attach("vol-1", "va-1")
		p := labeled("a", blue)
		w.m.Want(p)
		w.expectPublished(p, true)
		w.driver.ResetCalls()
		p.Volume.SELinuxContext = ""
		w.m.Want(p)
		w.expectCalls("it is published")
		w.restart()
		p.Running = true
		w.m.Want(p)
		w.expectCalls("it is published again as it was", "NodeStageVolume", "NodePublishVolume")
		p.Volume.SELinuxContext = blue
		w.expectContext(p)
		w.expectPublished(p, true)
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}

// TestSELinuxContextOfAWaitingPod: what an earlier process may have published for a pod that does not run is mounted again with the context of
// now.
func TestSELinuxContextOfAWaitingPod(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.attach("vol-1", "va-1")
		p := labeled("a", blue)
		w.m.Want(p)
		w.expectPublished(p, true)
		w.restart()
		w.driver.ResetCalls()
		p.Volume.SELinuxContext = green
		w.m.Want(p)
		w.expectCalls("no container has it", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume")
		w.expectContext(p)
		w.m.Drop(p.Pod)
		w.expectPublished(p, false)
		w.expectClean()
	})
}
