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

// TestAccessMode has the modes of a volume whose driver tells one writer on a node from many, and of one whose driver does not.
func TestAccessMode(t *testing.T) {
	spec := newPV().Spec
	for multiWriter, want := range map[bool]csi.VolumeCapability_AccessMode_Mode{
		false: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	} {
		got, err := volumeCapability(&spec, Features{Publish: true, SingleNodeMultiWriter: multiWriter}, "")
		if got.GetAccessMode().GetMode() != want || err != nil {
			t.Errorf("driver tells writers apart: %t: got %v, %v, want %v", multiWriter, got, err, want)
		}
	}
	spec.AccessModes = nil
	if got, err := volumeCapability(&spec, Features{Publish: true}, ""); !errors.Is(err, capability.ErrAccessModes) {
		t.Errorf("a volume must have a mode, got %v, %v", got, err)
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
