package agent

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// refuse lets all requests of a kind fail until the cluster is healed, and counts them.
func (c *cluster) refuse(verb, resource string) *atomic.Int64 {
	n := new(atomic.Int64)
	c.api.Inject(kubetest.Fault{Verb: verb, Resource: resource, Err: errors.New("the server is away"), Do: func() { n.Add(1) }})
	return n
}

// noUnmount fails the test if anything was taken down.
func (c *cluster) noUnmount(reason string) {
	c.t.Helper()
	for _, call := range c.calls() {
		if strings.HasPrefix(call, "NodeUn") {
			c.t.Errorf("%s: the driver saw %s", reason, call)
		}
	}
}

// TestNotReadyWithoutCSINode: without its CSINode the node is not ready, or the scheduler would place pods without knowing
// the limits of the drivers. The agent keeps trying, and meanwhile takes down what was mounted (seed 001).
func TestNotReadyWithoutCSINode(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(false))
	c.start()
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	c.halt()
	if err := c.api.Remove("csinodes", "", nodeName); err != nil {
		t.Fatal(err)
	}
	tries := c.refuse("create", "csinodes")
	c.start()
	c.eventually("the node not to be ready", func() bool { return !c.ready() })
	c.eventually("more than one attempt", func() bool { return tries.Load() > 1 })
	if c.ready() {
		t.Error("the node is ready without a CSINode")
	}
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
	c.api.Heal()
	c.eventually("the node to be ready", c.ready)
}

// TestAttachmentNotRequiredAnyMore: a pod waits for the attachment of its volume until an administrator creates the CSIDriver
// object again, with attachRequired false: the volume is mounted, and leaves volumesInUse.
func TestAttachmentNotRequiredAnyMore(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(true), claim(), persistentVolume())
	c.start()
	c.apply(podWith("a", claimSource()))
	c.eventually("the volume to be in use", func() bool { return len(c.node().Status.VolumesInUse) == 1 })
	c.apply(csiDriver(false))
	c.eventually("the pod to run", c.running("a"))
	c.eventually("the volume to leave volumesInUse", func() bool { return len(c.node().Status.VolumesInUse) == 0 })
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}

// TestAttachmentNoLongerRequiredForARunningPod: the volume of a pod that runs leaves volumesInUse, once it is not attached.
func TestAttachmentNoLongerRequiredForARunningPod(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(true), claim(), persistentVolume())
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.attach("vol-1")
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	if err := c.api.Merge("nodes", "", nodeName, []byte(`{"status":{"volumesAttached":null}}`)); err != nil {
		t.Fatal(err)
	}
	c.eventually("the agent to see that it is not attached", func() bool { return !c.agent.view.Attached(layout.Unique(driverName, "vol-1")) })
	c.apply(csiDriver(false))
	c.eventually("the volume to leave volumesInUse", func() bool { return len(c.node().Status.VolumesInUse) == 0 })
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
	c.expectCalls("the pod kept its volume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
}

// TestNothingIsUnmountedBeforeTheFirstList: after a restart only a complete list of pods shows which of them are gone. Until
// there is one, nothing is taken down, and the names of all volumes on disk stay in volumesInUse.
func TestNothingIsUnmountedBeforeTheFirstList(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(true), claim(), persistentVolume())
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.attach("vol-1")
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	c.halt()
	c.deletePod("a", 0)
	c.driver.ResetCalls()
	lists := c.refuse("", "pods") // lists and watches
	c.start()
	c.eventually("the driver to be registered", func() bool { return len(c.agent.plugin.State().Drivers) == 1 })
	c.eventually("more than one attempt to list the pods", func() bool { return lists.Load() > 1 })
	c.expectCalls("nobody knows whether the pod is gone")
	c.expectInUse("vol-1")
	c.api.Heal()
	c.eventually("the volume to leave volumesInUse", func() bool { return len(c.node().Status.VolumesInUse) == 0 })
	c.expectClean()
	c.expectCalls("now it is known", "NodeUnpublishVolume", "NodeUnstageVolume")
}

// TestUnreadableClaimKeepsTheMount is kubelet issue 120150: after a restart the claim of a running pod cannot be read. That is
// no reason to unmount the volume.
func TestUnreadableClaimKeepsTheMount(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(false), claim(), persistentVolume())
	c.start()
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	c.halt()
	c.driver.ResetCalls()
	c.refuse("get", "persistentvolumeclaims")
	c.start()
	c.expectEventWith("FailedMount", "the server is away")
	c.noUnmount("the claim cannot be read")
	c.api.Heal()
	c.eventually("the volume to be published again", func() bool {
		d := c.agent.plugin.Volumes().Dump()
		return len(d) == 1 && len(d[0].Uses) == 1 && d[0].Uses[0].Mount == "published"
	})
	c.noUnmount("the pod runs")
	if p := c.pod("a"); p == nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod is %+v", p)
	}
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
