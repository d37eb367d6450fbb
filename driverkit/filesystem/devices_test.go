package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sectorSize is the least difference of the sizes of two devices.
const sectorSize = 512

// devices makes devices of files.
type devices interface {
	Attach(ctx context.Context, image string, readOnly bool) (device string, err error)
	// Detach removes the device of an image, if there is one.
	Detach(ctx context.Context, image string, readOnly bool) error
	// Resize makes the devices of an image as large as it.
	Resize(ctx context.Context, image string) error
}

// loopDevices are those of the kernel, by losetup(8).
type loopDevices struct{}

func losetup(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %v: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// of returns the devices of an image, and whether they are read-only.
func (loopDevices) of(ctx context.Context, image string) (map[string]bool, error) {
	out, err := losetup(ctx, "--noheadings", "--output", "NAME,RO", "--associated", image)
	found := map[string]bool{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		found[fields[0]] = fields[1] == "1"
	}
	return found, err
}

func (l loopDevices) Attach(ctx context.Context, image string, readOnly bool) (string, error) {
	args := []string{"--find", "--show", image}
	if readOnly {
		args = append([]string{"--read-only"}, args...)
	}
	return losetup(ctx, args...)
}

func (l loopDevices) Detach(ctx context.Context, image string, readOnly bool) error {
	for {
		found, err := l.of(ctx, image)
		left := 0
		for device, locked := range found {
			if locked == readOnly {
				left++
				_, detachErr := losetup(ctx, "--detach", device)
				err = errors.Join(err, detachErr)
			}
		}
		if err != nil || left == 0 {
			return err
		}
		select { // a program may still have it open
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (l loopDevices) Resize(ctx context.Context, image string) error {
	found, err := l.of(ctx, image)
	for device := range found {
		_, resizeErr := losetup(ctx, "--set-capacity", device)
		err = errors.Join(err, resizeErr)
	}
	return err
}

// fakeDevices are hard links of images, for a Fake.
type fakeDevices struct {
	dir   string
	table []fakeDevice
	made  int
}

type fakeDevice struct {
	path, image string
	readOnly    bool
	size        int64
}

func (f *fakeDevices) Attach(_ context.Context, image string, readOnly bool) (string, error) {
	f.made++
	d := fakeDevice{path: filepath.Join(f.dir, "loop"+strconv.Itoa(f.made)), image: image, readOnly: readOnly}
	info, err := os.Stat(image)
	if err != nil {
		return "", err
	}
	d.size = info.Size()
	f.table = append(f.table, d)
	return d.path, os.Link(image, d.path)
}

func (f *fakeDevices) Detach(_ context.Context, image string, readOnly bool) (err error) {
	f.table = slices.DeleteFunc(f.table, func(d fakeDevice) bool {
		gone := d.image == image && d.readOnly == readOnly
		if gone {
			err = errors.Join(err, os.Remove(d.path))
		}
		return gone
	})
	return err
}

func (f *fakeDevices) Resize(_ context.Context, image string) error {
	info, err := os.Stat(image)
	for i := range f.table {
		if err == nil && f.table[i].image == image {
			f.table[i].size = info.Size()
		}
	}
	return err
}

// look is Fake.Look.
func (f *fakeDevices) look(device string) (size int64, readOnly bool, err error) {
	i := slices.IndexFunc(f.table, func(d fakeDevice) bool { return d.path == device })
	if i < 0 {
		return 0, false, fmt.Errorf("%s is no device", device)
	}
	return f.table[i].size, f.table[i].readOnly, nil
}
