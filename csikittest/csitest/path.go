package csitest

import (
	"errors"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// makeTarget creates the target path, whose parent the caller has created: a
// directory for a mount, a file for a block device. CSI spec v1.13,
// "NodePublishVolume", target_path.
func (b *backend) makeTarget(path string, c *csi.VolumeCapability) error {
	if !b.o.TargetPaths {
		return nil
	}
	create := makeDir
	if c.GetBlock() != nil {
		create = makeFile
	}
	if err := create(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return status.Errorf(codes.Internal, "make the target path: %v", err)
	}
	return nil
}

func makeDir(path string) error { return os.Mkdir(path, 0o750) }

func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// removeTarget removes the target path, if it exists.
func (b *backend) removeTarget(path string) error {
	if !b.o.TargetPaths {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.Internal, "remove the target path: %v", err)
	}
	return nil
}
