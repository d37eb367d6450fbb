package array

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// lastUserTimeout bounds how long detach waits for the last user of a device, which may be the kernel that still writes: the array answers no other call
// meanwhile, and a CO tries again.
const lastUserTimeout = 5 * time.Second

// errInUse says that a device still has a user.
var errInUse = errors.New("is still in use")

// link is where nodes find a LUN, as they find those of an array below /dev/disk/by-id: it leads to the device.
func (a *Array) link(id string, readOnly bool) string {
	name := id
	if readOnly {
		name += "-readonly"
	}
	return filepath.Join(a.Dir, "by-id", name)
}

// show makes the device of a LUN visible on this machine: a loop device of its file, or the file itself.
func (a *Array) show(ctx context.Context, id string, readOnly bool) (link string, err error) {
	device, link := a.file(id), a.link(id, readOnly)
	if a.Loop {
		if device, err = attach(ctx, a.file(id), readOnly); err != nil {
			return "", err
		}
	}
	if shown, err := os.Readlink(link); err == nil && shown == device {
		return link, nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		return "", err
	}
	return link, errors.Join(os.RemoveAll(link+".new"), os.Symlink(device, link+".new"), os.Rename(link+".new", link))
}

// hide removes the device of a LUN. One that still has a user stays until it has none: errInUse.
func (a *Array) hide(ctx context.Context, id string, readOnly bool) error {
	if a.Loop {
		if err := detach(ctx, a.file(id), readOnly); err != nil {
			return err
		}
	}
	return os.RemoveAll(a.link(id, readOnly))
}

// loopDevice is a loop device of a file.
type loopDevice struct {
	path string
	// leaving says that it goes with its last user.
	leaving bool
}

// losetup runs losetup(8).
func losetup(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// devices returns the loop devices of a file that are read-only, or those that are not.
func devices(ctx context.Context, file string, readOnly bool) (found []loopDevice, err error) {
	out, err := losetup(ctx, "--noheadings", "--output", "NAME,RO,AUTOCLEAR", "--associated", file)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); (fields[1] == "1") == readOnly {
			found = append(found, loopDevice{path: fields[0], leaving: fields[2] == "1"})
		}
	}
	return found, err
}

func attach(ctx context.Context, file string, readOnly bool) (string, error) {
	found, err := devices(ctx, file, readOnly)
	if err != nil {
		return "", err
	}
	for _, d := range found {
		if !d.leaving {
			return d.path, nil
		}
	}
	args := []string{"--find", "--show", file}
	if readOnly {
		args = append([]string{"--read-only"}, args...)
	}
	return losetup(ctx, args...)
}

// detach removes the loop devices of a file. Its commands take as long as the disk needs to write what a device has; only then the wait for users begins.
func detach(ctx context.Context, file string, readOnly bool) error {
	var timeout <-chan time.Time
	for {
		found, err := devices(ctx, file, readOnly)
		for _, d := range found {
			if !d.leaving { // One that is leaving may have gone since, and its name may be that of a device of another file.
				_, detachErr := losetup(ctx, "--detach", d.path)
				err = errors.Join(err, detachErr)
			}
		}
		if err != nil || len(found) == 0 {
			return err
		}
		if timeout == nil {
			timeout = time.After(lastUserTimeout)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("device %s %w: %w", found[0].path, errInUse, ctx.Err())
		case <-timeout:
			return fmt.Errorf("device %s %w", found[0].path, errInUse)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
