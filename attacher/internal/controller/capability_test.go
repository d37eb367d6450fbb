package controller

import (
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

func TestAccessMode(t *testing.T) {
	const (
		rwo  = corev1.ReadWriteOnce
		rox  = corev1.ReadOnlyMany
		rwx  = corev1.ReadWriteMany
		rwop = corev1.ReadWriteOncePod
	)
	type modes = []corev1.PersistentVolumeAccessMode
	tests := map[string]struct {
		reason   string
		modes    modes
		old, new csi.VolumeCapability_AccessMode_Mode // without and with SINGLE_NODE_MULTI_WRITER
		err      error
	}{
		"RWO": {
			reason: "one node, many pods", modes: modes{rwo},
			old: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, new: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		},
		"RWOP": {
			reason: "one node, one pod", modes: modes{rwop},
			old: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, new: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		},
		"ROX": {
			reason: "many readers", modes: modes{rox},
			old: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, new: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		},
		"RWX": {
			reason: "everything", modes: modes{rwo, rox, rwx},
			old: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, new: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		},
		"RWXAndRWO": {
			reason: "the order does not matter", modes: modes{rwx, rwo},
			old: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, new: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		},
		"ROXAndRWX": {
			reason: "writers on all nodes include readers", modes: modes{rox, rwx},
			old: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, new: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		},
		"RWOTwice": {
			reason: "a mode that is named twice is one mode", modes: modes{rwo, rwo},
			old: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, new: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		},
		"RWOPTwice": {
			reason: "also where it must stand alone", modes: modes{rwop, rwop},
			old: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, new: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		},
		"UnknownAndRWO": {
			reason: "what is known of a list counts", modes: modes{"ReadWriteSometimes", rwo},
			old: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, new: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		},
		"ROXAndRWO":   {reason: "no single mode allows both", modes: modes{rox, rwo}, err: capability.ErrAccessModes},
		"RWOPAndRWX":  {reason: "however much the others allow", modes: modes{rwx, rwop}, err: capability.ErrAccessModes},
		"RWOPAndMore": {reason: "one pod and more contradict each other", modes: modes{rwop, rwo}, err: capability.ErrAccessModes},
		"None":        {reason: "a volume must have a mode", err: capability.ErrAccessModes},
		"Unknown":     {reason: "a mode of the future", modes: modes{"ReadWriteSometimes"}, err: capability.ErrAccessModes},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for multiWriter, want := range map[bool]csi.VolumeCapability_AccessMode_Mode{false: tt.old, true: tt.new} {
				spec := newPV().Spec
				spec.AccessModes = tt.modes
				got, err := volumeCapability(&spec, Features{Publish: true, SingleNodeMultiWriter: multiWriter}, "")
				if got.GetAccessMode().GetMode() != want || !errors.Is(err, tt.err) {
					t.Errorf("%s: modes %v, driver tells writers apart: %t: got %v, %v, want %v, %v", tt.reason, tt.modes, multiWriter, got, err, want, tt.err)
				}
			}
		})
	}
}

func TestVolumeCapability(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	mode := &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	tests := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeSpec)
		want   *csi.VolumeCapability
	}{
		"Mount": {
			reason: "file system and mount options come from the volume",
			change: func(s *corev1.PersistentVolumeSpec) { s.MountOptions = []string{"noatime"} },
			want: &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Mount{
				Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}},
			}},
		},
		"DefaultFSType": {
			reason: "a volume that names no file system gets the default",
			change: func(s *corev1.PersistentVolumeSpec) { s.CSI.FSType = "" },
			want: &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Mount{
				Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"},
			}},
		},
		"Block": {
			reason: "a block volume has no file system",
			change: func(s *corev1.PersistentVolumeSpec) { s.VolumeMode = &block },
			want:   &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := newPV().Spec
			tt.change(&spec)
			got, err := volumeCapability(&spec, Features{Publish: true}, "xfs")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}
