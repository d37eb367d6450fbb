package kubeletplugintest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/kubeletplugin"
)

// attachments has the controller of the driver attach volumes.
type attachments struct {
	kubelet *Kubelet

	mu       sync.Mutex
	volumes  map[string]Volume // by handle
	attached map[string]bool
}

func (a *attachments) calls() *kubeletplugin.Attach {
	if a.kubelet.controller == nil {
		return nil
	}
	return &kubeletplugin.Attach{Publish: a.publish, Unpublish: a.unpublish}
}

// add makes a volume known.
func (a *attachments) add(v Volume) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.volumes[v.Handle] = v
}

func (a *attachments) publish(ctx context.Context, _, handle string) (map[string]string, error) {
	a.mu.Lock()
	v, k := a.volumes[handle], a.kubelet
	a.attached[handle] = true // or may be
	a.mu.Unlock()
	answer, err := k.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: handle, NodeId: k.nodeID, VolumeCapability: k.capability(), VolumeContext: v.context, Secrets: k.cfg.Secrets,
	})
	return answer.GetPublishContext(), err
}

func (a *attachments) unpublish(ctx context.Context, _, handle string) error {
	k := a.kubelet
	_, err := k.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: k.nodeID, Secrets: k.cfg.Secrets})
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.attached, handle)
	}
	return err
}

// leftovers are what is attached or in use.
func (a *attachments) leftovers() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := make([]string, 0, len(a.attached))
	for handle := range a.attached {
		left = append(left, fmt.Sprintf("left attached: volume %q", a.volumes[handle].Name))
	}
	for _, name := range a.kubelet.plugin.Volumes().InUse() {
		left = append(left, "left in volumesInUse: "+name)
	}
	slices.Sort(left)
	return left
}
