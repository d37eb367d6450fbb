package filesystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// Fake is a Filesystems without privileges, for tests. Its devices are plain
// files. A file system is one line at the start of
// its device: it survives a reboot, and a copy of the device has it, too. Files
// written below a target stay there, in the directory. It is safe for
// concurrent use.
type Fake struct {
	// Mounts is the table in which mounts are made and undone.
	Mounts *mount.Fake
	// Look returns the size of a device in bytes, and whether it refuses writes;
	// an error for what is no device. Without it devices are as large as their
	// files, and writable.
	Look func(device string) (size int64, readOnly bool, err error)

	mu    sync.Mutex
	fail  map[Step]error
	calls []string
}

// Step is a side effect of a Fake.
type Step string

// The steps, in the order in which Mount takes them.
const (
	StepFormat Step = "format"
	StepMount  Step = "mount"
	StepGrow   Step = "grow"
)

var _ Filesystems = (*Fake)(nil)

// fakeHeader is the line that stands for a file system: its type and size.
const fakeHeader = "fake file system %s %d\n"

// Types implements Filesystems.
func (f *Fake) Types() []string {
	all := kinds()
	types := make([]string, 0, len(all))
	for _, k := range all {
		types = append(types, k.name)
	}
	return types
}

// Mount implements Filesystems.
func (f *Fake) Mount(ctx context.Context, device, target string, o Options) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.mount(ctx, device, target, o)
	if err == nil && o.Grow && !o.readOnly() {
		err = f.grow(device)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s, type %q, flags %s, read-only %t: %w", device, target, o.Type, flagNames(o.Flags), o.readOnly(), err)
	}
	return nil
}

func (f *Fake) mount(ctx context.Context, device, target string, o Options) error {
	kind, err := o.check(f.Types())
	if err != nil {
		return err
	}
	shown, readOnly, err := f.IsMountOf(ctx, device, target)
	if err != nil {
		return err
	}
	if missing, err := o.decide(shown, readOnly, f.Mounts.At(target) != nil); err != nil || !missing {
		return err
	}
	d, err := f.look(device)
	if err != nil {
		return err
	}
	if err := d.prepare(kind, o); err != nil {
		return err
	}
	if d.found == "" {
		if err := f.write(StepFormat, device, kind.name, d.size); err != nil {
			return err
		}
	}
	if err := f.step(StepMount, target); err != nil {
		return err
	}
	return f.Mounts.Place(ctx, device, target, mount.Options{ReadOnly: o.readOnly(), Flags: o.mountFlags(kind)})
}

// look looks at a device.
func (f *Fake) look(device string) (*disk, error) {
	file, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d := &disk{path: device}
	if err := d.read(file); err != nil {
		return nil, err
	}
	d.found, _ = parseHeader(d.head)
	if f.Look != nil {
		d.size, d.readOnly, err = f.Look(device)
	}
	return d, err
}

// parseHeader returns an empty type for anything but a header.
func parseHeader(head []byte) (fsType string, size int64) {
	if _, err := fmt.Fscanf(bytes.NewReader(head), fakeHeader, &fsType, &size); err != nil {
		return "", 0
	}
	return fsType, size
}

// write makes a file system, or another size of it.
func (f *Fake) write(step Step, device, fsType string, size int64) error {
	if err := f.step(step, device); err != nil {
		return err
	}
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	head := make([]byte, headSize)
	copy(head, fmt.Sprintf(fakeHeader, fsType, size))
	_, err = file.WriteAt(head, 0)
	return errors.Join(err, file.Close())
}

// Grow implements Filesystems.
func (f *Fake) Grow(ctx context.Context, device, target string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	shown, readOnly, err := f.IsMountOf(ctx, device, target)
	if err == nil {
		err = checkGrow(shown, readOnly)
	}
	if err == nil {
		err = f.grow(device)
	}
	if err != nil {
		return fmt.Errorf("grow the file system of %s at %s: %w", device, target, err)
	}
	return nil
}

func (f *Fake) grow(device string) error {
	d, err := f.look(device)
	if err != nil {
		return err
	}
	if _, now := parseHeader(d.head); now == d.size {
		return f.step(StepGrow, device)
	}
	return f.write(StepGrow, device, d.found, d.size)
}

// IsMountOf implements Filesystems.
func (f *Fake) IsMountOf(ctx context.Context, device, target string) (shown, readOnly bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, false, err
	}
	source, readOnly := f.source(target)
	if source != device {
		return false, false, nil
	}
	broken, err := f.Mounts.ReadOnly(ctx, target)
	return true, readOnly || broken, err
}

// DeviceAt implements Filesystems.
func (f *Fake) DeviceAt(ctx context.Context, target string) (string, error) {
	source, _ := f.source(target)
	if info, err := os.Stat(source); err != nil || info.IsDir() {
		return "", ctx.Err()
	}
	return source, ctx.Err()
}

// source resolves a target to its device or directory, through bind mounts of mounts.
func (f *Fake) source(target string) (source string, readOnly bool) {
	for range f.Mounts.Targets() {
		top := f.Mounts.At(target)
		if top == nil {
			break
		}
		source, target = top.Source, top.Source
		readOnly = readOnly || top.Options.ReadOnly || slices.Contains(top.Options.Flags, flagReadOnly)
	}
	return source, readOnly
}

// Usage implements Filesystems. Nothing is ever used. The mount of a directory has no size of its own.
func (f *Fake) Usage(ctx context.Context, target string) (Usage, error) {
	source, _ := f.source(target)
	err := ctx.Err()
	if err == nil && source == "" {
		err = errors.New("nothing is mounted there")
	}
	if info, statErr := os.Stat(source); err == nil && statErr == nil && info.IsDir() {
		return Usage{}, nil
	}
	var d *disk
	if err == nil {
		d, err = f.look(source)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("measure the file system at %s: %w", target, err)
	}
	_, size := parseHeader(d.head)
	const bytesPerInode = 16 << 10
	inodes := size / bytesPerInode
	return Usage{Bytes: Space{Total: size, Available: size}, Inodes: Space{Total: inodes, Available: inodes}}, nil
}

// Fail makes a step fail with err from now on, before it does anything; nil ends
// it.
func (f *Fake) Fail(step Step, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = map[Step]error{}
	}
	f.fail[step] = err
}

// Calls returns the steps so far, with the device or the target, in order.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *Fake) step(step Step, what string) error {
	f.calls = append(f.calls, strings.Join([]string{string(step), what}, " "))
	return f.fail[step]
}
