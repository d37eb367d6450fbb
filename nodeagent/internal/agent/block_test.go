package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// asBlock makes a PersistentVolume a raw block volume, and withDevice has the container of a pod use it as one.
func asBlock(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.Spec.VolumeMode = on(corev1.PersistentVolumeBlock)
	return pv
}

func withDevice(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Containers[0].VolumeMounts = nil
	pod.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "vol", DevicePath: "/dev/x"}}
	return pod
}

// kubeletBlock leaves what a kubelet leaves of a raw block volume that two pods use.
func (c *cluster) kubeletBlock(pods ...types.UID) {
	c.t.Helper()
	dir := c.root.DeviceRecordDir("pv-1")
	text := `{"attachmentID":"` + layout.Attachment("vol-1", driverName, nodeName) + `","driverName":"` + driverName +
		`","nodeName":"` + nodeName + `","specVolID":"pv-1","volumeHandle":"vol-1"}`
	err := errors.Join(
		os.MkdirAll(dir, 0o750), os.MkdirAll(c.root.DeviceMapDir("pv-1"), 0o750), os.MkdirAll(c.root.DeviceStaging("pv-1"), 0o750),
		os.MkdirAll(c.root.DeviceTargetDir("pv-1"), 0o750), os.WriteFile(filepath.Join(dir, layout.RecordFile), []byte(text), 0o600),
	)
	for _, uid := range pods {
		err = errors.Join(
			err, os.MkdirAll(c.root.PodDevices(uid), 0o750), os.WriteFile(c.root.DeviceTarget(uid, "pv-1"), nil, 0o600),
			os.WriteFile(c.root.DeviceMap(uid, "pv-1"), nil, 0o600), os.Symlink(c.root.DeviceTarget(uid, "pv-1"), c.root.DeviceLink(uid, "pv-1")),
		)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestKubeletBlockTakenOver: raw block volumes of a kubelet are kept for pods that still exist, and taken down for others.
func TestKubeletBlockTakenOver(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(c *cluster) error
	}{
		"Mapped":     {reason: "all that a kubelet makes", change: func(*cluster) error { return nil }},
		"BeforeLink": {reason: "a kubelet makes the link last", change: func(c *cluster) error { return os.RemoveAll(c.root.Pod("uid-gone")) }},
		"Unmapped": {reason: "and removes it first", change: func(c *cluster) error {
			return errors.Join(os.Remove(c.root.DeviceLink("uid-gone", "pv-1")), os.Remove(c.root.DeviceMap("uid-gone", "pv-1")))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{TargetPaths: true})
			c.kubeletBlock("uid-a", "uid-gone")
			if err := tc.change(c); err != nil {
				t.Fatal(err)
			}
			c.takesOverBlock(tc.reason)
		})
	}
}

func (c *cluster) takesOverBlock(reason string) {
	c.t.Helper()
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(true), claim(), asBlock(persistentVolume()), withDevice(podWith("a", claimSource())))
	c.inUseBefore("vol-1")
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.expectInUse("vol-1")
	c.attach("vol-1")
	c.eventually("the pod to run", c.running("a"))
	c.eventually("the other pod's device to be removed", func() bool {
		_, targetErr := os.Lstat(c.root.DeviceTarget("uid-gone", "pv-1"))
		_, podErr := os.Lstat(c.root.Pod("uid-gone"))
		return errors.Is(targetErr, os.ErrNotExist) && errors.Is(podErr, os.ErrNotExist)
	})
	if _, err := os.Stat(c.root.DeviceLink("uid-a", "pv-1")); err != nil {
		c.t.Errorf("%s: the device of the pod that runs: %v", reason, err)
	}
	if got := c.unpublished(); !slices.Equal(got, []string{"vol-1"}) {
		c.t.Errorf("%s: unpublished %v, want the volume once, for the pod that is gone", reason, got)
	}
	if c.hasEvent("UnknownVolumeMount", "") {
		c.t.Errorf("%s: a block volume with a record was reported as unknown", reason)
	}
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
