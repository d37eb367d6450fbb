package agent

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
)

// TestTeardownBeforeRegistration: after a restart of the agent the driver cannot register, but what it has mounted for a
// pod that is deleted can still be unmounted (kubernetes issue 72500).
func TestTeardownBeforeRegistration(t *testing.T) {
	for name, fault := range map[string]csitest.Fault{
		"Fails": {Method: "NodeGetInfo", Code: codes.Internal},
		"Hangs": {Method: "NodeGetInfo", Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
			c.register()
			c.apply(csiDriver(false), claim(), persistentVolume())
			c.start()
			c.apply(podWith("a", claimSource()))
			c.eventually("the pod to run", c.running("a"))
			c.halt()
			c.driver.ResetCalls()
			c.driver.Inject(fault)
			c.start()
			c.deletePod("a", 30)
			c.eventually("the pod to be gone", c.gone("a"))
			c.expectClean()
			c.expectCalls("taken down", "NodeUnpublishVolume", "NodeUnstageVolume")
			if got := c.agent.plugin.State().Drivers; len(got) > 0 {
				t.Errorf("registered drivers: %v, want none", got)
			}
		})
	}
}

func (c *cluster) entries() []storagev1.CSINodeDriver {
	n, err := c.api.Client().CSINodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return n.Spec.Drivers
}

// TestFailedNodeGetInfoDeregisters is seed 001, "NodeGetInfo": a driver that registers again and cannot say which node
// this is leaves CSINode and the node ID annotation; what runs keeps running, and registration is tried again.
func TestFailedNodeGetInfoDeregisters(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(false))
	c.start()
	c.eventually("the driver's entry in CSINode", func() bool { return len(c.entries()) == 1 })
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	c.halt()
	c.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.Internal})
	c.start()
	c.eventually("the entry to be removed", func() bool { return len(c.entries()) == 0 })
	c.eventually("the annotation to be removed", func() bool { return c.node().Annotations[nodeinfo.NodeIDAnnotation] == "" })
	c.driver.Heal()
	c.eventually("the entry to be back", func() bool { return len(c.entries()) == 1 })
	if !c.running("a")() {
		t.Error("the pod does not run any more")
	}
}

// TestUnregistration is seed 001, "Driver Unregistration": without its socket the driver leaves CSINode and the annotation,
// but can still unmount.
func TestUnregistration(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(false))
	c.start()
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	if err := os.Remove(filepath.Join(c.root.Registry(), "test-reg.sock")); err != nil {
		t.Fatal(err)
	}
	c.eventually("the entry to be removed", func() bool { return len(c.entries()) == 0 })
	c.eventually("the annotation to be removed", func() bool { return c.node().Annotations[nodeinfo.NodeIDAnnotation] == "" })
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
