package agent

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
	"github.com/longshore-csi/longshore/nodeagent/internal/selfattach"
)

// attachmentsDir is the directory below the root for the records of attachments that the agent creates. A kubelet does not know it.
const attachmentsDir = ".csi-node-agent.attachments"

// handshake returns the two sides of the handshake with the attach/detach controller, or what takes its place.
func (a *Agent) handshake() (volume.InUse, volume.Attachments, error) {
	client := a.cfg.Client.VolumeAttachments()
	if a.cfg.SelfAttach == "" {
		return a.inUse, attachments{view: a.view, client: client, exhausted: a.exhausted}, nil
	}
	var err error
	a.self, err = selfattach.New(selfattach.Config{
		Client: client, Node: a.node(), Dir: filepath.Join(string(a.cfg.Root), attachmentsDir), Naming: a.cfg.SelfAttach, InUse: a.inUse,
		Managed: a.managed, Changed: func(names ...string) { a.plugin.Volumes().Attached(names...) },
		Seen: func(va *storagev1.VolumeAttachment) {
			if limitReached(va) {
				a.exhausted(va.Spec.Attacher)
			}
		},
	})
	return a.self, a.self, err
}

// managed reports whether the Node has the annotation by which the attach/detach controller attaches volumes, which an earlier agent or a kubelet has left.
func (a *Agent) managed() bool {
	n := a.view.Node()
	if n == nil {
		return false
	}
	_, ok := n.Annotations[nodeobj.ManagedAnnotation]
	return ok
}

// adoptAttached takes over the volumes that an earlier process has attached.
func (a *Agent) adoptAttached(ctx context.Context) {
	if a.self == nil {
		return
	}
	found, err := a.self.Open()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Attachments of an earlier run may be left")
	}
	a.plugin.Volumes().Adopt(found)
}

// resolve finds the volumes that a pod wants.
func (a *Agent) resolve(ctx context.Context, pod *corev1.Pod) ([]volume.Publication, []*resolve.Problem) {
	wanted, problems := a.plugin.Resolve(ctx, pod)
	if a.self != nil {
		a.self.Expect(wanted)
	}
	return wanted, problems
}

// cleanPod removes the directories of a pod without volumes.
func (a *Agent) cleanPod(pod types.UID) error {
	err := a.plugin.CleanPod(pod)
	if err == nil && a.self != nil {
		a.self.Release(pod)
	}
	return err
}

// attachmentName is the name of the attachment of a volume, by that which the attach/detach controller gives to it.
func (a *Agent) attachmentName(controllers string) string {
	if a.self == nil {
		return controllers
	}
	return a.self.Name(controllers)
}
