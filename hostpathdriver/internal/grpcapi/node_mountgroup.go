package grpcapi

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeMountGroup is the part that gives the files of a volume to a group: a CO
// that sees it leaves to the driver what it would do by itself. A real driver
// whose file system knows the option passes the group to mount(2); one that
// cannot do better than the CO leaves it out.
type nodeMountGroup struct {
	enabled bool
}

func (m nodeMountGroup) announceNode() []nodeRPC {
	if !m.enabled {
		return nil
	}
	return []nodeRPC{csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}
}

// readGroup reads the group of a request.
func (m nodeMountGroup) readGroup(text string) (string, error) {
	if !m.enabled {
		return "", noGroup(text)
	}
	group, err := volume.ParseGroup(text)
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "%s: %v", fieldMountGroup, err)
	}
	return group, nil
}
