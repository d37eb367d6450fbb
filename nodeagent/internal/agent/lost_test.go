package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// spoil empties or removes the record of a volume directory.
func (c *cluster) spoil(dir string, remove bool) {
	c.t.Helper()
	record := filepath.Join(dir, layout.RecordFile)
	err := os.WriteFile(record, nil, 0o600)
	if remove {
		err = os.Remove(record)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// mounts replaces the mount table, path by source.
func (c *cluster) mounts(table map[string]string) {
	c.cfg.Mounts = func(string) ([]volume.MountPoint, error) {
		var all []volume.MountPoint
		for point, source := range table {
			all = append(all, volume.MountPoint{Point: point, Source: source})
		}
		return all, nil
	}
}

// unpublished lists the volume IDs of all NodeUnpublishVolume calls.
func (c *cluster) unpublished() []string {
	var all []string
	for _, call := range c.driver.Calls() {
		if r, ok := call.Request.(*csi.NodeUnpublishVolumeRequest); ok {
			all = append(all, r.GetVolumeId())
		}
	}
	return all
}

// TestLostRecordOfInlineVolume: the record of a mounted inline volume is lost while the agent is down. The handle is in
// the path (seed 003, "VolumeHandle generation"), the driver in the pod or, if that is gone, in the only CSIDriver for
// inline volumes: the pod must not hang in Terminating (kubelet issue 101911).
func TestLostRecordOfInlineVolume(t *testing.T) {
	cases := map[string]struct {
		reason string
		remove bool
		grace  int64
		err    error // of reading PersistentVolumes
	}{
		"PodGone": {reason: "the pod was deleted by force meanwhile", remove: true, grace: 0},
		"PodGoneRefused": {reason: "the rights of a node to read a volume end with its pod", remove: true, grace: 0, err: apierrors.NewForbidden(
			schema.GroupResource{Resource: "persistentvolumes"}, "vol", errors.New("no relationship found"))},
		"PodGoneCorrupt": {reason: "the record is empty", grace: 0},
		"PodTerminating": {reason: "the pod is being deleted", remove: true, grace: 30},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{TargetPaths: true})
			c.register()
			c.apply(csiDriver(true))
			c.start()
			c.apply(podWith("a", inlineSource()))
			c.eventually("the pod to run", c.running("a"))
			c.halt()
			c.spoil(c.root.TargetDir("uid-a", "vol"), tc.remove)
			c.mounts(map[string]string{c.root.Target("uid-a", "vol"): "0:40/"})
			c.deletePod("a", tc.grace)
			c.driver.ResetCalls()
			if tc.err != nil {
				c.api.Fail("get", "persistentvolumes", tc.err, 0)
			}
			c.start()
			c.eventually("the volume of the pod to be unpublished: "+tc.reason, func() bool {
				return slices.Contains(c.unpublished(), layout.InlineHandle("uid-a", "vol"))
			})
			c.eventually("the pod to be gone", c.gone("a"))
			c.expectClean()
		})
	}
}

// TestLostRecordOfPersistentVolume: as above, for a claim. The volume is the staged one with the same mount source, or
// the one of the PersistentVolume that the path names.
func TestLostRecordOfPersistentVolume(t *testing.T) {
	cases := map[string]struct {
		reason string
		source string
		grace  int64
	}{
		"SameSource":     {reason: "the target is a bind mount of the staging path", source: "8:16/", grace: 0},
		"ByName":         {reason: "another mount than the staging path, but the PersistentVolume tells", source: "0:41/", grace: 0},
		"PodTerminating": {reason: "the pod is being deleted", source: "0:41/", grace: 30},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{TargetPaths: true})
			c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
			c.register()
			c.apply(csiDriver(false), claim(), persistentVolume())
			c.start()
			c.apply(podWith("a", claimSource()))
			c.eventually("the pod to run", c.running("a"))
			c.halt()
			c.spoil(c.root.TargetDir("uid-a", "pv-1"), true)
			c.mounts(map[string]string{c.root.Staging(driverName, "vol-1"): "8:16/", c.root.Target("uid-a", "pv-1"): tc.source})
			c.deletePod("a", tc.grace)
			c.driver.ResetCalls()
			c.start()
			c.eventually("the volume of the pod to be unpublished", func() bool { return len(c.unpublished()) > 0 })
			c.eventually("the pod to be gone", c.gone("a"))
			c.expectClean()
			c.expectCalls(tc.reason, "NodeUnpublishVolume", "NodeUnstageVolume")
		})
	}
}

// TestLostRecordOfUnknownVolume: if several drivers could own a mount, none is called: the mount is reported, and what
// was in volumesInUse stays there. A staged volume without a target may be the one that is mounted, so it stays staged.
func TestLostRecordOfUnknownVolume(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	other := csiDriver(false)
	other.Name = "other.example"
	c.apply(csiDriver(false), other)
	target := c.root.Target("uid-gone", "vol")
	if err := os.MkdirAll(filepath.Join(target, "data"), 0o750); err != nil {
		t.Fatal(err)
	}
	c.mounts(map[string]string{target: "0:40/"})
	staging := c.root.StagingDir(driverName, "vol-9")
	if err := os.MkdirAll(filepath.Join(staging, "globalmount"), 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(staging, layout.RecordFile), fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":"vol-9"}`, driverName))
	c.inUseBefore("vol-9")
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.expectEventWith("UnknownVolumeMount", target)
	c.eventually("the driver to be registered", func() bool { return len(c.agent.plugin.State().Drivers) == 1 })
	c.apply(podWith("a", inlineSource()))
	c.eventually("a pod to run", c.running("a"))
	c.expectCalls("nothing but the volume of the pod", "NodePublishVolume")
	c.expectInUse("vol-9")
}

// TestLostRecordOfProvisionedVolume: the pod is gone, and the node may not read the PersistentVolume any more. Though there is one driver for inline volumes
// only, it is not called for what has the name of a PersistentVolume: the driver of that may be another one, which does not stage.
func TestLostRecordOfProvisionedVolume(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.register()
	c.apply(csiDriver(true))
	target := c.root.Target("uid-gone", "pvc-0b3c1d5e-7f2a-4c9b-8e6d-1a2b3c4d5e6f")
	if err := os.MkdirAll(target, 0o750); err != nil {
		t.Fatal(err)
	}
	c.mounts(map[string]string{target: "0:40/"})
	c.api.Fail("get", "persistentvolumes", apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "pvc", errors.New("no relationship found")), 0)
	c.start()
	c.eventually("the driver to be registered", func() bool { return len(c.agent.plugin.State().Drivers) == 1 })
	c.expectEventWith("UnknownVolumeMount", target)
	c.apply(podWith("a", inlineSource()))
	c.eventually("a pod to run", c.running("a"))
	c.expectCalls("nothing but the volume of the pod", "NodePublishVolume")
}

// TestForeignMountsFreed: once the last mount without a record is explained, names that were kept for its sake leave
// volumesInUse.
func TestForeignMountsFreed(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	if err := os.MkdirAll(c.root.Target("uid-gone", "pv-1"), 0o750); err != nil {
		t.Fatal(err)
	}
	c.mounts(map[string]string{c.root.Target("uid-gone", "pv-1"): "0:40/"})
	c.inUseBefore("vol-9")
	c.apply(csiDriver(true), persistentVolume())
	c.api.Fail("get", "persistentvolumes", errors.New("away"), 2)
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.expectInUse("vol-9")
	c.register()
	c.expectClean()
	if got := c.unpublished(); !slices.Equal(got, []string{"vol-1"}) {
		t.Errorf("unpublished %v, want the volume of the PersistentVolume that the path names", got)
	}
}

// TestUnknownBlockStaysInUse: a kubelet that was here before has left block volumes without a record, and more that is not known. It may be of any
// volume that was in use, so all of them stay in use, and each path is reported.
func TestUnknownBlockStaysInUse(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	csiDir := c.root.Drivers()
	paths := []string{
		filepath.Join(csiDir, "volumeDevices", "pv-block"),
		filepath.Join(csiDir, "volumeDevices", "staging", "pv-staged"),
		filepath.Join(csiDir, "volumeDevices", "publish", "pv-published"),
		filepath.Join(csiDir, "pv", "pv-old"),
		filepath.Join(string(c.root), "pods", "uid-gone", "volumeDevices", "kubernetes.io~csi", "pv-block"),
	}
	for _, p := range paths {
		if err := os.MkdirAll(p, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	subpath := filepath.Join(string(c.root), "pods", "uid-gone", "volume-subpaths", "pv-1", "main", "0")
	token := filepath.Join(string(c.root), "pods", "uid-gone", "volumes", "kubernetes.io~projected", "kube-api-access")
	private := filepath.Join(string(c.root), "plugins", "nfs.example", "share")
	c.mounts(map[string]string{subpath: "8:16/x", token: "0:50/", private: "0:51/", string(c.root): "8:1/"})
	paths = append(paths, subpath)
	c.inUseBefore("vol-block")
	c.start()
	c.eventually("the node to be ready", c.ready)
	for _, p := range paths {
		c.expectEventWith("UnknownVolumeMount", p)
	}
	for _, p := range []string{token, private, `"` + string(c.root) + `"`} {
		if c.hasEvent("UnknownVolumeMount", p) {
			t.Errorf("%s was reported, but it is no volume of a CSI driver", p)
		}
	}
	c.expectInUse("vol-block")
}

// TestUnknownMountKeepsVolumesOfKnownPods: what is not known may be another mount of a volume that a known pod uses. So the volume stays
// in use when the pod has ended and the volume is unstaged.
func TestUnknownMountKeepsVolumesOfKnownPods(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	if err := os.MkdirAll(filepath.Join(c.root.Drivers(), "pv", "pv-old"), 0o750); err != nil {
		t.Fatal(err)
	}
	c.register()
	c.apply(csiDriver(true), claim(), persistentVolume(), podWith("a", claimSource()))
	c.inUseBefore("vol-1")
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.attach("vol-1")
	c.eventually("the pod to run", c.running("a"))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.eventually("the volume to be released", func() bool { return len(c.agent.plugin.State().Volumes) == 0 })
	c.expectInUse("vol-1")
}

// inUseBefore creates the Node as an earlier process has left it.
func (c *cluster) inUseBefore(handle string) {
	c.t.Helper()
	name := corev1.UniqueVolumeName(layout.Unique(driverName, handle))
	c.apply(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{name}},
	})
}

func (c *cluster) expectInUse(handle string) {
	c.t.Helper()
	want := []corev1.UniqueVolumeName{corev1.UniqueVolumeName(layout.Unique(driverName, handle))}
	if got := c.node().Status.VolumesInUse; !slices.Equal(got, want) {
		c.t.Errorf("volumesInUse is %v, want %v", got, want)
	}
}

func (c *cluster) hasEvent(reason, part string) bool {
	for _, obj := range c.api.Objects("events") {
		if e, ok := obj.(*corev1.Event); ok && e.Reason == reason && strings.Contains(e.Message, part) {
			return true
		}
	}
	return false
}

func (c *cluster) expectEventWith(reason, part string) {
	c.t.Helper()
	c.eventually("the event "+reason+" about "+part, func() bool { return c.hasEvent(reason, part) })
}
