package agent

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
	"github.com/longshore-csi/longshore/nodeagent/internal/selfattach"
)

// attacher answers each VolumeAttachment as an attacher does, until the test ends: it holds it by a finalizer as long as the volume is attached, which
// must not be staged any more when that ends.
func (c *cluster) attacher() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			list, err := c.api.Client().VolumeAttachments().List(ctx, metav1.ListOptions{})
			if err == nil { // otherwise there is no list
				for i := range list.Items {
					c.answer(ctx, &list.Items[i])
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	c.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (c *cluster) answer(ctx context.Context, va *storagev1.VolumeAttachment) {
	client := c.api.Client().VolumeAttachments()
	var err error
	switch {
	case va.DeletionTimestamp != nil:
		for _, v := range c.driver.Volumes() {
			if len(v.Staged)+len(v.Published) > 0 {
				c.t.Errorf("attachment %q ends while volume %+v is staged", va.Name, v)
			}
		}
		va.Finalizers = nil
		_, err = client.Update(ctx, va, metav1.UpdateOptions{})
	case len(va.Finalizers) == 0:
		va.Finalizers = []string{"attacher"}
		_, err = client.Update(ctx, va, metav1.UpdateOptions{})
	case !va.Status.Attached:
		va.Status.Attached = true
		_, err = client.UpdateStatus(ctx, va, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Logf("attacher tries again: %v", err)
	}
}

func (c *cluster) attachments() []string {
	c.t.Helper()
	list, err := c.api.Client().VolumeAttachments().List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	return all
}

// TestSelfAttach: without an attach/detach controller the agent attaches the volume of a pod and detaches it again, also if it is restarted meanwhile. The
// Node, which an earlier agent has left to the controller, is not any more.
func TestSelfAttach(t *testing.T) {
	for naming, name := range map[selfattach.Naming]string{
		selfattach.CSI: layout.Attachment("vol-1", driverName, nodeName), selfattach.PV: layout.SeedAttachment("pv-1", nodeName),
	} {
		t.Run(string(naming), func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.cfg.SelfAttach, c.cfg.Template.Unmanaged = naming, true
			c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
			c.register()
			c.attacher()
			c.apply(csiDriver(true), claim(), persistentVolume())
			c.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Annotations: map[string]string{nodeobj.ManagedAnnotation: "true"}}})
			c.apply(podWith("a", claimSource()))
			c.start()
			c.eventually("the pod to run", c.running("a"))
			if got := c.attachments(); len(got) != 1 || got[0] != name {
				t.Errorf("attachments are %q, want %q", got, name)
			}
			if _, managed := c.node().Annotations[nodeobj.ManagedAnnotation]; managed {
				t.Error("the Node still says that the controller attaches")
			}
			c.expectInUse("vol-1")
			c.halt()
			c.start()
			c.eventually("the node to be ready", c.ready)
			c.deletePod("a", 30)
			c.eventually("the pod to be gone", c.gone("a"))
			c.eventually("the attachment to be gone", func() bool { return len(c.attachments()) == 0 })
			c.expectClean()
		})
	}
}

// TestSelfAttachWaits: a pod whose volume cannot be attached gets the reason, and its attachment does not outlive it, nor a force deletion while the agent
// is away.
func TestSelfAttachWaits(t *testing.T) {
	for name, away := range map[string]bool{"Deleted": false, "ForceDeletedWhileAway": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.cfg.SelfAttach, c.cfg.Template.Unmanaged = selfattach.PV, true
			c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
			c.register()
			c.apply(csiDriver(true), claim(), persistentVolume())
			c.start()
			c.apply(podWith("a", claimSource()))
			c.eventually("an attachment", func() bool { return len(c.attachments()) == 1 })
			if away {
				c.halt()
				c.deletePod("a", 0)
				c.start()
			} else {
				patch := []byte(`{"status":{"attachError":{"message":"no such disk"}}}`)
				if err := c.api.Merge("volumeattachments", "", layout.SeedAttachment("pv-1", nodeName), patch); err != nil {
					t.Fatal(err)
				}
				c.expectEventWith("FailedMount", "no such disk")
				c.deletePod("a", 30)
				c.eventually("the pod to be gone", c.gone("a"))
			}
			c.eventually("the attachment to be gone", func() bool { return len(c.attachments()) == 0 })
			c.expectClean()
			c.expectCalls("nothing was attached")
		})
	}
}

// TestSelfAttachOfAnyHandle: a handle with the character at which kube-controller-manager splits names is attached and detached, without an event.
func TestSelfAttachOfAnyHandle(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.cfg.SelfAttach, c.cfg.Template.Unmanaged = selfattach.CSI, true
	c.driver.AddVolume(csitest.Volume{ID: "vol^1"})
	c.register()
	c.attacher()
	pv := persistentVolume()
	pv.Spec.CSI.VolumeHandle = "vol^1"
	c.apply(csiDriver(true), claim(), pv, podWith("a", claimSource()))
	c.start()
	c.eventually("the pod to run", c.running("a"))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.eventually("the attachment to be gone", func() bool { return len(c.attachments()) == 0 })
	c.expectClean()
	if c.hasEvent(volume.ReasonUnsupported, "") {
		t.Error("the handle was reported as one that cannot be detached")
	}
}
