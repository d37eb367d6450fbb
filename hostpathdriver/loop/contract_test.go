package loop

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// rig is one implementation and what the contract tests need to do to it.
type rig struct {
	Devices
	hold func(t *testing.T, device string) (release func())
	size func(t *testing.T, device string) int64
	// readAhead is that of a device in bytes.
	readAhead func(t *testing.T, device string) int64
	reboot    func(t *testing.T, file string)
	// refuses says that a read-only device refuses writes.
	refuses bool
}

// contract is what both implementations promise.
func contract() map[string]struct {
	reason string
	run    func(t *testing.T, r rig, file string)
} {
	return map[string]struct {
		reason string
		run    func(t *testing.T, r rig, file string)
	}{
		"AttachTwice":      {reason: "the second call answers what the first has made", run: attachTwice},
		"OtherPath":        {reason: "a file is known by its inode, whatever it is called", run: otherPath},
		"ReadOnlyBeside":   {reason: "one file, two devices, one content", run: readOnlyBeside},
		"DetachOne":        {reason: "the kinds are detached one by one", run: detachOne},
		"DetachNone":       {reason: "detaching is idempotent", run: detachNone},
		"DetachBusy":       {reason: "nobody loses a device that is open", run: detachBusy},
		"BusyBeside":       {reason: "who waits stops nobody", run: busyBeside},
		"DetachWaits":      {reason: "it returns when the last user has closed", run: detachWaits},
		"BusyReadOnly":     {reason: "a reader of the old device spoils nothing", run: busyReadOnly},
		"Resize":           {reason: "every device of the file grows", run: resize},
		"ReadAhead":        {reason: "every device of the file has it, and no other file after them", run: readAhead},
		"ReadAheadNone":    {reason: "the attached ones are set alone", run: readAheadNone},
		"ResizeNone":       {reason: "after a reboot there is nothing to resize", run: resizeNone},
		"FileDeleted":      {reason: "a new file of the same name is another file", run: fileDeleted},
		"List":             {reason: "what shows a file, also when it is deleted", run: list},
		"ReleaseRefused":   {reason: "a device that is needed stays", run: releaseRefused},
		"ReleaseOther":     {reason: "a device that shows another file by now stays", run: releaseOther},
		"FileMissing":      {reason: "no file, no device", run: fileMissing},
		"Concurrent":       {reason: "eight callers get one device", run: concurrent},
		"Sparse":           {reason: "a large file attaches and takes no space", run: sparse},
		"Reboot":           {reason: "the same call makes it again", run: reboot},
		"BadSizes":         {reason: "the rest below a sector would be lost in silence", run: badSizes},
		"NoRegularFile":    {reason: "directories and pipes are refused, at once", run: noRegularFile},
		"ContextOver":      {reason: "a call that is over does nothing", run: contextOver},
		"ContextOverFirst": {reason: "and says so rather than that something is busy", run: contextOverIsNotBusy},
	}
}

// testContract runs the table with a file of 1 MiB per case, and detaches what
// a case leaves behind.
func testContract(t *testing.T, newRig func(t *testing.T) rig) {
	for name, c := range contract() {
		t.Run(name, func(t *testing.T) {
			t.Logf("because %s", c.reason)
			r := newRig(t)
			c.run(t, r, newFile(t, r, mib))
		})
	}
}

// newFile makes a sparse file whose devices are detached at the end.
func newFile(t *testing.T, r rig, size int64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	createFile(t, file, size)
	detachAtEnd(t, r, file)
	return file
}

func createFile(t *testing.T, file string, size int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// detachAtEnd keeps a path to the file that no test deletes.
func detachAtEnd(t *testing.T, r rig, file string) {
	t.Helper()
	keep := file + ".keep"
	if err := os.Link(file, keep); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(r.Detach(ctx, keep, false), r.Detach(ctx, keep, true)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// withTestDeadline bounds a call that hangs, so that the test ends and cleans up
// before the test binary is killed. A successful call takes far less.
func withTestDeadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func attach(t *testing.T, r rig, file string, readOnly bool) string {
	t.Helper()
	device, err := r.Attach(withTestDeadline(t), file, readOnly)
	if err != nil || device == "" {
		t.Fatalf("Attach(%s, %t) = %q, %v", file, readOnly, device, err)
	}
	return device
}

func wantDevice(t *testing.T, r rig, file string, readOnly bool, want string) {
	t.Helper()
	if got, err := r.Device(withTestDeadline(t), file, readOnly); got != want || err != nil {
		t.Errorf("Device(%s, %t) = %q, %v, want %q", file, readOnly, got, err, want)
	}
}

func detach(t *testing.T, r rig, file string, readOnly bool) {
	t.Helper()
	if err := r.Detach(withTestDeadline(t), file, readOnly); err != nil {
		t.Errorf("Detach(%s, %t): %v", file, readOnly, err)
	}
}

func attachTwice(t *testing.T, r rig, file string) {
	for _, readOnly := range []bool{false, true} {
		wantDevice(t, r, file, readOnly, "")
		first := attach(t, r, file, readOnly)
		if second := attach(t, r, file, readOnly); second != first {
			t.Errorf("read-only %t: %s, then %s", readOnly, first, second)
		}
		wantDevice(t, r, file, readOnly, first)
		if got := r.size(t, first); got != mib {
			t.Errorf("%s has %d bytes, want %d", first, got, mib)
		}
	}
}

func otherPath(t *testing.T, r rig, file string) {
	hard, soft := file+".hard", file+".soft"
	if err := errors.Join(os.Link(file, hard), os.Symlink(file, soft)); err != nil {
		t.Fatal(err)
	}
	device := attach(t, r, file, false)
	for _, path := range []string{hard, soft} {
		wantDevice(t, r, path, false, device)
		if got := attach(t, r, path, false); got != device {
			t.Errorf("%s by %s, want %s", got, path, device)
		}
	}
	other := filepath.Join(t.TempDir(), "disk")
	createFile(t, other, mib)
	wantDevice(t, r, other, false, "")
}

func readOnlyBeside(t *testing.T, r rig, file string) {
	writable, readOnly := attach(t, r, file, false), attach(t, r, file, true)
	if writable == readOnly {
		t.Fatalf("both are %s", writable)
	}
	text := []byte("written to the device")
	writeSynced(t, writable, text)
	for _, path := range []string{file, readOnly} {
		if got := readStart(t, path, len(text)); !bytes.Equal(got, text) {
			t.Errorf("%s begins with %q, want %q", path, got, text)
		}
	}
	if r.refuses {
		refusesWrites(t, readOnly)
	}
	if got := readStart(t, file, len(text)); !bytes.Equal(got, text) {
		t.Errorf("the file begins with %q after the refused write", got)
	}
}

func writeSynced(t *testing.T, path string, text []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func readStart(t *testing.T, path string, n int) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := make([]byte, n)
	if _, err := f.ReadAt(start, 0); err != nil {
		t.Fatal(err)
	}
	return start
}

func refusesWrites(t *testing.T, device string) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return // some kernels refuse already here
	}
	defer f.Close()
	if _, err := f.Write([]byte("spoiled")); err == nil {
		t.Errorf("%s takes writes", device)
	}
}

func detachOne(t *testing.T, r rig, file string) {
	writable, readOnly := attach(t, r, file, false), attach(t, r, file, true)
	detach(t, r, file, false)
	wantDevice(t, r, file, false, "")
	wantDevice(t, r, file, true, readOnly)
	if again := attach(t, r, file, false); again == readOnly {
		t.Errorf("the writable device is the read-only one (%s, was %s)", again, writable)
	}
	detach(t, r, file, true)
	wantDevice(t, r, file, true, "")
}

func detachNone(t *testing.T, r rig, file string) {
	for range 2 {
		detach(t, r, file, false)
		detach(t, r, file, true)
	}
	detach(t, r, file+".missing", false)
}

// detachBusy gives up a device that stays open: neither Detach nor a new
// Attach ends well before its user does.
func detachBusy(t *testing.T, r rig, file string) {
	release := r.hold(t, attach(t, r, file, false))
	giveUp(t, r, file, false)
	wantBusy(t, func(ctx context.Context) error { return r.Detach(ctx, file, false) })
	wantDevice(t, r, file, false, "")
	wantBusy(t, func(ctx context.Context) error {
		device, err := r.Attach(ctx, file, false)
		if device != "" {
			t.Errorf("got %s while the device before is open", device)
		}
		return err
	})
	release()
	detach(t, r, file, false)
	wantDevice(t, r, file, false, attach(t, r, file, false))
}

// giveUp detaches a device that is open, and stops waiting as soon as it is
// given up, however long that takes.
func giveUp(t *testing.T, r rig, file string, readOnly bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(withTestDeadline(t))
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := r.Detach(ctx, file, readOnly); !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
			t.Errorf("Detach of an open device: %v, want ErrBusy and context.Canceled", err)
		}
	})
	err := untilGivenUp(t, r, file, readOnly)
	cancel()
	wait.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

func untilGivenUp(t *testing.T, r rig, file string, readOnly bool) error {
	t.Helper()
	ctx := withTestDeadline(t)
	return until(ctx, func() (bool, error) {
		device, err := r.Device(ctx, file, readOnly)
		return device == "", err
	})
}

// busyBeside waits in Detach of one kind, and works with the other meanwhile.
func busyBeside(t *testing.T, r rig, file string) {
	release := r.hold(t, attach(t, r, file, false))
	var wait sync.WaitGroup
	wait.Go(func() { detach(t, r, file, false) })
	err := untilGivenUp(t, r, file, false)
	for range 3 {
		if device, err := r.Attach(withTestDeadline(t), file, true); device == "" || err != nil {
			t.Errorf("Attach = %q, %v", device, err)
			break
		}
		detach(t, r, file, true)
	}
	release()
	wait.Wait()
	if err != nil {
		t.Fatal(err)
	}
	wantDevice(t, r, file, false, "")
}

// wantBusy calls what must not end well, however slow the machine.
func wantBusy(t *testing.T, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// detachWaits closes the device while Detach and Attach wait for that.
func detachWaits(t *testing.T, r rig, file string) {
	old := attach(t, r, file, false)
	release := r.hold(t, old)
	giveUp(t, r, file, false)
	var wait sync.WaitGroup
	wait.Go(func() { detach(t, r, file, false) })
	wait.Go(func() {
		if device, err := r.Attach(withTestDeadline(t), file, false); device == "" || err != nil {
			t.Errorf("Attach = %q, %v", device, err)
		}
	})
	release()
	wait.Wait()
	// Detach may have come before Attach or after it.
	wantDevice(t, r, file, false, attach(t, r, file, false))
}

func busyReadOnly(t *testing.T, r rig, file string) {
	old := attach(t, r, file, true)
	release := r.hold(t, old)
	defer release()
	giveUp(t, r, file, true)
	next := attach(t, r, file, true)
	if next == old {
		t.Errorf("got %s, which goes as soon as it is closed", old)
	}
	release()
	wantDevice(t, r, file, true, next)
}

func resize(t *testing.T, r rig, file string) {
	devices := []string{attach(t, r, file, false), attach(t, r, file, true)}
	if err := os.Truncate(file, 3*mib); err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		if got := r.size(t, device); got != mib {
			t.Errorf("%s has %d bytes before Resize, want %d", device, got, mib)
		}
	}
	for range 2 {
		if err := r.Resize(withTestDeadline(t), file); err != nil {
			t.Fatal(err)
		}
		for _, device := range devices {
			if got := r.size(t, device); got != 3*mib {
				t.Errorf("%s has %d bytes, want %d", device, got, 3*mib)
			}
		}
	}
	wantDevice(t, r, file, false, devices[0])
}

func readAhead(t *testing.T, r rig, file string) {
	devices := []string{attach(t, r, file, false), attach(t, r, file, true)}
	for _, want := range []int64{8 * mib, 8 * mib, 0, 64 * mib} {
		if err := r.SetReadAhead(withTestDeadline(t), file, want); err != nil {
			t.Fatal(err)
		}
		for _, device := range devices {
			if got := r.readAhead(t, device); got != want {
				t.Errorf("%s has a read-ahead of %d bytes, want %d", device, got, want)
			}
		}
	}
	if err := os.Truncate(file, 3*mib); err != nil {
		t.Fatal(err)
	}
	if err := r.Resize(withTestDeadline(t), file); err != nil || r.readAhead(t, devices[0]) != 64*mib {
		t.Errorf("after Resize, %v, a read-ahead of %d bytes", err, r.readAhead(t, devices[0]))
	}
	detach(t, r, file, false)
	detach(t, r, file, true)
	for _, readOnly := range []bool{false, true} {
		if got := r.readAhead(t, attach(t, r, newFile(t, r, mib), readOnly)); got >= 8*mib {
			t.Errorf("the next file has a read-ahead of %d bytes", got)
		}
	}
}

func readAheadNone(t *testing.T, r rig, file string) {
	if err := r.SetReadAhead(withTestDeadline(t), file, mib); err != nil {
		t.Errorf("SetReadAhead: %v", err)
	}
	wantDevice(t, r, file, false, "")
	if err := r.SetReadAhead(withTestDeadline(t), file+".missing", mib); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SetReadAhead of no file: %v", err)
	}
}

func resizeNone(t *testing.T, r rig, file string) {
	if err := r.Resize(withTestDeadline(t), file); err != nil {
		t.Errorf("Resize: %v", err)
	}
	wantDevice(t, r, file, false, "")
	if err := r.Resize(withTestDeadline(t), file+".missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Resize of no file: %v", err)
	}
}

func fileDeleted(t *testing.T, r rig, file string) {
	old := attach(t, r, file, false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantDevice(t, r, file, false, "")
	detach(t, r, file, false)
	createFile(t, file, 2*mib)
	wantDevice(t, r, file, false, "")
	defer detach(t, r, file, false)
	device := attach(t, r, file, false)
	if device == old {
		t.Errorf("the new file has got the device %s of the deleted one", old)
	}
	if got := r.size(t, device); got != 2*mib {
		t.Errorf("%s has %d bytes, want %d", device, got, 2*mib)
	}
}

func fileMissing(t *testing.T, r rig, file string) {
	missing := file + ".missing"
	if device, err := r.Attach(withTestDeadline(t), missing, false); device != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach = %q, %v", device, err)
	}
	wantDevice(t, r, missing, false, "")
}

func concurrent(t *testing.T, r rig, file string) {
	devices := make([]string, 8)
	var wait sync.WaitGroup
	for i := range devices {
		wait.Go(func() {
			device, err := r.Attach(withTestDeadline(t), file, false)
			if err != nil {
				t.Errorf("Attach: %v", err)
			}
			devices[i] = device
		})
	}
	wait.Wait()
	for _, device := range devices {
		if device != devices[0] {
			t.Fatalf("more than one device: %v", devices)
		}
	}
	wantDevice(t, r, file, false, devices[0])
	detach(t, r, file, false)
	wantDevice(t, r, file, false, "")
}

func sparse(t *testing.T, r rig, _ string) {
	const size = 10 << 30
	file := newFile(t, r, size)
	device := attach(t, r, file, false)
	if got := r.size(t, device); got != size {
		t.Errorf("%s has %d bytes, want %d", device, got, int64(size))
	}
	writeSynced(t, device, []byte("a little"))
	detach(t, r, file, false)
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	if got := st.Blocks * 512; got > mib {
		t.Errorf("the file takes %d bytes of the disk", got)
	}
}

func reboot(t *testing.T, r rig, file string) {
	device := attach(t, r, file, false)
	writeSynced(t, device, []byte("kept"))
	r.reboot(t, file)
	wantDevice(t, r, file, false, "")
	detach(t, r, file, true)
	again := attach(t, r, file, false)
	if got := readStart(t, again, 4); string(got) != "kept" {
		t.Errorf("%s begins with %q after the reboot", again, got)
	}
}

func badSizes(t *testing.T, r rig, file string) {
	for _, size := range []int64{0, 1, 511, mib + 1} {
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		if device, err := r.Attach(withTestDeadline(t), file, false); device != "" || err == nil {
			t.Errorf("Attach of %d bytes = %q, %v", size, device, err)
		}
		if err := r.Resize(withTestDeadline(t), file); err == nil {
			t.Errorf("Resize to %d bytes is accepted", size)
		}
	}
	wantDevice(t, r, file, false, "")
}

func noRegularFile(t *testing.T, r rig, file string) {
	pipe := file + ".pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Dir(file), pipe} {
		_, attachErr := r.Attach(withTestDeadline(t), path, false)
		_, deviceErr := r.Device(withTestDeadline(t), path, false)
		for call, err := range map[string]error{"Attach": attachErr, "Device": deviceErr, "Detach": r.Detach(withTestDeadline(t), path, false), "Resize": r.Resize(withTestDeadline(t), path)} {
			if err == nil {
				t.Errorf("%s(%s) is accepted", call, path)
			}
		}
	}
}

func overErrors(t *testing.T, r rig, file string) map[string]error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, attachErr := r.Attach(ctx, file, false)
	_, deviceErr := r.Device(ctx, file, false)
	return map[string]error{"Attach": attachErr, "Device": deviceErr, "Detach": r.Detach(ctx, file, false), "Resize": r.Resize(ctx, file), "SetReadAhead": r.SetReadAhead(ctx, file, mib)}
}

func contextOver(t *testing.T, r rig, file string) {
	device := attach(t, r, file, false)
	for call, err := range overErrors(t, r, file) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", call, err)
		}
	}
	wantDevice(t, r, file, false, device)
}

func contextOverIsNotBusy(t *testing.T, r rig, file string) {
	for call, err := range overErrors(t, r, file) {
		if errors.Is(err, ErrBusy) {
			t.Errorf("%s: %v", call, err)
		}
	}
	wantDevice(t, r, file, false, "")
}
