package volume

import (
	"cmp"
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// Volume is what is the same for all pods of the node that use a volume.
type Volume struct {
	// Name is the unique volume name (package layout).
	Name string
	// Driver is the name of the CSI driver.
	Driver string
	// Handle is the volume_id.
	Handle string
	// Ephemeral is true for an inline volume: it belongs to one pod and is only published.
	Ephemeral bool
	// Attachable is true if the attach/detach controller attaches the volume before it is used.
	Attachable bool
	// Device is the name of the PersistentVolume of a raw block volume, which is in its paths; empty for a volume with a file system.
	Device string
	// FSType is the file system to mount; the driver chooses if it is empty.
	FSType string
	// MountOptions are passed to the driver as mount_flags.
	MountOptions []string
	// SELinuxContext is the SELinux context with which the driver mounts the volume; empty if it mounts without.
	SELinuxContext string
	// AccessMode is the first access mode of the PersistentVolume, ReadWriteOnce for inline volumes.
	AccessMode corev1.PersistentVolumeAccessMode
	// Exclusive is true if ReadWriteOncePod is the only access mode.
	Exclusive bool
	// Attributes are passed to the driver as volume_context.
	Attributes map[string]string
	// StageSecret names the secret for NodeStageVolume; nil if there is none.
	StageSecret *corev1.SecretReference
}

// Pod names the pod for which a volume is published.
type Pod struct {
	// Namespace and Name are the pod's.
	Namespace, Name string
	// UID is the pod's.
	UID types.UID
	// ServiceAccount is the name of the pod's service account.
	ServiceAccount string
}

// Unsupported is a feature that a volume asks for and does not get.
type Unsupported struct {
	// Feature is its name.
	Feature string
	// Reason is the event reason.
	Reason string
	// Message says what is asked for and what happens instead.
	Message string
	// Refused is true if the pod waits; otherwise it runs without the feature.
	Refused bool
}

// Publication asks for a volume to be published for a pod.
type Publication struct {
	// Volume is the volume.
	Volume Volume
	// Pod is the pod.
	Pod Pod
	// SpecName is the name of the PersistentVolume, or of the pod volume if it is inline.
	SpecName string
	// PodVolumes are the names of the pod's volumes that are this one.
	PodVolumes []string
	// Unsupported is what the volume asks for although this agent does not do it.
	Unsupported []Unsupported
	// ReadOnly is the readonly field of NodePublishVolume.
	ReadOnly bool
	// PodInfo adds the csi.storage.k8s.io keys about the pod to the volume_context.
	PodInfo bool
	// PublishSecret names the secret for NodePublishVolume; nil if there is none.
	PublishSecret *corev1.SecretReference
	// Tokens are the service account tokens that the driver gets.
	Tokens []storagev1.TokenRequest
	// TokensInSecrets has the driver get the tokens in the secrets, and not in the volume_context.
	TokensInSecrets bool
	// Republish repeats NodePublishVolume from time to time while the volume is published.
	Republish bool
	// Running is true if containers of the pod may be running already.
	Running bool
	// FSGroup is passed to drivers that can mount with a group; nil if the pod has none.
	FSGroup *int64
	// ChangeGroup gives the files to FSGroup if the driver cannot mount with a group, unless the volume is read-only.
	ChangeGroup bool
	// OnRootMismatch does so only if the root directory of the volume has another group or lacks permissions.
	OnRootMismatch bool
	// Claim is the claim of a persistent volume.
	Claim Claim
	// Capacity is that of the PersistentVolume when the pod was resolved, in bytes.
	Capacity int64
}

// Claim names a claim; it is empty for inline volumes.
type Claim struct {
	// Namespace and Name are the claim's.
	Namespace, Name string
	// UID is the claim's.
	UID types.UID
}

// Key identifies this use of the volume.
func (p *Publication) Key() Key {
	return Key{Pod: p.Pod.UID, SpecName: p.SpecName, Block: p.Volume.Device != ""}
}

// Key identifies one use of a volume: a target path.
type Key struct {
	// Pod is the UID of the pod.
	Pod types.UID
	// SpecName is the name of the PersistentVolume, or of the pod volume if it is inline.
	SpecName string
	// Block is true for a raw block volume.
	Block bool
}

func (k Key) compare(o Key) int {
	if c := cmp.Or(strings.Compare(string(k.Pod), string(o.Pod)), strings.Compare(k.SpecName, o.SpecName)); c != 0 || k.Block == o.Block {
		return c
	}
	if o.Block {
		return -1
	}
	return 1
}

// Attachment is the part of a VolumeAttachment that matters for an attached volume.
type Attachment struct {
	// UID changes when the volume is detached and attached again.
	UID types.UID
	// Metadata is the publish_context.
	Metadata map[string]string
}

// Recovered is a volume found on disk.
type Recovered struct {
	// Volume has at least Name, Driver, Handle, Ephemeral, Attachable, Device and SELinuxContext.
	Volume Volume
	// Staged is true if there is a staging record.
	Staged bool
	// StagedFor is the UID of the attachment for which it was staged; empty if the record does not have it.
	StagedFor types.UID
	// Targets are the pods' uses for which there is a record.
	Targets []Key
	// Pinned is true if the staged volume is, or may be, also mounted where no record explains it. It is then
	// neither unstaged nor released until Unpin.
	Pinned bool
	// Rebooted says that the machine has started again since: nothing has the volume open.
	Rebooted bool
}

// Orphan reports whether the volume is staged without a known target.
func (r *Recovered) Orphan() bool { return r.Staged && len(r.Targets) == 0 }

// Driver is a CSI driver of this node.
type Driver interface {
	// Node returns the node service.
	Node() csi.NodeClient
	// NodeCapabilities returns the capabilities of the node service.
	NodeCapabilities(ctx context.Context) (map[csi.NodeServiceCapability_RPC_Type]bool, error)
	// RequiresPublishPod reports whether the driver's registrar asked for pod information (seed
	// 002, "requires-publish-pod"), which has its own keys.
	RequiresPublishPod() bool
}

// Drivers finds the drivers of this node.
type Drivers interface {
	// Driver returns the driver of a name; it is an error if it is not registered now.
	Driver(name string) (Driver, error)
	// Last returns the driver of a name even if it is not registered any more, to take down what
	// it has set up; it is an error if it never was registered.
	Last(name string) (Driver, error)
}

// InUse keeps volumesInUse, this node's side of the handshake with the attach/detach controller.
type InUse interface {
	// Raise returns when the API server has confirmed that the volume is in volumesInUse.
	Raise(ctx context.Context, name string) error
	// Drop removes the volume from volumesInUse; it does not wait for the write.
	Drop(name string)
}

// Attachments looks at the other side of the handshake.
type Attachments interface {
	// Attached reports whether the volume is in volumesAttached of a Node not older than the last
	// confirmed Raise.
	Attached(name string) bool
	// Attachment reads a VolumeAttachment that must be attached and not be going away.
	Attachment(ctx context.Context, name string) (*Attachment, error)
}

// Secrets reads secrets for CSI calls.
type Secrets interface {
	// Secret returns the data of a secret, nothing for a nil reference.
	Secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error)
}

// Tokens gets service account tokens for pods.
type Tokens interface {
	// Encoded returns tokens of the pod as JSON, nothing if none are requested. No error contains a token.
	Encoded(ctx context.Context, pod Pod, requests []storagev1.TokenRequest) (string, error)
	// Forget drops the tokens of a pod without volumes; it does not block.
	Forget(pod types.UID)
}

// Claims reads claims and PersistentVolumes and writes the status of claims; kubeapi.Claims is one.
type Claims interface {
	// Claim returns a claim, nil if there is none with that UID; with cached it may be out of date.
	Claim(ctx context.Context, namespace, name string, uid types.UID, cached bool) (*corev1.PersistentVolumeClaim, error)
	// Volume returns the PersistentVolume of a claim, nil if it has none.
	Volume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error)
	// Write applies a patch, nil for none, to the status of this version of a claim.
	Write(ctx context.Context, claim *corev1.PersistentVolumeClaim, patch []byte) (*corev1.PersistentVolumeClaim, error)
}

// Events sends events on pods and claims.
type Events interface {
	// Failed sends a warning on a pod, with an event reason.
	Failed(pod Pod, reason, message string)
	// Mapped sends the event ReasonMapped on a pod that has got a raw block volume.
	Mapped(pod Pod, message string)
	// Expansion sends an event about an expansion on a pod and on its claim: a warning unless the reason is
	// ReasonExpanded.
	Expansion(pod Pod, claim Claim, reason, message string)
	// Condition sends an event on a pod about the condition of one of its volumes: a warning unless the reason is ReasonNormal.
	Condition(pod Pod, reason, message string)
}

// stagingRecord returns the record of the volume staged for an attachment, nil if it needs none.
func (v *Volume) stagingRecord(a *Attachment) records.Staging {
	rec := records.Staging{Handle: v.Handle, Driver: v.Driver, SELinuxContext: v.SELinuxContext}
	if a != nil {
		rec.AttachmentUID = a.UID
	}
	return rec
}

// targetRecord returns the record of a volume published on a node.
func (p *Publication) targetRecord(node string) records.Target {
	lifecycle := records.Persistent
	if p.Volume.Ephemeral {
		lifecycle = records.Ephemeral
	}
	return records.Target{
		SpecVolID:  p.SpecName,
		Handle:     p.Volume.Handle,
		Driver:     p.Volume.Driver,
		Node:       node,
		Lifecycle:  lifecycle,
		Attachment: layout.Attachment(p.Volume.Handle, p.Volume.Driver, node),

		SELinuxContext: p.Volume.SELinuxContext,
	}
}
