package agent

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
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
