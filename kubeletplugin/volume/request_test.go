package volume

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
)

func publication() *Publication {
	return &Publication{
		Volume: Volume{
			Name: "n", Driver: "d", Handle: "vol-1", FSType: "ext4", MountOptions: []string{"noatime"},
			AccessMode: corev1.ReadWriteOnce, Attributes: map[string]string{"color": "blue", KeyPodName: "forged"},
		},
		Pod:      Pod{Namespace: "ns", Name: "pod", UID: "uid", ServiceAccount: "sa"},
		SpecName: "pv", ReadOnly: true,
	}
}

// TestVolumeContext is test item T2: exactly these keys, for persistent and inline volumes.
func TestVolumeContext(t *testing.T) {
	info := map[string]string{
		"color":                                  "blue",
		"csi.storage.k8s.io/pod.name":            "pod",
		"csi.storage.k8s.io/pod.namespace":       "ns",
		"csi.storage.k8s.io/pod.uid":             "uid",
		"csi.storage.k8s.io/serviceAccount.name": "sa",
		"csi.storage.k8s.io/ephemeral":           "false",
	}
	inline := map[string]string{}
	for k, v := range info {
		inline[k] = v
	}
	inline["csi.storage.k8s.io/ephemeral"] = "true"
	cases := map[string]struct {
		reason                  string
		podInfo, legacy, inline bool
		want                    map[string]string
	}{
		"Persistent": {reason: "keys of the pod replace forged ones", podInfo: true, want: info},
		"Inline":     {reason: "ephemeral is true", podInfo: true, inline: true, want: inline},
		"Off":        {reason: "only the attributes", want: map[string]string{"color": "blue", KeyPodName: "forged"}},
		"Legacy": {reason: "seed 002's names, asked for by the registrar", legacy: true, want: map[string]string{
			"color": "blue", KeyPodName: "forged",
			"csi.kubernetes.io/pod.name": "pod", "csi.kubernetes.io/pod.namespace": "ns",
			"csi.kubernetes.io/pod.uid": "uid", "csi.kubernetes.io/serviceAccount.name": "sa",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := publication()
			p.PodInfo, p.Volume.Ephemeral = tc.podInfo, tc.inline
			if diff := cmp.Diff(tc.want, volumeContext(p, tc.legacy)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if p.Volume.Attributes[KeyPodName] != "forged" {
				t.Error("the volume's own attributes were changed")
			}
		})
	}
	p := publication()
	p.Volume.Attributes = map[string]string{LegacyKeyPodName: "forged"}
	if got := volumeContext(p, true)[LegacyKeyPodName]; got != "pod" {
		t.Errorf("a forged key of seed 002 is %q, want it to be replaced", got)
	}
	p.Volume.Attributes = nil
	if got := volumeContext(p, false); got != nil {
		t.Errorf("no attributes and no pod information: got %v, want nothing", got)
	}
}

func TestAccessMode(t *testing.T) {
	cases := map[string]struct {
		reason      string
		mode        corev1.PersistentVolumeAccessMode
		multiWriter bool
		want        csi.VolumeCapability_AccessMode_Mode
	}{
		"RWO":         {reason: "old drivers", mode: corev1.ReadWriteOnce, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"RWOP":        {reason: "old drivers", mode: corev1.ReadWriteOncePod, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"ROX":         {reason: "the same for all", mode: corev1.ReadOnlyMany, want: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		"RWX":         {reason: "the same for all", mode: corev1.ReadWriteMany, multiWriter: true, want: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		"RWOMulti":    {reason: "drivers that know the difference", mode: corev1.ReadWriteOnce, multiWriter: true, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		"RWOPMulti":   {reason: "drivers that know the difference", mode: corev1.ReadWriteOncePod, multiWriter: true, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		"Unspecified": {reason: "counts as ReadWriteOnce", want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"NoneMulti":   {reason: "also for drivers that know the difference", multiWriter: true, want: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		"Unknown":     {reason: "a mode of the future counts as ReadWriteOnce", mode: "ReadWriteSometimes", want: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			caps := capabilities{csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: tc.multiWriter}
			if got := volumeCapability(&Volume{AccessMode: tc.mode}, nil, caps).GetAccessMode().GetMode(); got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	group := int64(2000)
	p := publication()
	p.FSGroup = &group
	c := call{
		caps: capabilities{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true,
			csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:   true,
		},
		attachment: &Attachment{Metadata: map[string]string{"lun": "7"}},
		secrets:    map[string]string{"key": "secret"},
		staging:    "/staging", target: "/target",
	}
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			FsType: "ext4", MountFlags: []string{"noatime"}, VolumeMountGroup: "2000",
		}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	stage := &csi.NodeStageVolumeRequest{
		VolumeId: "vol-1", PublishContext: map[string]string{"lun": "7"}, StagingTargetPath: "/staging",
		VolumeCapability: capability, Secrets: c.secrets, VolumeContext: p.Volume.Attributes,
	}
	if diff := cmp.Diff(stage, stageRequest(&p.Volume, p.FSGroup, c), protocmp.Transform()); diff != "" {
		t.Errorf("pod information is never sent to NodeStageVolume (-want +got):\n%s", diff)
	}
	publish := &csi.NodePublishVolumeRequest{
		VolumeId: "vol-1", PublishContext: map[string]string{"lun": "7"}, StagingTargetPath: "/staging", TargetPath: "/target",
		VolumeCapability: capability, Readonly: true, Secrets: c.secrets, VolumeContext: p.Volume.Attributes,
	}
	if diff := cmp.Diff(publish, publishRequest(p, c, false), protocmp.Transform()); diff != "" {
		t.Errorf("publish request (-want +got):\n%s", diff)
	}
	p.Volume.SELinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
	capability.GetMount().MountFlags = []string{"noatime", `context="system_u:object_r:container_file_t:s0:c1,c2"`}
	for what, got := range map[string]*csi.VolumeCapability{"stage": stageRequest(&p.Volume, p.FSGroup, c).GetVolumeCapability(), "publish": publishRequest(p, c, false).GetVolumeCapability()} {
		if diff := cmp.Diff(capability, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s request with an SELinux context (-want +got):\n%s", what, diff)
		}
	}
	if flags := expandRequest(&p.Volume, 1, c).GetVolumeCapability().GetMount().GetMountFlags(); len(flags) != 1 {
		t.Errorf("expand request has the mount flags %q, want those without the context, as of a kubelet", flags)
	}
	c.caps, c.attachment = nil, nil
	got := publishRequest(p, c, false)
	if got.GetStagingTargetPath() != "" || got.GetPublishContext() != nil || got.GetVolumeCapability().GetMount().GetVolumeMountGroup() != "" {
		t.Errorf("a driver without capabilities got %v, want neither staging path nor group", got)
	}
}
