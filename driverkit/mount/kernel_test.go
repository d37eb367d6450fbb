package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// needRoot skips a test that makes real mounts.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
}

// alone gives the goroutine of a test a mount namespace of its own until the test ends: a program elsewhere that looks at all mounts keeps one
// busy for a moment. The file systems of other tests are not kept busy by it.
func alone(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatalf("make a mount namespace: %v", err)
	}
	copied, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(copied) {
		if strings.HasPrefix(m.Source, "/dev/loop") && !strings.HasPrefix(os.TempDir(), m.Mountpoint) {
			_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
		}
	}
}

// bindForTest makes a mount and undoes it at the end of the test.
func bindForTest(t *testing.T, source, target string, o Options) {
	t.Helper()
	t.Cleanup(func() {
		if err := unmount(target); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := (Kernel{}).Bind(t.Context(), source, target, o); err != nil {
		t.Fatal(err)
	}
}

func TestKernelBind(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "target")
	source, target := d[0], d[1]
	bindForTest(t, source, target, Options{})
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(source, "file")); err != nil || string(got) != "hello" {
		t.Errorf("read through the source: %q, %v", got, err)
	}
	if mounted, err := (Kernel{}).Mounted(ctx, target); !mounted || err != nil {
		t.Errorf("Mounted: %t, %v", mounted, err)
	}
	for range 2 {
		if err := (Kernel{}).Unmount(ctx, target); err != nil {
			t.Errorf("Unmount: %v", err)
		}
	}
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 0 {
		t.Errorf("after Unmount: %v, %v", entries, err)
	}
}

// TestKernelBindsFiles: a device is published as a file.
func TestKernelBindsFiles(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "target")
	source, target := filepath.Join(d[0], "file"), filepath.Join(d[1], "file")
	if err := errors.Join(os.WriteFile(source, []byte("hello"), 0o600), os.WriteFile(target, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	bindForTest(t, source, target, Options{})
	if got, err := os.ReadFile(target); err != nil || string(got) != "hello" {
		t.Errorf("read through the target: %q, %v", got, err)
	}
	if bound, err := (Kernel{}).IsMountOf(ctx, source, target, Options{}); !bound || err != nil {
		t.Errorf("IsMountOf: %t, %v", bound, err)
	}
	if mounted, err := (Kernel{}).Mounted(ctx, target); !mounted || err != nil {
		t.Errorf("Mounted: %t, %v", mounted, err)
	}
}

// TestKernelReadOnly makes the mount read-only and leaves the source alone,
// also for a second mount of the same source.
func TestKernelReadOnly(t *testing.T) {
	needRoot(t)
	d := dirs(t, "source", "staging", "readonly", "writable")
	bindForTest(t, d[0], d[1], Options{})
	bindForTest(t, d[1], d[2], Options{ReadOnly: true})
	bindForTest(t, d[1], d[3], Options{Flags: []string{"noexec", "noatime"}})
	if err := os.WriteFile(filepath.Join(d[2], "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the read-only mount: %v, want EROFS", err)
	}
	if err := os.WriteFile(filepath.Join(d[3], "file"), []byte("x"), 0o600); err != nil {
		t.Errorf("write to the other mount: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d[2], "file")); err != nil {
		t.Errorf("read from the read-only mount: %v", err)
	}
	var flags unix.Statfs_t
	if err := unix.Statfs(d[3], &flags); err != nil {
		t.Fatal(err)
	}
	if flags.Flags&unix.ST_NOEXEC == 0 || flags.Flags&unix.ST_NOATIME == 0 || flags.Flags&unix.ST_RDONLY != 0 {
		t.Errorf("flags %#x: want noexec and noatime, not read-only", flags.Flags)
	}
}

func TestKernelHolds(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "staging", "target", "other")
	bindForTest(t, d[0], d[1], Options{})
	bindForTest(t, d[1], d[2], Options{ReadOnly: true})
	cases := map[string]struct {
		source, target string
		options        Options
		want           bool
	}{
		"Staging":        {source: d[0], target: d[1], want: true},
		"StagingNotRO":   {source: d[0], target: d[1], options: Options{ReadOnly: true}},
		"Target":         {source: d[1], target: d[2], options: Options{ReadOnly: true}, want: true},
		"TargetOfSource": {source: d[0], target: d[2], want: true},
		"OtherSource":    {source: d[3], target: d[2]},
		"NotMounted":     {source: d[0], target: d[3]},
		"SourceGone":     {source: filepath.Join(d[3], "missing"), target: d[2]},
		"TargetGone":     {source: d[0], target: filepath.Join(d[3], "missing")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := (Kernel{}).IsMountOf(ctx, c.source, c.target, c.options); got != c.want || err != nil {
				t.Errorf("IsMountOf = %t, %v, want %t", got, err, c.want)
			}
		})
	}
}

func TestKernelFailedBindLeavesNothing(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "target")
	if err := (Kernel{}).Bind(ctx, filepath.Join(d[0], "missing"), d[1], Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing source: %v", err)
	}
	if err := (Kernel{}).Bind(ctx, d[0], filepath.Join(d[1], "missing"), Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing target: %v", err)
	}
	if mounted, err := (Kernel{}).Mounted(ctx, d[1]); mounted || err != nil {
		t.Errorf("Mounted: %t, %v", mounted, err)
	}
}

func TestKernelBusyMountIsNotDetached(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "target")
	bindForTest(t, d[0], d[1], Options{})
	open, err := os.Create(filepath.Join(d[1], "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (Kernel{}).Unmount(ctx, d[1]); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Unmount: %v, want EBUSY", err)
	}
	freed := make(chan error, 1)
	go func() { freed <- (Kernel{}).unmountWithin(ctx, d[1], time.Hour) }()
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-freed; err != nil {
		t.Errorf("Unmount while the file was closed: %v", err)
	}
}

func TestKernelBelow(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "volume", "volume/b", "volume/a", "volume-other")
	bindForTest(t, d[0], d[1], Options{})
	bindForTest(t, d[0], d[4], Options{})
	for _, name := range []string{"b", "a"} {
		inner := filepath.Join(d[1], name)
		if err := os.MkdirAll(inner, 0o750); err != nil {
			t.Fatal(err)
		}
		bindForTest(t, d[0], inner, Options{})
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d[1], link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{d[1], link} {
		got, err := Kernel{}.Below(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{filepath.Join(d[1], "a"), filepath.Join(d[1], "b")}, got); diff != "" {
			t.Errorf("Below(%s) (-want +got):\n%s", dir, diff)
		}
	}
	if got, err := (Kernel{}).Below(ctx, filepath.Join(d[0], "missing")); err != nil || len(got) != 0 {
		t.Errorf("Below of nothing: %v, %v", got, err)
	}
}

func TestKernelNoMount(t *testing.T) {
	ctx, d := t.Context(), dirs(t, "plain")
	for _, path := range []string{d[0], filepath.Join(d[0], "missing")} {
		if mounted, err := (Kernel{}).Mounted(ctx, path); mounted || err != nil {
			t.Errorf("Mounted(%s): %t, %v", path, mounted, err)
		}
		if err := (Kernel{}).Unmount(ctx, path); err != nil {
			t.Errorf("Unmount(%s): %v", path, err)
		}
	}
	if mounted, err := (Kernel{}).Mounted(ctx, "/proc"); !mounted || err != nil {
		t.Errorf("Mounted(/proc): %t, %v", mounted, err)
	}
}

// TestUnmountBesidePrograms: programs that are started meanwhile, for other
// volumes, keep no mount busy.
func TestUnmountBesidePrograms(t *testing.T) {
	needs.Time(t)
	needRoot(t)
	alone(t)
	d := dirs(t, "source", "target")
	source, target := d[0], d[1]
	t.Cleanup(func() { _ = unmount(target) }) // when the test has failed, it may be mounted
	ctx, end := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run() // ends with the test
			}
		})
	}
	for range 1000 {
		if err := errors.Join(Kernel{}.Bind(ctx, source, target, Options{}), Kernel{}.Unmount(ctx, target)); err != nil {
			t.Error(err)
			break
		}
	}
	end()
	starting.Wait()
}

// TestKernelUsesFindsMountsOfADevice: its node, and not other files.
func TestKernelUsesFindsMountsOfADevice(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "target")
	target := filepath.Join(d[0], "node")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const device = "/dev/full" // any node that nothing else is mounted of
	if used, err := (Kernel{}).Uses(ctx, device); used || err != nil {
		t.Errorf("before: %t, %v", used, err)
	}
	bindForTest(t, device, target, Options{})
	if used, err := (Kernel{}).Uses(ctx, device); !used || err != nil {
		t.Errorf("mounted: %t, %v", used, err)
	}
}

// TestKernelReadsWhetherAMountIsReadOnly: of the mount, not of the source.
func TestKernelReadsWhetherAMountIsReadOnly(t *testing.T) {
	needRoot(t)
	ctx, d := t.Context(), dirs(t, "source", "target")
	bindForTest(t, d[0], d[1], Options{ReadOnly: true})
	for path, want := range map[string]bool{d[0]: false, d[1]: true} {
		if got, err := (Kernel{}).ReadOnly(ctx, path); got != want || err != nil {
			t.Errorf("ReadOnly(%s) = %t, %v, want %t", path, got, err, want)
		}
	}
}

// TestKernelUnmountsWhatIsDead: a file system whose server is gone cannot be looked at, and is unmounted nevertheless.
func TestKernelUnmountsWhatIsDead(t *testing.T) {
	needRoot(t)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("a file system without a server needs FUSE: %v", err)
	}
	target := dirs(t, "target")[0]
	err = unix.Mount("dead", target, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd()))
	if err := errors.Join(err, server.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(target); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("stat: %v, want ENOTCONN", err)
	}
	if mounted, err := (Kernel{}).Mounted(t.Context(), target); err != nil || !mounted {
		t.Errorf("mounted: %t, %v", mounted, err)
	}
	if err := (Kernel{}).Unmount(t.Context(), target); err != nil {
		t.Error(err)
	}
	if mounted, err := (Kernel{}).Mounted(t.Context(), target); err != nil || mounted {
		t.Errorf("mounted after it was unmounted: %t, %v", mounted, err)
	}
}
