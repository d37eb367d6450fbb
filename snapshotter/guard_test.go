package snapshotter

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// snapshotGuard is the connection of one life of the component. It allows CreateSnapshot for contents that cannot get lost, and
// DeleteSnapshot for contents that are to lose their snapshot.
type snapshotGuard struct {
	grpc.ClientConnInterface
	t       *testing.T
	cluster *kubetest.Cluster
	taken   *sync.Map // names of snapshots that the driver has taken
}

// Invoke implements grpc.ClientConnInterface.
func (g *snapshotGuard) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if ctx.Err() == nil {
		switch request := args.(type) {
		case *csi.CreateSnapshotRequest:
			g.checkCreate(request)
		case *csi.DeleteSnapshotRequest:
			g.checkDelete(request)
		}
	}
	err := g.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if named, ok := args.(interface{ GetName() string }); ok && err == nil {
		g.taken.Store(named.GetName(), true)
	}
	return err
}

// checkCreate wants a content that is protected, and says that its snapshot is being taken, or names it already.
func (g *snapshotGuard) checkCreate(request *csi.CreateSnapshotRequest) {
	content := contentOf(g.cluster, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return "snapshot-"+string(c.Spec.VolumeSnapshotRef.UID) == request.GetName()
	})
	switch {
	case content == nil:
		g.t.Errorf("CreateSnapshot of %q, which has no content", request.GetName())
	case !slices.Contains(content.Finalizers, snapshotapi.FinalizerContent):
		g.t.Errorf("CreateSnapshot of %q, whose content has no finalizer", request.GetName())
	case content.Labels[snapshotapi.LabelBeingCreated] == "" && (content.Status == nil || content.Status.SnapshotHandle == nil):
		g.t.Errorf("CreateSnapshot of %q, whose content does not say so", request.GetName())
	}
}

// checkDelete wants a content that is being deleted, with its snapshot.
func (g *snapshotGuard) checkDelete(request *csi.DeleteSnapshotRequest) {
	content := contentOf(g.cluster, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.SnapshotHandle != nil && *c.Status.SnapshotHandle == request.GetSnapshotId() ||
			c.Spec.Source.SnapshotHandle != nil && *c.Spec.Source.SnapshotHandle == request.GetSnapshotId()
	})
	switch {
	case content == nil: // it was deleted by a life that has ended
	case content.DeletionTimestamp == nil, content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete:
		g.t.Errorf("DeleteSnapshot of %q, whose content %+v is to keep it", request.GetSnapshotId(), content)
	case content.Annotations[snapshotapi.AnnBeingDeleted] == "" && content.Spec.VolumeSnapshotRef.UID != "":
		g.t.Errorf("DeleteSnapshot of %q, whose VolumeSnapshot is not deleted", request.GetSnapshotId())
	}
}
