//go:build !linux

package mount

import (
	"context"
	"errors"
	"fmt"
)

// errLinux is the error of everything that the kernel does: only nodes with Linux have volumes. The rest of a driver can be developed on other systems.
var errLinux = fmt.Errorf("mounts need Linux: %w", errors.ErrUnsupported)

const noFollow = 0

// Kernel is the Mounter of the machine.
type Kernel struct{}

var _ Mounter = Kernel{}

// Bind implements Mounter.
func (Kernel) Bind(context.Context, string, string, Options) error { return errLinux }

// Unmount implements Mounter.
func (Kernel) Unmount(context.Context, string) error { return errLinux }

// Mounted implements Mounter.
func (Kernel) Mounted(context.Context, string) (bool, error) { return false, errLinux }

// IsMountOf implements Mounter.
func (Kernel) IsMountOf(context.Context, string, string, Options) (bool, error) {
	return false, errLinux
}

// ReadOnly implements Mounter.
func (Kernel) ReadOnly(context.Context, string) (bool, error) { return false, errLinux }

// Uses implements Mounter.
func (Kernel) Uses(context.Context, string) (bool, error) { return false, errLinux }

// Below implements Mounter.
func (Kernel) Below(context.Context, string) ([]string, error) { return nil, errLinux }
