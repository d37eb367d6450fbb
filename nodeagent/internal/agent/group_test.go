package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// ownGroup is the group of this process, to which it can give its files without being root.
func ownGroup() int64 { return int64(os.Getegid()) }

// makesDirectories lets the driver make a directory with a file, as the mount of a volume, when a volume is published, and remove it again.
func (c *cluster) makesDirectories() {
	c.driver.Inject(csitest.Fault{Match: func(req proto.Message) bool {
		var err error
		switch r := req.(type) {
		case *csi.NodePublishVolumeRequest:
			err = os.MkdirAll(r.GetTargetPath(), 0o750)
			if err == nil {
				err = os.WriteFile(filepath.Join(r.GetTargetPath(), "file"), nil, 0o600)
			}
		case *csi.NodeUnpublishVolumeRequest:
			c.noteGroup(r.GetTargetPath())
			err = os.RemoveAll(r.GetTargetPath())
		}
		if err != nil {
			c.t.Error(err)
		}
		return false
	}})
}

// noteGroup notes whether a volume that is unpublished had its group.
func (c *cluster) noteGroup(target string) {
	info, err := os.Stat(filepath.Join(target, "file"))
	if errors.Is(err, fs.ErrNotExist) {
		return // unpublished a second time
	}
	if err != nil {
		c.t.Error(err)
		return
	}
	c.grouped.Store(target, info.Mode() == 0o660)
}

// expectGroup waits until the volume of a deleted pod is unpublished, and fails if its files did not have the group.
func (c *cluster) expectGroup(pod, specName string) {
	c.t.Helper()
	target := c.root.Target(podWith(pod, claimSource()).UID, specName)
	var grouped any
	c.eventually("the volume to be unpublished", func() (ok bool) {
		grouped, ok = c.grouped.Load(target)
		return ok
	})
	if grouped != true {
		c.t.Error("the files of the volume did not have the group of the pod")
	}
}

func withGroup(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: on(ownGroup())}
	return pod
}

func withFSType(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.Spec.CSI.FSType = "ext4"
	return pv
}

// TestFSGroup: a pod runs when the files of its volumes have its group; for real, and without a word to the user.
func TestFSGroup(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.makesDirectories()
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	d := csiDriver(false)
	d.Spec.FSGroupPolicy = on(storagev1.FileFSGroupPolicy)
	c.apply(d, claim(), persistentVolume())
	c.start()
	group := ownGroup()
	if os.Geteuid() == 0 {
		group = 4711
	}
	for name, source := range map[string]corev1.VolumeSource{"a": claimSource(), "b": inlineSource()} {
		pod := withGroup(podWith(name, source))
		pod.Spec.SecurityContext.FSGroup = &group
		c.apply(pod)
		c.eventually("the pod to run", c.running(name))
		specName := "pv-1"
		if source.CSI != nil {
			specName = "vol"
		}
		target := c.root.Target(pod.UID, specName)
		for path, want := range map[string]uint32{target: unix.S_IFDIR | 0o2770, filepath.Join(target, "file"): unix.S_IFREG | 0o660} {
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil || int64(st.Gid) != group || st.Mode != want {
				t.Errorf("%s: group %d, mode %o, %v; want %d and %o", path, st.Gid, st.Mode, err, group, want)
			}
		}
		c.deletePod(name, 0)
		c.eventually("the pod to be gone", c.gone(name))
	}
	c.expectClean()
	if c.hasEvent(volume.ReasonFailedMount, "") || c.hasEvent(volume.ReasonGroupRefused, "") {
		t.Errorf("events report a failure: %v", c.api.Objects("events"))
	}
}

// TestFSGroupFails: without a mount there is nothing to change, so the pod waits and has an event.
func TestFSGroupFails(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(false), claim(), withFSType(persistentVolume()))
	c.start()
	pod := withGroup(podWith("a", claimSource()))
	c.apply(pod)
	c.expectEventWith(volume.ReasonFailedMount, "no such file or directory")
	if c.running("a")() {
		t.Error("the pod runs although its volume does not have its group")
	}
	target := c.root.Target(pod.UID, "pv-1")
	if err := os.Mkdir(target, 0o750); err != nil {
		t.Fatal(err)
	}
	c.eventually("the pod to run once it works", c.running("a"))
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil || st.Mode != unix.S_IFDIR|0o2770 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

// TestDelegatedFSGroup: a driver with VOLUME_MOUNT_GROUP gets the group, and its files are left to it.
func TestDelegatedFSGroup(t *testing.T) {
	c := newCluster(t, csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	}})
	c.makesDirectories()
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(false), claim(), withFSType(persistentVolume()))
	c.start()
	pod := withGroup(podWith("a", claimSource()))
	c.apply(pod)
	c.eventually("the pod to run", c.running("a"))
	info, err := os.Stat(filepath.Join(c.root.Target(pod.UID, "pv-1"), "file"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the driver mounts with the group, but the agent has changed the file: %v, %v", info, err)
	}
}
