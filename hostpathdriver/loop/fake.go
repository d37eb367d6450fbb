package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Fake is a Devices without privileges, for tests. Its devices are plain files
// in Dir, hard links of the files that they show, so that a fake mounter can
// bind them, and writes to one are in the other; Dir has to exist, on the file
// system of the files. A plain file cannot refuse writes, nor have a size of
// its own: whether a device is read-only, and the size it was last given, is
// in Table. It is safe for concurrent use, by one process.
type Fake struct {
	// Dir is where the devices are made.
	Dir string

	mu sync.Mutex
	// mounted reports whether a file system of a device is mounted; nil is never.
	mounted func(device string) bool
	table   []*fakeDevice
	fail    error
	calls   []string
}

// FakeDevice is one entry of the table of a Fake.
type FakeDevice struct {
	// Path of the device.
	Path string
	// File is the path by which it was attached.
	File string
	// ReadOnly as given to Attach.
	ReadOnly bool
	// Size in bytes, as of Attach or the last Resize.
	Size int64
	// ReadAhead in bytes, as of the last SetReadAhead.
	ReadAhead int64
}

type fakeDevice struct {
	FakeDevice
	id    Identity
	holds int
	dying bool
}

var _ Devices = (*Fake)(nil)

// Attach implements Devices.
func (f *Fake) Attach(ctx context.Context, file string, readOnly bool) (string, error) {
	f.note("attach", file)
	var device string
	err := ctx.Err()
	if err == nil {
		err = until(ctx, func() (done bool, err error) {
			device, err = f.attach(file, readOnly)
			return device != "", err
		})
	}
	if err != nil {
		return "", fmt.Errorf("attach %s to a fake device, read-only %t: %w", file, readOnly, err)
	}
	return device, nil
}

// attach returns no device while another process keeps it waiting.
func (f *Fake) attach(file string, readOnly bool) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return "", f.fail
	}
	b, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer b.Close()
	if err := checkSize(b.size); err != nil {
		return "", err
	}
	if d := f.find(b.id, readOnly, false); d != nil {
		return d.Path, nil
	}
	if err := f.bury(); err != nil {
		return "", err
	}
	if !readOnly && f.find(b.id, readOnly, true) != nil {
		return "", nil
	}
	d := &fakeDevice{FakeDevice: FakeDevice{File: file, ReadOnly: readOnly, Size: b.size}, id: b.id}
	if d.Path, err = f.link(file); err != nil {
		return "", err
	}
	f.table = append(f.table, d)
	return d.Path, nil
}

// link makes a device with the first free number.
func (f *Fake) link(file string) (string, error) {
	for number := 0; ; number++ {
		path := filepath.Join(f.Dir, name(number))
		err := os.Link(file, path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

func (f *Fake) find(id Identity, readOnly, dying bool) *fakeDevice {
	i := slices.IndexFunc(f.table, func(d *fakeDevice) bool {
		return d.id == id && d.ReadOnly == readOnly && d.dying == dying
	})
	if i < 0 {
		return nil
	}
	return f.table[i]
}

// Device implements Devices.
func (f *Fake) Device(ctx context.Context, file string, readOnly bool) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer b.Close()
	if d := f.find(b.id, readOnly, false); d != nil {
		return d.Path, nil
	}
	return "", nil
}

// Detach implements Devices.
func (f *Fake) Detach(ctx context.Context, file string, readOnly bool) error {
	f.note("detach", file)
	if err := f.detach(ctx, file, readOnly); err != nil {
		return fmt.Errorf("detach %s from its fake device, read-only %t: %w", file, readOnly, err)
	}
	return nil
}

func (f *Fake) detach(ctx context.Context, file string, readOnly bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.Close()
	if err := f.giveUp(b.id, readOnly); err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		err := f.bury()
		return f.find(b.id, readOnly, true) == nil, err
	})
}

// List implements Devices.
func (f *Fake) List(ctx context.Context) ([]Shown, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []Shown
	for _, d := range f.table {
		if !d.dying {
			now, err := Identify(d.File)
			list = append(list, Shown{Device: d.Path, ReadOnly: d.ReadOnly, ID: d.id, File: d.File, Deleted: err != nil || now != d.id})
		}
	}
	return list, ctx.Err()
}

// Release implements Devices.
func (f *Fake) Release(ctx context.Context, shown Shown, orphaned func() (bool, error)) error {
	f.note("release", shown.File)
	err := whileLocked(shown, orphaned, func() error { return f.giveUp(shown.ID, shown.ReadOnly) })
	if err == nil {
		err = until(ctx, func() (bool, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			err := f.bury()
			return f.find(shown.ID, shown.ReadOnly, true) == nil, err
		})
	}
	if err != nil {
		return fmt.Errorf("release %s of %s: %w", shown.Device, shown.File, err)
	}
	return nil
}

func (f *Fake) giveUp(id Identity, readOnly bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	d := f.find(id, readOnly, false)
	if d == nil {
		return nil
	}
	d.dying = true
	return f.bury()
}

// bury removes the devices that are given up, and that neither a program nor a
// mount holds.
func (f *Fake) bury() error {
	var errs []error
	f.table = slices.DeleteFunc(f.table, func(d *fakeDevice) bool {
		gone := d.dying && d.holds == 0 && (f.mounted == nil || !f.mounted(d.Path))
		if gone {
			errs = append(errs, os.Remove(d.Path))
		}
		return gone
	})
	return errors.Join(errs...)
}

// Resize implements Devices.
func (f *Fake) Resize(ctx context.Context, file string) error {
	f.note("resize", file)
	if err := f.each(ctx, file, func(d *fakeDevice, size int64) { d.Size = size }); err != nil {
		return fmt.Errorf("resize the fake devices of %s: %w", file, err)
	}
	return nil
}

// SetReadAhead implements Devices.
func (f *Fake) SetReadAhead(ctx context.Context, file string, bytes int64) error {
	f.note("read-ahead", file)
	if err := f.each(ctx, file, func(d *fakeDevice, _ int64) { d.ReadAhead = bytes }); err != nil {
		return fmt.Errorf("set the read-ahead of the fake devices of %s: %w", file, err)
	}
	return nil
}

// each acts on every device of a file, which has a size.
func (f *Fake) each(ctx context.Context, file string, act func(d *fakeDevice, size int64)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.fail, ctx.Err()); err != nil {
		return err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := checkSize(b.size); err != nil {
		return err
	}
	for _, d := range f.table {
		if d.id == b.id {
			act(d, b.size)
		}
	}
	return nil
}
