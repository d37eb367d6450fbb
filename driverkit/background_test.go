package driverkit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
	"github.com/longshore-csi/longshore/driverkit/state"
)

var errTest = errors.New("error of the test")

// brief returns a context that ends soon.
func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestBackground has calls that end before their work.
func TestBackground(t *testing.T) {
	var b driverkit.Background
	const key = "copy of a volume"
	for _, failure := range []error{nil, errTest} {
		release, begun := make(chan struct{}), 0
		work := func(ctx context.Context) error {
			begun++
			<-release
			if ctx.Err() != nil {
				t.Errorf("the context of the work has ended: %v", ctx.Err())
			}
			return failure
		}
		if err := b.Start(t.Context(), key, work, "source"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Do(brief(t), key, work); !errors.Is(err, driverkit.ErrRunning) || !strings.Contains(err.Error(), key+": it runs for") {
				t.Errorf("error %v, want one that says what is running", err)
			}
		}
		if by := b.User("source"); by != key {
			t.Errorf("the source is used by %q, want %q", by, key)
		}
		close(release)
		if err := b.Wait(t.Context(), key); !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
		if by := b.User("source"); by != "" || begun != 1 {
			t.Errorf("the source is used by %q, work was begun %d times", by, begun)
		}
		if err := b.Wait(t.Context(), key); err != nil {
			t.Errorf("an error is returned twice: %v", err)
		}
	}
}

// TestBackgroundKeepsErrors: an error for which no call waits is the answer of the next call.
func TestBackgroundKeepsErrors(t *testing.T) {
	var b driverkit.Background
	const uses = "source"
	if err := b.Start(t.Context(), "copy", func(context.Context) error { return errTest }, uses); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); b.User(uses) != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the work does not end")
		}
	}
	again := func(context.Context) error {
		t.Error("the work begins again although its error is not known")
		return nil
	}
	if err := b.Do(t.Context(), "copy", again); !errors.Is(err, errTest) {
		t.Errorf("error %v, want %v", err, errTest)
	}
	if err := b.Do(t.Context(), "copy", func(context.Context) error { panic("in the work") }); err == nil || !strings.Contains(err.Error(), "internal error: in the work") {
		t.Errorf("error %v, want that of a panic", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Do(ended, "copy", again); !errors.Is(err, driverkit.ErrBusy) {
		t.Errorf("a call that is over: %v", err)
	}
}

// TestBackgroundClose ends the contexts of work, and waits.
func TestBackgroundClose(t *testing.T) {
	var b driverkit.Background
	stuck := make(chan struct{})
	work := func(ctx context.Context) error { <-ctx.Done(); <-stuck; return ctx.Err() }
	if err := b.Start(t.Context(), "check", work); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(brief(t)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "check: it runs for") {
		t.Errorf("error %v, want one that says what is running", err)
	}
	close(stuck)
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Wait(t.Context(), "check"); !errors.Is(err, driverkit.ErrBusy) {
		t.Errorf("work that was cut short: %v", err)
	}
	if err := b.Start(t.Context(), "check", work); !errors.Is(err, driverkit.ErrBusy) {
		t.Errorf("work begins after Close: %v", err)
	}
}

// slowFiles is a Filesystems in which a mount takes until a test says how it ends, as with a check.
type slowFiles struct {
	*filesystem.Fake
	mounts sync.Map // by target, of chan error
	begun  chan string
}

// Mount implements filesystem.Filesystems.
func (f *slowFiles) Mount(ctx context.Context, device, target string, o filesystem.Options) error {
	end, slow := f.mounts.Load(target)
	if !slow {
		return f.Fake.Mount(ctx, device, target, o)
	}
	f.begun <- target
	if err := <-end.(chan error); err != nil { //nolint:forcetypeassert // see above
		return err
	}
	return f.Fake.Mount(ctx, device, target, o)
}

// TestSlowMount has a file system checked for longer than calls take: the check goes on, and neither begins again nor loses its device.
func TestSlowMount(t *testing.T) {
	files := &slowFiles{begun: make(chan string, 1)}
	// The calls that do not wait for the end of the check have no deadline of their own, so that the answer of the driver is seen.
	b := prepareBench(t, func(o *driverkit.Options) { o.Filesystems, o.CallTimeout = files, 300*time.Millisecond })
	files.Fake = b.files
	b.start(b.array)
	for n, failure := range []error{nil, errTest} {
		v := b.create(fmt.Sprint("pvc-", n))
		req := b.stageRequest(v)
		end := make(chan error)
		files.mounts.Store(req.GetStagingTargetPath(), end)
		running := func(what string, call func() error) {
			t.Helper()
			for end := time.Now().Add(patience); ; { // on a slow machine a call may end before it begins something
				err := call()
				wantCode(t, what, err, codes.Aborted)
				if err != nil && strings.Contains(err.Error(), "runs for") {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("%s: %v, want what runs", what, err)
				}
			}
		}
		stage := func() error { _, err := b.NodeStageVolume(t.Context(), req); return err }
		running("stage", stage)
		<-files.begun
		running("stage again", stage)
		running("unstage", func() error {
			_, err := b.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()})
			return err
		})
		running("publish", func() error { _, err := b.NodePublishVolume(t.Context(), b.publishRequest(v, "pod")); return err })
		end <- failure
		files.mounts.Delete(req.GetStagingTargetPath())
		_, err := b.NodeStageVolume(ctxOf(t), req)
		if failure == nil {
			wantCode(t, "stage after the check", err, codes.OK)
			wantCode(t, "unstage", b.unstage(v), codes.OK)
		} else {
			wantCode(t, "stage after a check that has failed", err, codes.Internal)
		}
		if left := b.records(); left != 0 {
			t.Errorf("%d records are left", left)
		}
		wantCode(t, "delete", b.delete(v), codes.OK)
	}
}

// TestStopWhileWorkGoesOn: a driver that is stopped during a check says so, and keeps the state directory from the next one.
func TestStopWhileWorkGoesOn(t *testing.T) {
	files := &slowFiles{begun: make(chan string, 1)}
	b := prepareBench(t, nil)
	files.Fake = b.files
	o := driverkit.NewOptions("kit.example.com")
	o.Endpoint, o.NodeID, o.StateDir, o.Mounter, o.Filesystems = "unix://"+b.path("csi.sock"), "node-1", b.path("state"), b.mounts, files
	o.StopTimeout = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- driverkit.Serve(ctx, o, testarray.Driver(b.array)) }()
	conn, err := grpc.NewClient(o.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() // test
	b.ControllerClient, b.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	req := b.stageRequest(b.create("pvc-1"))
	end := make(chan error)
	files.mounts.Store(req.GetStagingTargetPath(), end)
	staged := make(chan error, 1)
	go func() {
		_, err := b.NodeStageVolume(ctxOf(t), req)
		staged <- err
	}()
	<-files.begun
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "stop while work goes on") || !strings.Contains(err.Error(), "runs for") {
		t.Errorf("stopped during a check: %v", err)
	}
	<-staged
	if err := driverkit.Serve(t.Context(), o, testarray.Driver(b.array)); !errors.Is(err, state.ErrLocked) {
		t.Errorf("another driver during the check: %v, want state.ErrLocked", err)
	}
	end <- errTest
}
