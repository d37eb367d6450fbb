// Command minimal is a whole CSI driver: each volume is a tmpfs, a file system in the memory of its node. It is the smallest driver that driverkit
// allows, to read and to copy. Volumes survive restarts of the driver, not of the machine.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
)

func main() {
	os.Exit(driverkit.Main("minimal", newOptions, run))
}

const (
	driverName = "minimal.example.com"
	// nodeKey is the topology key that ties a volume to the node whose memory it is in.
	nodeKey = "topology.minimal.example.com/node"
)

// options are those of the kit, and the driver's own.
type options struct {
	driverkit.Options

	root string
}

func newOptions() options {
	o := options{Options: driverkit.NewOptions(driverName)}
	o.TopologyKeys = []string{nodeKey}
	return o
}

// AddFlags adds the driver's own flag to those of the kit.
func (o *options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.StringVar(&o.root, "root", o.root, "`directory` below which the file systems are mounted; default: volumes in --statedir")
}

func run(ctx context.Context, o options) error {
	o.Topology = driverkit.Segments{nodeKey: o.NodeID}
	m := &memory{root: cmp.Or(o.root, filepath.Join(o.StateDir, "volumes")), node: o.Topology}
	if err := os.MkdirAll(m.root, 0o700); err != nil {
		return err
	}
	return driverkit.Serve(ctx, o.Options, driverkit.Driver{Provisioner: m, Stager: m})
}

const (
	smallest = 1 << 20
	largest  = 1 << 30
	pageSize = 4096
)

// memory is the storage system: a volume is a tmpfs, mounted at a directory below root that has the volume's id as its name.
type memory struct {
	root string
	node driverkit.Segments
}

// Create implements driverkit.Provisioner. The id follows from the name, so that the same name leads to the same volume.
func (m *memory) Create(_ context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	for name := range req.Parameters {
		return nil, fmt.Errorf("parameter %q: the driver has no parameters: %w", name, driverkit.ErrInvalid)
	}
	id := driverkit.IDFromName(req.Name)
	if found, err := m.find(id); !errors.Is(err, driverkit.ErrNotFound) {
		return found, err
	}
	size, err := req.Size.Choose(smallest, pageSize, largest)
	if err != nil {
		return nil, err
	}
	if _, err := req.Topology.Choose([]driverkit.Segments{m.node}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.path(id), 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(driverName, m.path(id), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0777", size)); err != nil {
		return nil, fmt.Errorf("mount a tmpfs: %w", err)
	}
	return m.find(id)
}

// Delete implements driverkit.Provisioner.
func (m *memory) Delete(_ context.Context, req *driverkit.DeleteRequest) error {
	if _, err := m.find(req.ID); errors.Is(err, driverkit.ErrNotFound) {
		return ignoreNotExist(os.Remove(m.path(req.ID))) // A deletion or creation that was interrupted leaves the empty directory.
	}
	if err := unix.Unmount(m.path(req.ID), unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount volume %q: %w: %w", req.ID, err, driverkit.ErrInUse)
	}
	return os.Remove(m.path(req.ID))
}

// Get implements driverkit.Provisioner.
func (m *memory) Get(_ context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	return m.find(req.ID)
}

// Stage implements driverkit.Stager.
func (m *memory) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	if _, err := m.find(req.ID); err != nil {
		return nil, err
	}
	return &driverkit.Staged{Directory: m.path(req.ID)}, nil
}

// Unstage implements driverkit.Stager. The volume stays mounted below root, with its files, until it is deleted.
func (m *memory) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// path is where a volume is mounted.
func (m *memory) path(id string) string { return filepath.Join(m.root, driverkit.FileName(id)) }

// find returns a volume, whose size is that of its tmpfs.
func (m *memory) find(id string) (*driverkit.Volume, error) {
	var own, parent unix.Stat_t
	if unix.Lstat(m.path(id), &own) != nil || unix.Lstat(m.root, &parent) != nil || own.Dev == parent.Dev {
		return nil, driverkit.NotFound("volume", id)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(m.path(id), &fs); err != nil {
		return nil, fmt.Errorf("measure volume %q: %w", id, err)
	}
	return &driverkit.Volume{ID: id, Size: int64(fs.Blocks) * fs.Bsize, Topology: []driverkit.Segments{m.node}}, nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
