package kubeletplugintest

import (
	"context"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// attacher stands in for the attach/detach controller and the attacher. It outlives kubelets.
type attacher struct {
	kubelet *Kubelet

	mu     sync.Mutex
	serial int
	inUse  map[string]bool
	// attached are volumes, by their handle.
	attached map[string]*attachment
}

type attachment struct {
	volume.Attachment

	volume Volume
}

var (
	_ volume.InUse       = (*attacher)(nil)
	_ volume.Attachments = (*attacher)(nil)
)

// attaches reports whether volumes of the driver are attached.
func (a *attacher) attaches() bool {
	required := a.kubelet.objects.Driver(a.kubelet.driver).Spec.AttachRequired
	return a.kubelet.controller != nil && (required == nil || *required)
}

// attach attaches the persistent volumes of a pod.
func (a *attacher) attach(volumes []Volume) {
	k := a.kubelet
	k.t.Helper()
	for _, v := range volumes {
		if v.Inline || !a.attaches() || a.known(v.Handle) != nil {
			continue
		}
		ctx, cancel := k.deadline()
		answer, err := k.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: v.Handle, NodeId: k.nodeID, VolumeCapability: k.capability(), VolumeContext: v.context, Secrets: k.cfg.Secrets,
		})
		cancel()
		if err != nil {
			k.t.Fatalf("attach volume %q: %v", v.Name, err)
		}
		a.mu.Lock()
		a.serial++
		a.attached[v.Handle] = &attachment{volume: v, Attachment: volume.Attachment{
			UID: types.UID(fmt.Sprintf("attachment-%d", a.serial)), Metadata: answer.GetPublishContext(),
		}}
		a.mu.Unlock()
		k.plugin.Volumes().Attached(layout.Unique(k.driver, v.Handle))
	}
}

// detach detaches what is not used, and reports whether nothing has to be waited for.
func (a *attacher) detach(ctx context.Context, used map[string]bool) bool {
	k := a.kubelet
	k.t.Helper()
	done := true
	for _, at := range a.all() {
		v := at.volume
		if used[v.Handle] {
			continue
		}
		if a.isInUse(layout.Unique(k.driver, v.Handle)) {
			done = false
			continue
		}
		_, err := k.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.Handle, NodeId: k.nodeID, Secrets: k.cfg.Secrets})
		if err != nil {
			k.t.Fatalf("detach volume %q: %v", v.Name, err)
		}
		a.mu.Lock()
		delete(a.attached, v.Handle)
		a.mu.Unlock()
	}
	return done
}

func (a *attacher) all() []*attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*attachment, 0, len(a.attached))
	for _, at := range a.attached {
		all = append(all, at)
	}
	return all
}

func (a *attacher) known(handle string) *attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attached[handle]
}

func (a *attacher) isInUse(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse[name]
}

// seed is what a kubelet that starts may have in use.
func (a *attacher) seed(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.inUse)
	for _, name := range names {
		a.inUse[name] = true
	}
}

// Raise implements volume.InUse.
func (a *attacher) Raise(_ context.Context, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inUse[name] = true
	return nil
}

// Drop implements volume.InUse.
func (a *attacher) Drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.inUse, name)
}

// Attached implements volume.Attachments.
func (a *attacher) Attached(name string) bool {
	_, handle, err := layout.SplitUnique(name)
	return err == nil && a.known(handle) != nil
}

// Attachment implements volume.Attachments.
func (a *attacher) Attachment(_ context.Context, name string) (*volume.Attachment, error) {
	for _, at := range a.all() {
		if layout.Attachment(at.volume.Handle, a.kubelet.driver, nodeName) == name {
			return &at.Attachment, nil
		}
	}
	return nil, fmt.Errorf("volume attachment %q does not exist", name)
}

// leftovers are what is attached or in use.
func (a *attacher) leftovers() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := make([]string, 0, len(a.attached)+len(a.inUse))
	for _, at := range a.attached {
		left = append(left, fmt.Sprintf("left attached: volume %q", at.volume.Name))
	}
	for name := range a.inUse {
		left = append(left, "left in volumesInUse: "+name)
	}
	return left
}
