package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrOccupied says that something else is mounted at a target. That mount stays.
var ErrOccupied = errors.New("something else is mounted there")

// maxStacked is how many mounts on top of each other UnmountAll undoes.
const maxStacked = 64

// EnsureBind makes a bind mount unless target is one of source already, as a repeated call finds it, and makes the mount point where needed. The error
// wraps ErrOccupied where something else is mounted at target.
func EnsureBind(ctx context.Context, m Mounter, source, target string, o Options) error {
	bound, err := m.IsMountOf(ctx, source, target, o)
	if err != nil || bound {
		return err
	}
	mounted, err := m.Mounted(ctx, target)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("mount %s at %s: %w", source, target, ErrOccupied)
	}
	if err := MakePoint(source, target); err != nil {
		return err
	}
	return m.Bind(ctx, source, target, o)
}

// MakePoint makes target something that source can be mounted at: a directory, or a file where source is a device. One that exists stays as it is.
func MakePoint(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("inspect the source of the mount: %w", err)
	}
	if info.IsDir() {
		if err := os.MkdirAll(target, 0o750); err != nil {
			return fmt.Errorf("create directory to mount at: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return fmt.Errorf("create directory of the file to mount at: %w", err)
	}
	file, err := os.OpenFile(target, os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return fmt.Errorf("create file to mount at: %w", err)
	}
	return file.Close()
}

// UnmountAll undoes all mounts at a target, one on top of the other. No mount is no error.
func UnmountAll(ctx context.Context, m Mounter, target string) error {
	for range maxStacked {
		mounted, err := m.Mounted(ctx, target)
		if err != nil || !mounted {
			return err
		}
		if err := m.Unmount(ctx, target); err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: still mounted after %d times", target, maxStacked)
}
