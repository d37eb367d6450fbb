// Package backend does the work: directories made and deleted, mounts, and
// the records of both. Volumes is the controller side, Node the node side.
//
// The types here assume what package idempotent provides: one call at a time
// per volume id and per volume name, and no repetition of what is done
// already. Do not call them without that decorator.
//
// Layout of the state directory, with its one writer each. Several controllers
// write one after the other, see package shared:
//
//	controller.lock                     controller
//	controller-queue.lock               controller
//	records/<id>.json                   controller   volume.Volume
//	volumes/<id>/                       controller   contents of a volume
//	volumes/<id>/disk                   controller   the same, of a disk: a device or an image
//	volumes/<id>/unformatted            controller   until a node has made the file system of an image
//	snapshot-records/<id>.json          controller   volume.Snapshot
//	snapshots/<id>/                     controller   contents of a snapshot, as those of a volume
//	group-records/<id>.json             controller   volume.Group
//	copies/<id>.lock                    controller   of who copies to a volume, a snapshot or those of a group
//	copies/<id>.progress                controller   how far that is; of a group, what its volumes looked like before
//	trash/<id>/                         controller   volume or snapshot being deleted
//	homes/<id>.json                     controller   home
//	nodes/<node>/node.lock              node
//	nodes/<node>/records/<id>.json      node         volume.NodeVolume
//	nodes/<node>/volumes/<id>/          node         contents of an inline volume
//	nodes/<node>/trash/<id>/            node         inline volume being deleted
//	nodes/<node>/homes/<id>.json        node         home
//
// The contents in pools with a directory are in there:
//
//	<pool>/<home>/volumes/<id>/
//	<pool>/<home>/snapshots/<id>/
//	<pool>/<home>/trash/<id>/
//
// A volume exists when its record exists. Its directory is made before and
// moved to the trash before the record goes, so that a crash leaves at most
// a volume that no workload has written to, or one in the trash; both are removed at
// start, unless something is mounted inside. What has contents and no record is never
// removed, only reported.
package backend

import (
	"path/filepath"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	volumeKind     = "volume"
	snapshotKind   = "snapshot"
	groupKind      = "group"
	nodeVolumeKind = "node-volume"
	homeKind       = "home"

	recordsDir = "records"
	volumesDir = "volumes"
	trashDir   = "trash"
	copiesDir  = "copies"
	homesDir   = "homes"

	snapshotRecordsDir = "snapshot-records"
	snapshotsDir       = "snapshots"
	groupRecordsDir    = "group-records"

	nodesDir = "nodes"
)

// Step is called before each change on disk with a name of the change. Tests
// use it to crash at every step. A nil Step does nothing.
type Step func(name string)

func (s Step) at(name string) {
	if s != nil {
		s(name)
	}
}

// ControllerLockPath is the lock file of the controller role.
func ControllerLockPath(stateDir string) string {
	return filepath.Join(stateDir, "controller.lock")
}

// NodeLockPath is the lock file of the node role.
func NodeLockPath(stateDir, node string) string {
	return filepath.Join(nodeDir(stateDir, node), "node.lock")
}

func nodeDir(stateDir, node string) string {
	return filepath.Join(stateDir, nodesDir, node)
}

// support is what directories, devices and images can serve.
func support() volume.Support {
	return volume.Support{
		Block:           true,
		FSTypes:         []string{"ext4", "ext3", "xfs"},
		LeastSize:       filesystem.MinSize,
		MountFlags:      mount.Flags(),
		CheckMountFlags: filesystem.CheckFlags,
	}
}
