package agent

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestRequiresRepublish: a driver that begins to want repeated calls gets them, for pods that run already too, with the tokens that it
// requests by then; its errors leave the pod running on its mount.
func TestRequiresRepublish(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.cfg.SyncFrequency = 50 * time.Millisecond
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	d := csiDriver(false)
	c.apply(d, claim(), persistentVolume())
	c.start()
	pod := podWith("a", claimSource())
	c.apply(pod)
	c.eventually("the pod to run", c.running("a"))
	d = d.DeepCopy()
	d.Spec.RequiresRepublish, d.Spec.TokenRequests = on(true), []storagev1.TokenRequest{{Audience: "vault"}}
	c.apply(d)
	c.eventually("repeated calls with a token", func() bool {
		all := c.tokens()
		return len(all) > 3 && all[0] == "" && all[len(all)-1] != ""
	})
	c.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.InvalidArgument})
	c.expectEvent(volume.ReasonFailedMount, pod.UID)
	if calls := c.calls(); slices.Contains(calls, "NodeUnpublishVolume") || !c.running("a")() {
		t.Errorf("the pod lost its volume: %v", calls)
	}
	c.driver.Heal()
	c.driver.ResetCalls()
	c.eventually("repeated calls again", func() bool { return slices.Contains(c.calls(), "NodePublishVolume") })

	c.halt()
	c.driver.ResetCalls()
	c.start()
	c.eventually("repeated calls after a restart", func() bool { return len(c.tokens()) > 3 })
	c.deletePod("a", 0)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
