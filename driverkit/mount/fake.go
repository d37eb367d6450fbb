package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Fake is a Mounter that only keeps a table: for tests without privileges.
// It refuses what the kernel refuses: a directory at a file, or a file at a
// directory. Its zero value is ready; it is safe for concurrent use.
type Fake struct {
	mu    sync.Mutex
	table map[string][]fakeEntry
	fail  error
	calls []string
}

// fakeEntry is a mount, and the device of the mounted file system; empty for a
// bind mount of anything else.
type fakeEntry struct {
	FakeMount

	device string
	// broken says that the file system became read-only.
	broken bool
}

// FakeMount is one entry of the table of a Fake.
type FakeMount struct {
	// Source as given to Bind or Place.
	Source string
	// Options as given to Bind or Place.
	Options Options
}

var _ Mounter = (*Fake)(nil)

// Bind implements Mounter.
func (f *Fake) Bind(ctx context.Context, source, target string, o Options) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "bind "+target)
	if err := f.broken(ctx); err != nil {
		return fmt.Errorf("bind mount %s at %s: %w", source, target, err)
	}
	if err := o.check(); err != nil {
		return err
	}
	if err := sameKind(source, target); err != nil {
		return fmt.Errorf("bind mount %s at %s: %w", source, target, err)
	}
	var below fakeEntry
	if stack := f.table[source]; len(stack) > 0 {
		below = stack[len(stack)-1]
	}
	f.push(source, target, o, below.device, below.broken)
	return nil
}

// Place enters a mount at an existing directory that is no bind mount, such as
// the file system of a device, for the fake of the package that makes it.
// Flags are those of that mount, and not checked.
func (f *Fake) Place(ctx context.Context, source, target string, o Options) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "place "+target)
	if err := f.broken(ctx); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	at, err := os.Stat(target)
	if err == nil && !at.IsDir() {
		err = errors.New("the target must be a directory")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	f.push(source, target, o, source, false)
	return nil
}

func (f *Fake) push(source, target string, o Options, device string, broken bool) {
	if f.table == nil {
		f.table = map[string][]fakeEntry{}
	}
	f.table[target] = append(f.table[target], fakeEntry{FakeMount: FakeMount{Source: source, Options: o}, device: device, broken: broken})
}

// sameKind reports whether source can be mounted at target: both must be there,
// and be directories or both not.
func sameKind(source, target string) error {
	from, err := os.Stat(source)
	if err != nil {
		return err
	}
	at, err := os.Stat(target)
	if err != nil {
		return err
	}
	if from.IsDir() != at.IsDir() {
		return errors.New("one is a directory, the other is not")
	}
	return nil
}

// Unmount implements Mounter.
func (f *Fake) Unmount(ctx context.Context, target string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "unmount "+target)
	if err := f.broken(ctx); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	stack := f.table[target]
	if len(stack) > 1 {
		f.table[target] = stack[:len(stack)-1]
		return nil
	}
	delete(f.table, target)
	return nil
}

// Mounted implements Mounter.
func (f *Fake) Mounted(ctx context.Context, target string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return len(f.table[target]) > 0, nil
}

// IsMountOf implements Mounter.
func (f *Fake) IsMountOf(ctx context.Context, source, target string, o Options) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	stack := f.table[target]
	if len(stack) == 0 {
		return false, nil
	}
	top := stack[len(stack)-1]
	return top.Source == source && (!o.readOnly() || top.Options.readOnly()), nil
}

// Below implements Mounter.
func (f *Fake) Below(ctx context.Context, dir string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var points []string
	for target := range f.table {
		if strings.HasPrefix(target, filepath.Clean(dir)+"/") {
			points = append(points, target)
		}
	}
	slices.Sort(points)
	return points, nil
}

// Fail makes every following Bind, Place and Unmount fail with err; nil ends it.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// At returns the topmost mount at a target, or nil.
func (f *Fake) At(target string) *FakeMount {
	f.mu.Lock()
	defer f.mu.Unlock()
	stack := f.table[target]
	if len(stack) == 0 {
		return nil
	}
	top := stack[len(stack)-1].FakeMount
	return &top
}

// HasFilesystem reports whether a file system of a device is mounted anywhere.
func (f *Fake) HasFilesystem(device string) bool {
	return f.any(func(e fakeEntry) bool { return e.device == device })
}

// Uses implements Mounter.
func (f *Fake) Uses(ctx context.Context, device string) (bool, error) {
	return f.any(func(e fakeEntry) bool { return e.device == device || e.Source == device }), ctx.Err()
}

func (f *Fake) any(is func(fakeEntry) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stack := range f.table {
		if slices.ContainsFunc(stack, is) {
			return true
		}
	}
	return false
}

// ReadOnly implements Mounter.
func (f *Fake) ReadOnly(ctx context.Context, target string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stack := f.table[target]
	if len(stack) == 0 {
		return false, ctx.Err()
	}
	top := stack[len(stack)-1]
	return top.broken || top.Options.readOnly(), ctx.Err()
}

// Break makes the file system at a target read-only, as the kernel does after an
// I/O error, for all mounts of it.
func (f *Fake) Break(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stack := f.table[target]
	if len(stack) == 0 {
		return
	}
	top := stack[len(stack)-1]
	for path, mounts := range f.table {
		for i, other := range mounts {
			if path == target || other.Source == target || top.device != "" && other.device == top.device {
				mounts[i].broken = true
			}
		}
	}
}

// Targets returns every mount point, sorted.
func (f *Fake) Targets() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	targets := make([]string, 0, len(f.table))
	for target := range f.table {
		targets = append(targets, target)
	}
	slices.Sort(targets)
	return targets
}

// Calls returns the binds, places and unmounts so far, in order: a verb and the
// target of each.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Reboot forgets every mount, as a machine that was switched off.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table = nil
}

func (f *Fake) broken(ctx context.Context) error {
	if f.fail != nil {
		return f.fail
	}
	return ctx.Err()
}
