package hostpathdriver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// killAtEnv makes the child kill itself at a fault point: the value is the
// number of it, counted from the start, and the fields of a setup.
const killAtEnv = "HOSTPATHDRIVER_TEST_KILL_AT"

// faultPoints are the moments at which a process can die, one after the other:
// before each change on disk, before and after each change of mounts, devices
// and file systems, and before each answer.
type faultPoints struct {
	at     int64
	armed  string // they count from when this file is there
	passed atomic.Int64
	hit    func(name string) // what happens at it
}

// step is one of them.
func (f *faultPoints) step(name string) {
	if f.passed.Load() == 0 && missing(f.armed) || f.passed.Add(1) != f.at {
		return
	}
	f.hit(name)
}

// die ends the process, and leaves the name of the fault point in a file.
func die(note string) func(name string) {
	return func(name string) {
		if err := os.WriteFile(note, []byte(name), 0o600); err != nil {
			panic(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	}
}

// around makes a change, and has a fault point on either side.
func (f *faultPoints) around(name string, change func() error) error {
	f.step("before " + name)
	err := change()
	f.step("after " + name)
	return err
}

// Write is the log of the child: a line for each answer is about to be sent.
func (f *faultPoints) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("CSI reply")) {
		f.step("before the answer")
	}
	return len(line), nil
}

// doomed makes a driver one that dies as the environment says.
func doomed(ctx context.Context, dir, spec string) (context.Context, Options, error) {
	faults, as := &faultPoints{hit: die(filepath.Join(dir, "at")), armed: filepath.Join(dir, "armed")}, setup{}
	if _, err := fmt.Sscan(spec, &faults.at, &as.attach, &as.pool, &as.expansion, &as.nodeAlone); err != nil {
		return ctx, Options{}, fmt.Errorf("%s=%q: %w", killAtEnv, spec, err)
	}
	bodies := logging.NewOptions()
	bodies.Verbosity = 5
	logger, err := logging.New(bodies, faults)
	if err != nil {
		return ctx, Options{}, err
	}
	o := as.options(dir)
	return klog.NewContext(ctx, logger), o, equip(&o, dir, faults)
}

// equip gives a driver what it mounts and attaches with: the kernel, or fakes
// without privileges, either with fault points or, without any, as they are.
func equip(o *Options, dir string, faults *faultPoints) error {
	if kernel() {
		o.Mounter, o.Devices, o.Filesystems = mount.Kernel{}, loop.Kernel{}, filesystem.NewKernel()
	} else {
		dev, err := os.MkdirTemp(dir, "dev")
		if err != nil {
			return err
		}
		mounts, loops := &mount.Fake{}, &loop.Fake{Dir: dev}
		o.Mounter, o.Devices, o.Filesystems = mounts, loops, &filesystem.Fake{Mounts: mounts, Look: loops.Look}
		loops.HoldMounted(mounts.HasFilesystem)
	}
	if faults != nil {
		o.step = faults.step
		o.Mounter = faultyMounter{o.Mounter, faults}
		o.Devices = faultyDevices{o.Devices, faults}
		o.Filesystems = faultyFilesystems{o.Filesystems, faults}
	}
	return nil
}

type faultyMounter struct {
	Mounter
	faults *faultPoints
}

func (m faultyMounter) Bind(ctx context.Context, source, target string, o mount.Options) error {
	return m.faults.around("bind mount", func() error { return m.Mounter.Bind(ctx, source, target, o) })
}

func (m faultyMounter) Unmount(ctx context.Context, target string) error {
	return m.faults.around("unmount", func() error { return m.Mounter.Unmount(ctx, target) })
}

type faultyDevices struct {
	Devices
	faults *faultPoints
}

func (d faultyDevices) Attach(ctx context.Context, file string, readOnly bool) (device string, err error) {
	err = d.faults.around("attach device", func() error {
		device, err = d.Devices.Attach(ctx, file, readOnly)
		return err
	})
	return device, err
}

func (d faultyDevices) Detach(ctx context.Context, file string, readOnly bool) error {
	return d.faults.around("detach device", func() error { return d.Devices.Detach(ctx, file, readOnly) })
}

func (d faultyDevices) Resize(ctx context.Context, file string) error {
	return d.faults.around("resize device", func() error { return d.Devices.Resize(ctx, file) })
}

func (d faultyDevices) SetReadAhead(ctx context.Context, file string, bytes int64) error {
	return d.faults.around("set read-ahead", func() error { return d.Devices.SetReadAhead(ctx, file, bytes) })
}

type faultyFilesystems struct {
	Filesystems
	faults *faultPoints
}

// Mount mounts before it grows, with a fault point between the two.
func (f faultyFilesystems) Mount(ctx context.Context, device, target string, o filesystem.Options) error {
	if o.Grow {
		small := o
		small.Grow = false
		if err := f.Mount(ctx, device, target, small); err != nil {
			return err
		}
	}
	return f.faults.around("mount file system", func() error { return f.Filesystems.Mount(ctx, device, target, o) })
}

func (f faultyFilesystems) Grow(ctx context.Context, device, target string) error {
	return f.faults.around("grow file system", func() error { return f.Filesystems.Grow(ctx, device, target) })
}
