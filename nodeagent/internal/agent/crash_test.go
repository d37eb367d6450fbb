package agent

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// killer stops an agent at a point as if it had been killed there: nothing after it happens.
type killer struct {
	mu     sync.Mutex
	point  fault.Point
	struck bool
}

func (k *killer) hook(p fault.Point) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.struck || p == k.point {
		k.struck = true
		return fault.ErrCrashed
	}
	return nil
}

func (k *killer) hasStruck() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.struck
}

// comesUp reports whether a point is passed on the way to a running pod.
func comesUp(p fault.Point) bool {
	all := fault.All()
	return slices.Index(all, p) <= slices.Index(all, fault.AfterExpandFinish)
}

// TestKilledAtEachPoint kills the agent between any two side effects, starts it again, and expects
// the pod to get where it was to go, its volume to be expanded, and nothing to be left when it is deleted.
func TestKilledAtEachPoint(t *testing.T) {
	for _, point := range fault.All() {
		t.Run(string(point), func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.makesDirectories()
			c.killAt(point, withFSType(persistentVolume()), withGroup(podWith("a", claimSource())))
			c.expectGroup("a", "pv-1")
		})
	}
}

// TestBlockKilledAtEachPoint is the same for a raw block volume, whose files nobody changes.
func TestBlockKilledAtEachPoint(t *testing.T) {
	for _, point := range fault.All() {
		if point == fault.BeforeChangeGroup || point == fault.AfterChangeGroup {
			continue
		}
		t.Run(string(point), func(t *testing.T) {
			c := newCluster(t, csitest.Options{TargetPaths: true})
			c.killAt(point, asBlock(persistentVolume()), withDevice(withGroup(podWith("a", claimSource()))))
		})
	}
}

// killAt has the agent killed at a point while a pod comes up or goes, and sees the pod and its volume to their end.
func (c *cluster) killAt(point fault.Point, pv *corev1.PersistentVolume, pod *corev1.Pod) {
	c.t.Helper()
	c.driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 2 << 30})
	c.register()
	c.apply(csiDriver(true), handedOver(claim()), large(pv))
	k := &killer{point: point}
	c.cfg.Fault = k.hook
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.attach("vol-1")
	c.apply(pod)
	if !comesUp(point) {
		c.eventually("the pod to run", c.running("a"))
		c.deletePod("a", 30)
	}
	c.eventually("the agent to be killed", k.hasStruck)
	c.halt()

	c.cfg.Fault = nil
	c.start()
	if comesUp(point) {
		c.eventually("the pod to run after the restart", c.running("a"))
		c.deletePod("a", 30)
	}
	c.expectExpanded()
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
	for _, call := range []string{"NodePublishVolume", "NodeExpandVolume"} {
		if !slices.Contains(c.calls(), call) {
			c.t.Errorf("%s was never called: the test shows nothing", call)
		}
	}
}

// TestInlineKilledAtEachPoint is test item T7: whatever was done for an inline volume when the agent was killed, and although
// the pod is gone when it starts again, the driver gets NodeUnpublishVolume with the handle that it knows, and nothing is left.
func TestInlineKilledAtEachPoint(t *testing.T) {
	points := map[fault.Point]bool{ // whether a record is left, so that the volume has to be unpublished
		fault.BeforeTargetRecord: false, fault.AfterTargetRecord: true, fault.BeforePublish: true, fault.AfterPublish: true,
		fault.BeforeUnpublish: true, fault.AfterUnpublish: true, fault.BeforeTargetRemoval: true, fault.AfterTargetRemoval: false,
	}
	for point, recorded := range points {
		t.Run(string(point), func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.register()
			c.apply(csiDriver(true))
			k := &killer{point: point}
			c.cfg.Fault = k.hook
			c.start()
			c.apply(podWith("a", inlineSource()))
			if !comesUp(point) {
				c.eventually("the pod to run", c.running("a"))
				c.deletePod("a", 30)
			}
			c.eventually("the agent to be killed", k.hasStruck)
			c.halt()
			c.deletePod("a", 0)
			c.driver.ResetCalls()

			c.cfg.Fault = nil
			c.start()
			c.eventually("the directory of the pod to be removed", func() bool {
				_, err := os.Lstat(c.root.Pod("uid-a"))
				return errors.Is(err, fs.ErrNotExist)
			})
			c.expectClean()
			got := c.unpublished()
			if slices.ContainsFunc(got, func(id string) bool { return id != layout.InlineHandle("uid-a", "vol") }) || recorded && len(got) == 0 {
				t.Errorf("unpublished %q, want the volume of the pod", got)
			}
		})
	}
}
