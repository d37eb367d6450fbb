package volume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
	"github.com/longshore-csi/longshore/csikit/redact"
)

// The keys with which a driver gets the pod (CSIDriver.spec.podInfoOnMount), and their names in
// seed 002.
const (
	KeyPodName        = "csi.storage.k8s.io/pod.name"
	KeyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	KeyPodUID         = "csi.storage.k8s.io/pod.uid"
	KeyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
	KeyEphemeral      = "csi.storage.k8s.io/ephemeral"

	LegacyKeyPodName        = "csi.kubernetes.io/pod.name"
	LegacyKeyPodNamespace   = "csi.kubernetes.io/pod.namespace"
	LegacyKeyPodUID         = "csi.kubernetes.io/pod.uid"
	LegacyKeyServiceAccount = "csi.kubernetes.io/serviceAccount.name"
)

// capabilities are those of a driver's node service.
type capabilities = map[csi.NodeServiceCapability_RPC_Type]bool

// call is what the requests for one volume have in common.
type call struct {
	caps       capabilities
	attachment *Attachment
	secrets    map[string]string
	// tokens are the service account tokens; empty for none.
	tokens  string
	staging string
	target  string
}

// publishContext is nil for a volume that was not attached.
func (c call) publishContext() map[string]string {
	if c.attachment == nil {
		return nil
	}
	return c.attachment.Metadata
}

func stageRequest(v *Volume, fsGroup *int64, c call) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId:          v.Handle,
		PublishContext:    c.publishContext(),
		StagingTargetPath: c.staging,
		VolumeCapability:  volumeCapability(v, fsGroup, c.caps),
		Secrets:           c.secrets,
		VolumeContext:     v.Attributes,
	}
}

func publishRequest(p *Publication, c call, legacyInfo bool) *csi.NodePublishVolumeRequest {
	r := &csi.NodePublishVolumeRequest{
		VolumeId:         p.Volume.Handle,
		PublishContext:   c.publishContext(),
		TargetPath:       c.target,
		VolumeCapability: volumeCapability(&p.Volume, p.FSGroup, c.caps),
		Readonly:         p.ReadOnly,
		Secrets:          c.secrets,
		VolumeContext:    volumeContext(p, legacyInfo),
	}
	if c.tokens != "" && p.TokensInSecrets {
		r.Secrets = with(r.Secrets, redact.TokensKey, c.tokens)
	} else if c.tokens != "" {
		r.VolumeContext = with(r.VolumeContext, redact.TokensKey, c.tokens)
	}
	if stages(&p.Volume, c.caps) {
		r.StagingTargetPath = c.staging
	}
	return r
}

// expandRequest asks for the expansion of the volume at the target path.
func expandRequest(v *Volume, bytes int64, c call) *csi.NodeExpandVolumeRequest {
	r := &csi.NodeExpandVolumeRequest{
		VolumeId:      v.Handle,
		VolumePath:    c.target,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		Secrets:       c.secrets,
	}
	withoutContext := *v // as a kubelet
	withoutContext.SELinuxContext = ""
	r.VolumeCapability = volumeCapability(&withoutContext, nil, c.caps)
	if stages(v, c.caps) {
		r.StagingTargetPath = c.staging
	}
	return r
}

// mountFlags are the mount options with the SELinux context, in quotes because there may be a comma in it.
func (v *Volume) mountFlags() []string {
	if v.SELinuxContext == "" {
		return v.MountOptions
	}
	return append(slices.Clone(v.MountOptions), fmt.Sprintf("context=%q", v.SELinuxContext))
}

// stages reports whether the volume is staged by the driver before it is published.
func stages(v *Volume, caps capabilities) bool {
	return !v.Ephemeral && caps[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
}

// mountsWithGroup reports whether the driver gives the files of a volume to a group itself.
func mountsWithGroup(caps capabilities) bool {
	return caps[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
}

func volumeCapability(v *Volume, fsGroup *int64, caps capabilities) *csi.VolumeCapability {
	use := capability.Use{AccessMode: accessMode(v.AccessMode), FSType: v.FSType, MountFlags: v.mountFlags()}
	if v.Device != "" {
		block := corev1.PersistentVolumeBlock
		use.VolumeMode = &block
	}
	if fsGroup != nil && mountsWithGroup(caps) {
		use.MountGroup = strconv.FormatInt(*fsGroup, 10)
	}
	return use.Capability(caps[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER])
}

// accessMode is the mode of a volume, or ReadWriteOnce where that is no mode that CSI knows: a volume that
// is there is mounted.
func accessMode(mode corev1.PersistentVolumeAccessMode) corev1.PersistentVolumeAccessMode {
	if capability.Mode(mode, false) == csi.VolumeCapability_AccessMode_UNKNOWN {
		return corev1.ReadWriteOnce
	}
	return mode
}

// with returns a copy of a map with one more value.
func with(m map[string]string, key, value string) map[string]string {
	all := make(map[string]string, len(m)+1)
	maps.Copy(all, m)
	all[key] = value
	return all
}

// volumeContext is a copy of the attributes; the keys about the pod replace equal ones.
func volumeContext(p *Publication, legacyInfo bool) map[string]string {
	ctx := maps.Clone(p.Volume.Attributes)
	if ctx == nil && (p.PodInfo || legacyInfo) {
		ctx = map[string]string{}
	}
	if p.PodInfo {
		ctx[KeyPodName] = p.Pod.Name
		ctx[KeyPodNamespace] = p.Pod.Namespace
		ctx[KeyPodUID] = string(p.Pod.UID)
		ctx[KeyServiceAccount] = p.Pod.ServiceAccount
		ctx[KeyEphemeral] = strconv.FormatBool(p.Volume.Ephemeral)
	}
	if legacyInfo {
		ctx[LegacyKeyPodName] = p.Pod.Name
		ctx[LegacyKeyPodNamespace] = p.Pod.Namespace
		ctx[LegacyKeyPodUID] = string(p.Pod.UID)
		ctx[LegacyKeyServiceAccount] = p.Pod.ServiceAccount
	}
	return ctx
}
