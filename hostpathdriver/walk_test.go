package hostpathdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// walkPool is what the machines of a walk have.
const walkPool = 1 << 40

// setup is what makes drivers that are killed different.
type setup struct {
	// attach is --enable-attach.
	attach bool
	// pool keeps contents in the directory of a pool.
	pool bool
	// expansion is which side expands, and when.
	expansion expansion
	// nodeAlone kills a node, beside which a controller is another process.
	nodeAlone bool
}

// expansion is a form of volume expansion.
type expansion int

const (
	byBoth expansion = iota
	byController
	byNode
	offline
)

// apply sets the options of a form.
func (e expansion) apply(o *Options) {
	o.NoNodeExpansion, o.NoControllerExpansion, o.OfflineExpansion = e == byController, e == byNode, e == offline
}

// options are those of a driver that is killed, and of the one after it.
func (s setup) options(dir string) Options {
	o := NewOptions()
	o.NodeID, o.StateDir, o.Endpoint = "n1", filepath.Join(dir, "state"), "unix://"+filepath.Join(dir, "csi.sock")
	o.Capacity, o.Attach, o.Modify = map[string]int64{"pool": walkPool}, s.attach, true
	o.MutableParameters = []string{"iops"}
	s.expansion.apply(&o)
	if s.nodeAlone {
		o.Mode = ModeNode
	}
	o.reconcilePeriod = time.Hour // what nobody waits for has no fault points
	if s.pool {
		o.PoolDirs = map[string]string{"pool": filepath.Join(dir, "pool")}
	}
	return o
}

// kernel reports whether the walks use mounts and devices of the kernel, which
// outlive the process. Fakes do not, so that each kill is a reboot.
func kernel() bool { return os.Geteuid() == 0 }

// walker is a CO on a machine whose driver is killed.
type walker struct {
	*machine
	csi.ControllerClient
	csi.NodeClient
	csi.GroupControllerClient

	setup
	options Options
	// controller is that beside a node alone; nil for others.
	controller *grpc.ClientConn
	// child is the driver that is to be killed; nil once another has taken
	// its place. alive ends with it.
	child *exec.Cmd
	alive context.Context
	// ids are those that calls have answered, by name.
	ids map[string]string
	// deadlines are those of a driver that is not killed; nil for others. The
	// fakes are what it mounts and attaches with, without privileges.
	deadlines   *deadlines
	fakeMounts  *mount.Fake
	fakeDevices *loop.Fake
	// ready is what was done to use volumes, and is to be done again after
	// the machine was down.
	ready []act
}

func newWalker(t *testing.T, s setup) *walker {
	t.Helper()
	w := &walker{machine: newMachine(t), setup: s, ids: map[string]string{}}
	if kernel() {
		// SIGKILL loses nothing of what was written, so memory is disk enough,
		// and on every machine the same.
		w.must(nil, unix.Mount("tmpfs", w.dir, "tmpfs", 0, "size=1g,mode=0700"))
		t.Cleanup(func() {
			w.powerOff() // only when the test has failed there is something
			w.must(nil, unix.Unmount(w.dir, unix.MNT_DETACH))
		})
	}
	w.options = s.options(w.dir)
	for _, dir := range w.options.PoolDirs {
		w.must(nil, os.Mkdir(dir, 0o700))
	}
	if s.nodeAlone {
		o := w.options
		w.must(nil, equip(&o, w.dir, nil))
		o.Mode, o.Endpoint = ModeController, "unix://"+w.path("controller.sock")
		w.controller = w.start(o).conn
	}
	return w
}

// launch starts the driver that kills itself at a fault point, of those that
// come after arm.
func (w *walker) launch(at int) {
	w.t.Helper()
	w.must(nil, os.WriteFile(w.path("at"), nil, 0o600))
	w.child = w.machine.child("")
	w.child.Env = append(w.child.Env, fmt.Sprintf("%s=%d %t %t %d %t", killAtEnv, at, w.attach, w.pool, w.expansion, w.nodeAlone))
	w.must(nil, w.child.Start())
	var died context.CancelFunc
	w.alive, died = context.WithCancel(context.WithoutCancel(w.ctx))
	go func(child *exec.Cmd) {
		defer died()
		_ = child.Wait() // ProcessState tells
	}(w.child)
	fastRetry := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}
	conn, err := grpc.NewClient(w.options.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fastRetry, MinConnectTimeout: time.Minute}), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	w.must(nil, err)
	w.t.Cleanup(func() {
		_ = w.child == nil || w.child.Process.Kill() == nil // only when the test has failed it lives
		<-w.alive.Done()
		conn.Close()
	})
	w.use(conn)
}

// arm makes fault points count, for every driver from now on.
func (w *walker) arm() {
	w.t.Helper()
	w.must(nil, os.WriteFile(w.path("armed"), nil, 0o600))
}

func (w *walker) use(conn *grpc.ClientConn) {
	w.ControllerClient, w.NodeClient = csi.NewControllerClient(cmp.Or(w.controller, conn)), csi.NewNodeClient(conn)
	w.GroupControllerClient = csi.NewGroupControllerClient(conn)
}

// died tells at which fault point the child has died; empty when it lives.
func (w *walker) died() string {
	w.t.Helper()
	if w.child == nil || w.alive.Err() == nil {
		return ""
	}
	point := w.read("at")
	if killed, ok := w.child.ProcessState.Sys().(syscallStatus); !ok || !killed.Signaled() || point == "" {
		w.t.Fatalf("the driver ended by itself: %v: %s", w.child.ProcessState, w.child.Stderr)
	}
	w.child = nil
	return point
}

// syscallStatus is how a process has ended.
type syscallStatus interface{ Signaled() bool }

// interrupted returns the fault point at which the child has died or the
// deadline of the call has passed; empty when neither has happened.
func (w *walker) interrupted() string {
	w.t.Helper()
	if w.deadlines != nil {
		return w.deadlines.passed()
	}
	return w.died()
}

// attempt repeats a call until it has an answer, or was interrupted.
func (w *walker) attempt(a act) (point string, err error) {
	for {
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		stop := func() bool { return true }
		if w.child != nil {
			stop = context.AfterFunc(w.alive, cancel)
		}
		err := a.call(ctx, w)
		stop()
		cancel()
		if err != nil {
			if point := w.interrupted(); point != "" {
				return point, nil
			}
		}
		if again := status.Code(err); (again == codes.Aborted || again == codes.Unavailable) && w.ctx.Err() == nil {
			continue // where that is because it dies, the next call is canceled
		}
		if err == nil {
			w.note(a)
		}
		return "", err
	}
}

// note keeps what is to be done again after the machine was down, in order.
func (w *walker) note(a act) {
	w.ready = slices.DeleteFunc(w.ready, func(r act) bool { return r.on == a.on && r.name == a.ends })
	noted := slices.ContainsFunc(w.ready, func(r act) bool { return r.on == a.on && r.name == a.name })
	if a.remakes && !noted {
		w.ready = append(w.ready, a)
	}
}

// restart starts the driver again, in this process, and looks whether records,
// disk, devices and mounts agree then.
func (w *walker) restart(reboot bool) {
	w.t.Helper()
	if reboot {
		w.powerOff()
	}
	o := w.options
	w.must(nil, equip(&o, w.dir, nil))
	w.use(w.start(o).conn)
	w.checkAgreement()
}

// powerOff takes away all that does not outlive a machine. Fakes have gone with
// their process.
func (w *walker) powerOff() {
	w.t.Helper()
	if !kernel() {
		return
	}
	for _, path := range slices.Backward(w.mounts()) {
		w.must(nil, unix.Unmount(path, unix.MNT_DETACH))
	}
	for _, pattern := range []string{"state/volumes/*/disk", "state/nodes/n1/volumes/*/disk", "pool/volumes/*/disk", "pool/nodes/n1/volumes/*/disk"} {
		for _, file := range w.glob(pattern) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
			w.must(nil, errors.Join(loop.Kernel{}.Detach(ctx, file, false), loop.Kernel{}.Detach(ctx, file, true)))
			cancel()
		}
	}
}

// mounts returns the mount points below the machine's directory, the oldest
// first.
func (w *walker) mounts() []string {
	w.t.Helper()
	if w.fakeMounts != nil {
		return w.fakeMounts.Targets()
	}
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	w.must(nil, err)
	var paths []string
	for _, m := range found {
		if m.Mountpoint != w.dir {
			paths = append(paths, m.Mountpoint)
		}
	}
	return paths
}

// devices returns the files of the machine that loop devices show, but for those that are released.
func (w *walker) devices() []string {
	if w.fakeDevices == nil {
		return w.loopDevices("0")
	}
	var shown []string
	for _, device := range w.fakeDevices.Table() {
		shown = append(shown, device.File)
	}
	return shown
}

// loopDevices returns the files of the machine that loop devices of the kernel show. One with autoclear "1" was released, and goes with its last user: any
// program that looks at all devices just then.
func (w *walker) loopDevices(autoclear string) []string {
	var shown []string
	for _, name := range w.globAt("/sys/block/loop*/loop/backing_file") {
		text, err := os.ReadFile(name)
		released, clearErr := os.ReadFile(filepath.Join(filepath.Dir(name), "autoclear"))
		file := strings.TrimSpace(string(text))
		if err == nil && clearErr == nil && strings.HasPrefix(file, w.dir+"/") && strings.TrimSpace(string(released)) == autoclear {
			shown = append(shown, file)
		}
	}
	return shown
}

// awaitReleases waits until the devices that were released are gone.
func (w *walker) awaitReleases() {
	w.t.Helper()
	for kernel() && len(w.loopDevices("1")) > 0 {
		select {
		case <-w.ctx.Done():
			w.t.Errorf("waited in vain for the end of released devices of %v", w.loopDevices("1"))
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *walker) glob(pattern string) []string { return w.globAt(w.path(pattern)) }

func (w *walker) globAt(pattern string) []string {
	w.t.Helper()
	found, err := filepath.Glob(pattern)
	w.must(nil, err)
	return found
}

// names are the files that a pattern finds, without directory and suffix.
func (w *walker) names(pattern string) []string {
	var names []string
	for _, path := range w.glob(pattern) {
		names = append(names, strings.TrimSuffix(filepath.Base(path), ".json"))
	}
	return names
}

// checkAgreement compares what there is of each volume and snapshot on disk, in
// the mount table and in the device table, and what is charged for it.
func (w *walker) checkAgreement() {
	w.t.Helper()
	for records, contents := range map[string]string{"records/*.json": "volumes/*", "snapshot-records/*.json": "snapshots/*"} {
		got := append(w.names("state/"+contents), w.names("pool/"+contents)...)
		got = slices.DeleteFunc(got, func(name string) bool { return strings.HasPrefix(name, inlinePrefix) })
		slices.Sort(got)
		if want := w.names("state/" + records); !slices.Equal(want, got) {
			w.t.Errorf("records of %v, contents of %v", want, got)
		}
	}
	if trash := slices.Concat(w.glob("state/trash/*"), w.glob("state/nodes/n1/trash/*"), w.glob("pool/trash/*"), w.glob("pool/nodes/n1/trash/*")); len(trash) > 0 {
		w.t.Errorf("in the trash after a start: %v", trash)
	}
	w.checkClaims()
	charged, _ := w.nodeRecords()
	w.checkCharge(charged)
}

// used is what a walk reads of the record of a volume on the node.
type used struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	Root string `json:"root"`

	Inline *struct{ Size int64 } `json:"inline"`
}

func (u used) RecordID() string { return u.ID }

// journaled is what a walk reads of the journal of driverkit.
type journaled struct {
	ID      string                  `json:"id"`
	Stage   *struct{ Path string }  `json:"stage"`
	Targets []struct{ Path string } `json:"targets"`
}

// nodeRecords returns what inline volumes take from the pool, and the paths
// that may be mounted or attached.
func (w *walker) nodeRecords() (charged int64, places map[string]bool) {
	w.t.Helper()
	places = map[string]bool{}
	uses := state.View[used](w.path("state/nodes/n1/uses"), "use")
	for _, id := range w.names("state/nodes/n1/uses/*.json") {
		known, err := uses.Get(id)
		w.must(nil, err)
		if known.Inline != nil {
			charged += known.Inline.Size
		}
		places[filepath.Join(known.Root, "volumes", id, "disk")] = true
		places[w.path("state/nodes/n1/prepare/"+id)] = true
	}
	journal := state.View[journaled](w.path("state/nodes/n1/journal"), "NodeVolume")
	for _, name := range w.names("state/nodes/n1/journal/*.json") {
		known, err := journal.Get(name)
		w.must(nil, err)
		if known.Stage != nil {
			places[known.Stage.Path] = true
		}
		for _, target := range known.Targets {
			places[target.Path] = true
		}
	}
	return charged, places
}

// checkCharge compares the free space of the pool with what is listed, and
// what else is charged.
func (w *walker) checkCharge(charged int64) {
	w.t.Helper()
	volumes, snapshots := w.list()
	for _, v := range volumes {
		charged += v.GetCapacityBytes()
	}
	for _, s := range snapshots {
		charged += s.GetSizeBytes()
	}
	left, err := w.GetCapacity(w.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity()+charged != walkPool {
		w.t.Errorf("%d bytes are charged, left are %v, %v", charged, left, err)
	}
}

func (w *walker) list() (volumes []*csi.Volume, snapshots []*csi.Snapshot) {
	w.t.Helper()
	v, err := w.ListVolumes(w.ctx, &csi.ListVolumesRequest{})
	w.must(v, err)
	for _, entry := range v.GetEntries() {
		volumes = append(volumes, entry.GetVolume())
	}
	s, err := w.ListSnapshots(w.ctx, &csi.ListSnapshotsRequest{})
	w.must(s, err)
	for _, entry := range s.GetEntries() {
		snapshots = append(snapshots, entry.GetSnapshot())
	}
	return volumes, snapshots
}

// sweep deletes what a CO that has given up does not know of. What is the
// source of a copy goes when that is gone.
func (w *walker) sweep() {
	w.t.Helper()
	for w.ctx.Err() == nil {
		volumes, snapshots := w.list()
		if len(volumes)+len(snapshots) == 0 {
			return
		}
		groups := map[string][]string{}
		var err error
		for _, s := range snapshots {
			if group := s.GetGroupSnapshotId(); group != "" {
				groups[group] = append(groups[group], s.GetSnapshotId())
				continue
			}
			_, err = w.DeleteSnapshot(w.ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshotId()})
			w.mayWait(err)
		}
		for group, members := range groups {
			_, err = w.DeleteVolumeGroupSnapshot(w.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group, SnapshotIds: members})
			w.mayWait(err)
		}
		for _, v := range volumes {
			_, err = w.DeleteVolume(w.ctx, &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
			w.mayWait(err)
		}
	}
}

// mayWait accepts the answers of what is in use by a copy.
func (w *walker) mayWait(err error) {
	w.t.Helper()
	if code := status.Code(err); code != codes.OK && code != codes.Aborted && code != codes.FailedPrecondition {
		w.t.Fatal(err)
	}
}

// retire replaces a driver that was not killed by one without faults, and lets no deadline pass any more.
func (w *walker) retire() {
	w.t.Helper()
	if w.deadlines != nil {
		w.deadlines.end()
	}
	if w.child == nil {
		return
	}
	w.must(nil, w.child.Process.Signal(unix.SIGTERM))
	<-w.alive.Done()
	if !w.child.ProcessState.Success() {
		w.t.Errorf("end of the driver: %v: %s", w.child.ProcessState, w.child.Stderr)
	}
	w.child = nil
	w.restart(false)
}

// finish looks for everything that may be left.
func (w *walker) finish() {
	w.t.Helper()
	w.retire()
	w.checkCharge(0)
	w.awaitReleases()
	left := append(w.mounts(), w.devices()...)
	for _, pattern := range []string{
		"records/*.json", "volumes/*", "snapshot-records/*.json", "snapshots/*", "group-records/*.json", "copies/*", "trash/*",
		"nodes/*/journal/*.json", "nodes/*/uses/*.json", "nodes/*/volumes/*", "nodes/*/trash/*", "nodes/*/prepare/*",
	} {
		left = append(left, w.glob("state/"+pattern)...)
		left = append(left, w.glob("pool/"+pattern)...)
	}
	left = append(left, w.glob("*-target")...)
	if len(left) > 0 {
		w.t.Errorf("left behind: %v", left)
	}
}
