package loop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Hold opens a device as a program would that uses it; release closes it, and
// may be called again. Holding what is not in the table is an error.
func (f *Fake) Hold(device string) (release func() error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.table, func(d *fakeDevice) bool { return d.Path == device })
	if i < 0 {
		return nil, fmt.Errorf("hold %s: no such device", device)
	}
	d, released := f.table[i], false
	d.holds++
	return func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if released {
			return nil
		}
		released = true
		d.holds--
		return f.bury()
	}, nil
}

// HoldMounted makes a mounted file system hold its device, as in the kernel: a
// device that was given up stays until the last mount of it is gone.
func (f *Fake) HoldMounted(mounted func(device string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounted = mounted
}

// Fail makes every following Attach, Detach, Release, Resize and SetReadAhead
// fail with err; nil ends it.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Table returns the devices that are not given up, sorted by path.
func (f *Fake) Table() []FakeDevice {
	f.mu.Lock()
	defer f.mu.Unlock()
	var table []FakeDevice
	for _, d := range f.table {
		if !d.dying {
			table = append(table, d.FakeDevice)
		}
	}
	slices.SortFunc(table, func(a, b FakeDevice) int { return strings.Compare(a.Path, b.Path) })
	return table
}

// Look returns the size of a device in bytes, and whether it refuses writes: it is filesystem.Fake.Look.
func (f *Fake) Look(device string) (size int64, readOnly bool, err error) {
	table := f.Table()
	i := slices.IndexFunc(table, func(d FakeDevice) bool { return d.Path == device })
	if i < 0 {
		return 0, false, fmt.Errorf("%s is no device", device)
	}
	return table[i].Size, table[i].ReadOnly, nil
}

// Calls returns the changes of devices so far, in order: a verb and the file of
// each.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Reboot forgets every device, as a machine that was switched off.
func (f *Fake) Reboot() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.table {
		d.dying, d.holds = true, 0
	}
	mounted := f.mounted
	f.mounted = nil
	defer func() { f.mounted = mounted }()
	if err := f.bury(); err != nil {
		return errors.Join(fmt.Errorf("remove the devices in %s", f.Dir), err)
	}
	return nil
}

func (f *Fake) note(verb, file string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, verb+" "+file)
}
