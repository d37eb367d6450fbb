package capability_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

func TestMode(t *testing.T) {
	const (
		unknown = csi.VolumeCapability_AccessMode_UNKNOWN
		writer  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		single  = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		multi   = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		readers = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)
	cases := map[string]struct {
		reason        string
		mode          corev1.PersistentVolumeAccessMode
		without, with csi.VolumeCapability_AccessMode_Mode // SINGLE_NODE_MULTI_WRITER
	}{
		"RWO":     {reason: "many writers on one node", mode: corev1.ReadWriteOnce, without: writer, with: multi},
		"RWOP":    {reason: "one writer on one node", mode: corev1.ReadWriteOncePod, without: writer, with: single},
		"ROX":     {reason: "readers always had a mode of their own", mode: corev1.ReadOnlyMany, without: readers, with: readers},
		"RWX":     {reason: "writers on all nodes", mode: corev1.ReadWriteMany, without: writers, with: writers},
		"None":    {reason: "nothing was asked for", without: unknown, with: unknown},
		"Unknown": {reason: "a mode of the future is not guessed", mode: "ReadWriteSometimes", without: unknown, with: unknown},
		"Case":    {reason: "names are exact", mode: "readwriteonce", without: unknown, with: unknown},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for singleNodeModes, want := range map[bool]csi.VolumeCapability_AccessMode_Mode{false: tc.without, true: tc.with} {
				if got := capability.Mode(tc.mode, singleNodeModes); got != want {
					t.Errorf("%s: Mode(%q, %t) = %v, want %v", tc.reason, tc.mode, singleNodeModes, got, want)
				}
			}
		})
	}
}

func TestCapability(t *testing.T) {
	block, filesystem, future := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeMode("Object")
	device := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	mounted := func(m *csi.VolumeCapability_MountVolume) *csi.VolumeCapability {
		return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: m}}
	}
	cases := map[string]struct {
		reason string
		use    capability.Use
		want   *csi.VolumeCapability
	}{
		"Plain": {reason: "a mount is the default, and a driver may choose the file system", want: mounted(&csi.VolumeCapability_MountVolume{})},
		"Mount": {
			reason: "type and options of the file system are passed on",
			use:    capability.Use{VolumeMode: &filesystem, FSType: "xfs", MountFlags: []string{"noatime", "ro"}, MountGroup: "2000"},
			want:   mounted(&csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime", "ro"}, VolumeMountGroup: "2000"}),
		},
		"Block": {reason: "a device", use: capability.Use{VolumeMode: &block}, want: device},
		"BlockWithFSType": {
			reason: "a device has no file system, whatever the volume says",
			use:    capability.Use{VolumeMode: &block, FSType: "ext4", MountFlags: []string{"noatime"}, MountGroup: "1"}, want: device,
		},
		"Future": {reason: "what is no device is mounted", use: capability.Use{VolumeMode: &future}, want: mounted(&csi.VolumeCapability_MountVolume{})},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, singleNodeModes := range []bool{false, true} {
				tc.use.AccessMode = corev1.ReadWriteOncePod
				tc.want.AccessMode = &csi.VolumeCapability_AccessMode{Mode: capability.Mode(corev1.ReadWriteOncePod, singleNodeModes)}
				got := tc.use.Capability(singleNodeModes)
				if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
					t.Errorf("%s: Capability(%t) (-want +got):\n%s", tc.reason, singleNodeModes, diff)
				}
			}
		})
	}
}

// Objects from a cache are shared: a message must not lead back to them.
func TestCapabilitySharesNothing(t *testing.T) {
	flags := []string{"noatime"}
	got := capability.Use{AccessMode: corev1.ReadWriteOnce, MountFlags: flags}.Capability(false)
	got.GetMount().MountFlags[0] = "changed"
	if flags[0] != "noatime" {
		t.Errorf("the flags of the volume are %q after the message was changed", flags)
	}
}
