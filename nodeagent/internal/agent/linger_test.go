package agent

import (
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func (c *cluster) csiNode() *storagev1.CSINode {
	n, err := c.api.Client().CSINodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return &storagev1.CSINode{}
	}
	return n
}

func (c *cluster) csiNodeHas(n int) func() bool {
	return func() bool { return len(c.csiNode().Spec.Drivers) == n }
}

func (c *cluster) registered(n int) func() bool {
	return func() bool { return len(c.agent.plugin.State().Drivers) == n }
}

// TestRestartedDriverKeepsItsEntry: a driver whose registrar is away mounts nothing, but stays in the CSINode, and comes back without a write.
func TestRestartedDriverKeepsItsEntry(t *testing.T) {
	c := newCluster(t, csitest.Options{MaxVolumesPerNode: 3})
	c.cfg.Linger = time.Hour
	stop := c.register()
	c.apply(csiDriver(false))
	c.start()
	c.eventually("the registration", c.registered(1))
	c.api.ResetWrites()
	stop()
	c.eventually("the driver to be away", c.registered(0))
	c.apply(podWith("a", inlineSource()))
	c.eventually("the volume to wait", func() bool { return len(c.agent.plugin.Volumes().Dump()) == 1 })
	c.register()
	c.eventually("the pod to run", c.running("a"))
	if n := c.csiNodeWrites(); n > 0 || !c.limitIs(3)() {
		t.Errorf("the CSINode was written %d times: %+v", n, c.csiNode().Spec)
	}
}

// TestAwayDriverLosesItsEntry: after the grace period, or at once without one; after a restart of the agent as well.
func TestAwayDriverLosesItsEntry(t *testing.T) {
	for name, linger := range map[string]time.Duration{"AtOnce": 0, "GracePeriod": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{MaxVolumesPerNode: 3})
			c.cfg.Linger = linger
			stop := c.register()
			c.start()
			c.eventually("the entry", c.limitIs(3))
			stop()
			c.eventually("the entry to be removed", c.csiNodeHas(0))
		})
	}
	t.Run("Restart", func(t *testing.T) {
		c := newCluster(t, csitest.Options{MaxVolumesPerNode: 3})
		c.cfg.Linger = time.Hour
		stop := c.register()
		c.start()
		c.eventually("the entry", c.limitIs(3))
		c.halt()
		stop()
		c.cfg.Linger = 100 * time.Millisecond
		c.start()
		c.eventually("the entry to be removed", c.csiNodeHas(0))
	})
}
