//go:build !linux

package filesystem

import (
	"context"
	"errors"
	"fmt"
)

// errLinux is the error of everything that the kernel does: only nodes with Linux have volumes. The rest of a driver can be developed on other systems.
var errLinux = fmt.Errorf("file systems need Linux: %w", errors.ErrUnsupported)

// Kernel is the Filesystems of the machine.
type Kernel struct{}

var _ Filesystems = Kernel{}

// NewKernel returns a Kernel.
func NewKernel() Kernel { return Kernel{} }

// GrowsMounted reports whether this process may make ext3 and ext4 larger that are mounted.
func GrowsMounted() bool { return false }

// Types implements Filesystems.
func (Kernel) Types() []string { return nil }

// Mount implements Filesystems.
func (Kernel) Mount(context.Context, string, string, Options) error { return errLinux }

// Grow implements Filesystems.
func (Kernel) Grow(context.Context, string, string) error { return errLinux }

// IsMountOf implements Filesystems.
func (Kernel) IsMountOf(context.Context, string, string) (shown, readOnly bool, err error) {
	return false, false, errLinux
}

// DeviceAt implements Filesystems.
func (Kernel) DeviceAt(context.Context, string) (string, error) { return "", errLinux }

// Usage implements Filesystems.
func (Kernel) Usage(context.Context, string) (Usage, error) { return Usage{}, errLinux }
