package agent

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/nodeinfo"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/nodeobj"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/tokens"
	"github.com/longshore-csi/longshore/kubeletplugin/stats"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// attachments reads the attach/detach controller's side of the handshake.
type attachments struct {
	view   *nodeobj.View
	client kube.VolumeAttachments
	// exhausted is called with the driver of an attachment that was refused because of the volume limit.
	exhausted func(driver string)
}

var _ volume.Attachments = attachments{}

// Attached implements volume.Attachments. The view has seen the answer to the write that put the
// volume into volumesInUse, and it never goes back.
func (a attachments) Attached(name string) bool { return a.view.Attached(name) }

// Attachment implements volume.Attachments.
func (a attachments) Attachment(ctx context.Context, name string) (*volume.Attachment, error) {
	va, err := a.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get volume attachment %q: %w", name, err)
	}
	if limitReached(va) {
		a.exhausted(va.Spec.Attacher)
	}
	if err := usable(va); err != nil {
		return nil, err
	}
	return &volume.Attachment{UID: va.UID, Metadata: va.Status.AttachmentMetadata}, nil
}

// usable returns an error if the volume is not attached, or about to be detached.
func usable(va *storagev1.VolumeAttachment) error {
	switch {
	case va.DeletionTimestamp != nil:
		return fmt.Errorf("volume attachment %q is being deleted", va.Name)
	case va.Status.Attached:
		return nil
	case va.Status.AttachError != nil:
		return fmt.Errorf("volume attachment %q is not attached: %s", va.Name, va.Status.AttachError.Message)
	default:
		return fmt.Errorf("volume attachment %q is not attached", va.Name)
	}
}

// secrets reads secrets as the node.
type secrets struct{ client kube.Client }

var _ volume.Secrets = secrets{}

// Secret implements volume.Secrets.
func (s secrets) Secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	data, err := kube.SecretData(ctx, s.client, ref)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w: %w", volume.ErrTransient, err)
	}
	return data, err
}

// podTokens gets tokens of the pods' service accounts as the node.
type podTokens struct{ cache *tokens.Cache }

var _ volume.Tokens = podTokens{}

// Encoded implements volume.Tokens.
func (t podTokens) Encoded(ctx context.Context, pod volume.Pod, requests []storagev1.TokenRequest) (string, error) {
	text, err := t.cache.Encoded(ctx, tokens.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ServiceAccount: pod.ServiceAccount}, requests)
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: %w", volume.ErrTransient, err)
	}
	return text, err
}

// Forget implements volume.Tokens.
func (t podTokens) Forget(pod types.UID) { t.cache.Forget(pod) }

// podEvents sends events on pods and their claims.
type podEvents struct{ recorder events.Recorder }

var (
	_ volume.Events = podEvents{}
	_ stats.Events  = podEvents{}
)

// Failed implements volume.Events.
func (e podEvents) Failed(pod volume.Pod, reason, message string) {
	if pod.Name == "" {
		return // found on disk; its name is no longer known
	}
	e.recorder.Warning(podObject(pod), reason, message)
}

// Mapped implements volume.Events.
func (e podEvents) Mapped(pod volume.Pod, message string) {
	e.recorder.Normal(podObject(pod), volume.ReasonMapped, message)
}

// Expansion implements volume.Events.
func (e podEvents) Expansion(pod volume.Pod, claim volume.Claim, reason, message string) {
	send := e.recorder.Warning
	if reason == volume.ReasonExpanded {
		send = e.recorder.Normal
	}
	send(podObject(pod), reason, message)
	send(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}}, reason, message)
}

// Condition implements stats.Events.
func (e podEvents) Condition(pod volume.Pod, reason, message string) {
	send := e.recorder.Warning
	if reason == stats.ReasonNormal {
		send = e.recorder.Normal
	}
	send(podObject(pod), reason, message)
}

func podObject(pod volume.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
}

// nodeInfo writes what drivers say about the node to CSINode and Node.
type nodeInfo struct{ writer *nodeinfo.Writer }

var _ kubeletplugin.NodeInfo = nodeInfo{}

// Install implements kubeletplugin.NodeInfo. If it fails, the entries of the driver are removed (seed 001, "NodeGetInfo").
func (n nodeInfo) Install(ctx context.Context, driver string, reply *csi.NodeGetInfoResponse) error {
	info, err := nodeinfo.FromNodeInfo(driver, reply)
	if err != nil {
		return err
	}
	return n.writer.Install(ctx, info)
}

// Update implements kubeletplugin.NodeInfo.
func (n nodeInfo) Update(ctx context.Context, driver string, reply *csi.NodeGetInfoResponse) error {
	info, err := nodeinfo.FromNodeInfo(driver, reply)
	if err != nil {
		return err
	}
	changed, err := n.writer.Update(ctx, info)
	if changed {
		klog.FromContext(ctx).Info("Volume limit of a CSI driver has changed", logging.KeyDriver, driver, "limit", info.MaxVolumes)
	}
	return err
}

// Uninstall implements kubeletplugin.NodeInfo.
func (n nodeInfo) Uninstall(ctx context.Context, driver string) error {
	return n.writer.Uninstall(ctx, driver)
}
