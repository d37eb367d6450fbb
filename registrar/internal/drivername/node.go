package drivername

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// nodeAttempts is how often a driver that is not ready to answer NodeGetInfo
// is asked. It suffices for the start of a driver; a registration does not
// depend on the answer.
const nodeAttempts = 60

// askNode returns the driver's description of its node, or false if there is
// none: the driver has no node service, fails each time, or is lost. An answer over a later connection than the given one may be that of
// another driver, and does not count.
func (w *Watcher) askNode(ctx context.Context, connection int64) (string, bool) {
	var err error
	for range nodeAttempts {
		var info *csi.NodeGetInfoResponse
		if info, err = w.nodeInfo(ctx); w.connections.Load() != connection {
			return "", false
		}
		if err == nil {
			return describe(info), true
		}
		if !mayAnswerLater(err) || w.state(ctx) != connectivity.Ready || !w.pause(ctx) {
			break
		}
	}
	if ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("CSI driver has no NodeGetInfo; changes of node ID and topology go unnoticed",
			logging.KeyAddress, w.cfg.Address, logging.KeyReason, err.Error())
	}
	return "", false
}

func (w *Watcher) nodeInfo(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
	if w.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.cfg.Timeout)
		defer cancel()
	}
	return w.client.Node().NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
}

func mayAnswerLater(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return false
	default:
		return true
	}
}

// describe prints the node's ID and topology. The limit of volumes is left out:
// some drivers count it down with each volume that they see in use.
func describe(info *csi.NodeGetInfoResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q", info.GetNodeId())
	segments := info.GetAccessibleTopology().GetSegments()
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		fmt.Fprintf(&b, " %q=%q", key, segments[key])
	}
	return b.String()
}
