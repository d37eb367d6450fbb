package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

func (c *cluster) ready() bool {
	for _, cond := range c.node().Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func TestNodeBecomesReady(t *testing.T) {
	c := newCluster(t, csitest.Options{Topology: map[string]string{"topology.test.example/zone": "a"}})
	c.register()
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.eventually("the topology label", func() bool { return c.node().Labels["topology.test.example/zone"] == "a" })
	n := c.node()
	if n.Annotations[nodeobj.ManagedAnnotation] != "true" {
		t.Errorf("annotations are %v, want the attach/detach controller to manage the node", n.Annotations)
	}
	c.eventually("the driver's entry in CSINode", func() bool {
		n, err := c.api.Client().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && len(n.Spec.Drivers) == 1 && n.Spec.Drivers[0].Name == driverName
	})
	c.eventually("the lease", func() bool {
		_, err := c.api.Client().Leases(corev1.NamespaceNodeLease).Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil
	})
}

func TestNodeIsMadeAgain(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.start()
	c.eventually("the node to be ready", c.ready)
	uid := c.node().UID
	if err := c.api.Client().Nodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("another node that is ready", func() bool { return c.ready() && c.node().UID != uid })
}

// TestClaim is the main path: a pod with a claim on an attached volume runs, and leaves nothing.
func TestClaim(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(true), claim(), persistentVolume())
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.apply(podWith("a", claimSource()))
	name := corev1.UniqueVolumeName(layout.Unique(driverName, "vol-1"))
	c.eventually("the volume to be in use", func() bool {
		inUse := c.node().Status.VolumesInUse
		return len(inUse) == 1 && inUse[0] == name
	})
	c.expectCalls("nothing is mounted before it is attached")
	c.attach("vol-1")
	c.eventually("the pod to run", c.running("a"))
	for _, call := range c.driver.Calls() {
		if r, ok := call.Request.(*csi.NodePublishVolumeRequest); ok {
			if r.GetPublishContext()["lun"] != "7" || r.GetVolumeContext()["color"] != "blue" || r.GetVolumeContext()["csi.storage.k8s.io/pod.name"] != "a" {
				t.Errorf("contexts are %v and %v", r.GetPublishContext(), r.GetVolumeContext())
			}
		}
	}
	c.expectCalls("mounted", "NodeStageVolume", "NodePublishVolume")
	p := c.pod("a")
	if len(p.Status.ContainerStatuses) != 1 || !p.Status.ContainerStatuses[0].Ready || p.Status.PodIP == "" || p.Status.HostIP != "10.0.0.1" {
		t.Errorf("status is %+v, want a ready container and addresses", p.Status)
	}
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
	c.expectCalls("unmounted", "NodeUnpublishVolume", "NodeUnstageVolume")
	for _, w := range c.api.Writes() {
		if w.Resource == "volumeattachments" {
			t.Errorf("the agent has sent %s of a VolumeAttachment, which is kube-controller-manager's", w.Verb)
		}
	}
}

// TestInlinePod is test items E1, E5, E6 and T8: an inline volume is neither attached nor in use.
func TestInlinePod(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(true))
	c.start()
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	if inUse := c.node().Status.VolumesInUse; len(inUse) > 0 {
		t.Errorf("inline volumes are in use: %v", inUse)
	}
	c.expectCalls("published only", "NodePublishVolume")
	c.deletePod("a", 0)
	c.expectClean()
	c.expectCalls("unpublished after force deletion", "NodeUnpublishVolume")
}

// TestFinishedPod releases the volumes of a pod that has ended but was not deleted.
func TestFinishedPod(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(true))
	c.start()
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	p := c.pod("a").DeepCopy()
	p.Status.Phase = corev1.PodSucceeded
	if _, err := c.api.Client().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.expectClean()
	if c.pod("a") == nil {
		t.Error("a pod that has ended was deleted by the agent")
	}
}

// TestRestartKeepsPods starts another agent over the same directory while a pod runs, and again
// after the pod was deleted meanwhile.
func TestRestartKeepsPods(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(true))
	c.start()
	c.apply(podWith("a", inlineSource()), podWith("b", inlineSource()))
	c.eventually("both pods to run", func() bool { return c.running("a")() && c.running("b")() })
	c.halt()
	c.driver.ResetCalls()
	c.deletePod("b", 0)
	c.start()
	c.eventually("only one pod to have volumes", func() bool {
		d := c.agent.plugin.Volumes().Dump()
		return len(d) == 1 && d[0].Uses[0].Mount == "published"
	})
	for _, call := range c.driver.Calls() {
		if r, ok := call.Request.(*csi.NodeUnpublishVolumeRequest); ok && r.GetVolumeId() == layout.InlineHandle("uid-a", "vol") {
			t.Error("the volume of the pod that still runs was unpublished")
		}
	}
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}

// TestForeignMount: a mount whose record is lost may be of any volume that was in use, so all of them stay in use.
func TestForeignMount(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	dir := c.root.TargetDir("uid-gone", "pv-1")
	target := filepath.Join(dir, layout.TargetLeaf)
	unused := c.root.Staging(driverName, "vol-2")
	if err := errors.Join(os.MkdirAll(target, 0o750), os.MkdirAll(unused, 0o750)); err != nil {
		t.Fatal(err)
	}
	c.cfg.Mounts = func(string) ([]volume.MountPoint, error) {
		return []volume.MountPoint{{Point: target, Source: "8:1/x"}}, nil
	}
	name := corev1.UniqueVolumeName(layout.Unique(driverName, "vol-1"))
	c.apply(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{name}},
	})
	c.start()
	c.expectEvent("UnknownVolumeMount", c.node().UID)
	c.eventually("the node to be ready", c.ready)
	if inUse := c.node().Status.VolumesInUse; !slices.Equal(inUse, []corev1.UniqueVolumeName{name}) {
		t.Errorf("in use are %v, want what was in use before", inUse)
	}
	if _, err := os.Stat(filepath.Dir(unused)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a staging directory without a record or a mount was not swept: %v", err)
	}
}

// TestForeignMountWithoutNode: the Node may be deleted again while the agent starts.
func TestForeignMountWithoutNode(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	a, err := New(c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.recovered = &volume.Found{Foreign: []volume.Foreign{{Path: "/lost"}}}
	a.reportForeign(t.Context())
	a.seedInUse()
	if got := a.inUse.Names(); len(got) > 0 {
		t.Errorf("in use are %v", got)
	}
}

func TestPodWithoutCSIVolumes(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.start()
	c.apply(podWith("a", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	c.eventually("the pod to run", c.running("a"))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
}

func TestProblemsAreEvents(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		change func(*cluster)
		event  string
	}{
		"NoDriver": {
			reason: "a driver that is not there is named",
			pod:    podWith("a", inlineSource()),
			change: func(c *cluster) { c.apply(csiDriver(true)) },
			event:  "FailedMount",
		},
		"NotAllowed": {
			reason: "a driver that the node does not allow",
			pod:    podWith("a", inlineSource()),
			change: func(c *cluster) { c.apply(csiDriver(true)); c.cfg.Allowed.Restricted = true },
			event:  "CSIDriverNotAllowed",
		},
		"NoClaim": {
			reason: "a claim that does not exist",
			pod:    podWith("a", claimSource()),
			change: func(*cluster) {},
			event:  "FailedMount",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			tc.change(c)
			c.start()
			c.apply(tc.pod)
			c.expectEvent(tc.event, tc.pod.UID)
			c.deletePod("a", 30)
			c.eventually("the pod to be gone", c.gone("a"))
			c.expectClean()
			if calls := c.calls(); len(calls) > 0 {
				t.Errorf("%s: driver was called: %v", tc.reason, calls)
			}
		})
	}
}
