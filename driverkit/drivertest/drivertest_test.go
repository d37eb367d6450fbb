package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// world has the arrays and mounts that outlive drivers, by directory.
type world struct {
	mu     sync.Mutex
	arrays map[string]*testarray.Array
	mounts map[string]*mount.Fake
}

func newWorld() *world {
	return &world{arrays: map[string]*testarray.Array{}, mounts: map[string]*mount.Fake{}}
}

// driver is a New for a driver that is made of the array in dir.
func (w *world) driver(parts func(*testarray.Array) any) New {
	return func(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.arrays[dir] == nil {
			w.arrays[dir], w.mounts[dir] = testarray.New(dir, NodeID, otherNode), &mount.Fake{}
		}
		o := driverkit.NewOptions("array.example.com")
		o.Support.Block, o.Support.Clones = true, true
		o.Mounter, o.Filesystems = w.mounts[dir], &filesystem.Fake{Mounts: w.mounts[dir]}
		return o, testarray.Driver(parts(w.arrays[dir])), nil
	}
}

// place is a topology that csi-sanity would not recognise but for withSize.
func place() driverkit.Segments {
	return driverkit.Segments{"topology.array.example.com/zone": strings.Repeat("z", 63), "topology.array.example.com/rack": strings.Repeat("r", 63)}
}

// placed has snapshots with a topology.
type placed struct{ *testarray.Array }

func (p placed) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	made, err := p.Array.CreateSnapshot(ctx, req)
	if err == nil {
		made.Topology = []driverkit.Segments{place()}
	}
	return made, err
}

// TestArray runs everything against a driver that does everything right.
func TestArray(t *testing.T) {
	array := newWorld().driver(func(a *testarray.Array) any { return placed{a} })
	Run(t, func(t testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
		o, d, err := array(t, dir)
		o.TopologyKeys, o.Topology = slices.Sorted(maps.Keys(place())), place()
		return o, d, err
	}, Secrets(map[string]string{"password": "swordfish"}), Inline(map[string]string{"size": "4194304"}), Mutable(map[string]string{"iops": "7"}), OtherNode(otherNode))
}

// TestBlock walks with raw block volumes.
func TestBlock(t *testing.T) {
	Run(t, newWorld().driver(func(a *testarray.Array) any { return a }), Block(), NoSanity())
}

// bug is a mistake that a driver's author can make, and what the tests print about it.
type bug struct {
	parts  func(*testarray.Array) any
	prints string
	// part is the test that finds it, empty for the first one that does.
	part string
}

// otherNode is a node of the array on which no driver runs.
const otherNode = "other-node"

var errBroken = errors.New("broken")

type (
	ignoresNames   struct{ *testarray.Array }
	deletesOnce    struct{ *testarray.Array }
	keepsVolumes   struct{ *testarray.Array }
	hidesNotFound  struct{ *testarray.Array }
	ignoresAfter   struct{ *testarray.Array }
	mountsNothing  struct{ *testarray.Array }
	keepsStages    struct{ *testarray.Array }
	attachesOnce   struct{ *testarray.Array }
	stagesOnce     struct{ *testarray.Array }
	forgetsDevices struct{ *testarray.Array }
	emptyCopies    struct{ *testarray.Array }
	lateSnapshots  struct{ *testarray.Array }
	onlySaysLarger struct{ *testarray.Array }
	keepsSize      struct{ *testarray.Array }
	detachesAll    struct{ *testarray.Array }
	hidesNodes     struct{ *testarray.Array }
	keepsSnapshots struct{ *testarray.Array }
	leaksSnapshots struct{ *testarray.Array }
	twoCreations   struct{ *testarray.Array }
	twoSnapshots   struct{ *testarray.Array }
)

func (b emptyCopies) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	other := *req
	other.Source = nil
	v, err := b.Array.Create(ctx, &other)
	if err == nil {
		v.Source = req.Source
	}
	return v, err
}

func (b lateSnapshots) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	other := *req
	if req.Source != nil && req.Source.Snapshot != "" {
		s, err := b.GetSnapshot(ctx, &driverkit.GetSnapshotRequest{ID: req.Source.Snapshot})
		if err != nil {
			return nil, err
		}
		other.Source = &driverkit.Source{Volume: s.Volume} // as it is now
	}
	return b.Array.Create(ctx, &other)
}

func (b onlySaysLarger) ExpandOnNode(context.Context, *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	return &driverkit.NodeExpanded{}, nil
}

func (b keepsSize) Expand(_ context.Context, req *driverkit.ExpandRequest) (*driverkit.Expanded, error) {
	return &driverkit.Expanded{Size: req.Size.Required}, nil
}

func (b detachesAll) Detach(ctx context.Context, req *driverkit.DetachRequest) error {
	other := *req
	other.Node = ""
	return b.Array.Detach(ctx, &other)
}

func (b hidesNodes) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	v, err := b.Array.Get(ctx, req)
	if err == nil {
		v.Nodes = nil
	}
	return v, err
}

func (b keepsSnapshots) DeleteSnapshot(context.Context, *driverkit.DeleteSnapshotRequest) error {
	return nil
}

// DeleteSnapshot hides the snapshot from GetSnapshot alone.
func (b leaksSnapshots) DeleteSnapshot(context.Context, *driverkit.DeleteSnapshotRequest) error {
	return nil
}

func (b leaksSnapshots) GetSnapshot(ctx context.Context, req *driverkit.GetSnapshotRequest) (*driverkit.Snapshot, error) {
	s, err := b.Array.GetSnapshot(ctx, req)
	if err == nil && time.Since(s.Created) > 0 {
		return s, driverkit.NotFound("snapshot", req.ID)
	}
	return s, err
}

// Create notes the name after the volume was made.
func (b twoCreations) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	names := b.Dir + "/.names-" + req.Name
	if id, err := os.ReadFile(names); err == nil {
		return b.Get(ctx, &driverkit.GetRequest{ID: string(id)})
	}
	other := *req
	other.Name += fmt.Sprint(time.Now().UnixNano())
	v, err := b.Array.Create(ctx, &other)
	if err != nil {
		return nil, err
	}
	driverkit.FaultPoint(ctx, "made")
	return v, os.WriteFile(names, []byte(v.ID), 0o600)
}

// CreateSnapshot notes the name after the snapshot was made.
func (b twoSnapshots) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	names := b.Dir + "/.names-" + req.Name
	if id, err := os.ReadFile(names); err == nil {
		return b.GetSnapshot(ctx, &driverkit.GetSnapshotRequest{ID: string(id)})
	}
	other := *req
	other.Name += fmt.Sprint(time.Now().UnixNano())
	s, err := b.Array.CreateSnapshot(ctx, &other)
	if err != nil {
		return nil, err
	}
	driverkit.FaultPoint(ctx, "made")
	return s, os.WriteFile(names, []byte(s.ID), 0o600)
}

func (b ignoresNames) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	other := *req
	other.Name += fmt.Sprint(b.free())
	return b.Array.Create(ctx, &other)
}

func (b ignoresNames) free() int64 {
	capacity, _ := b.Capacity(context.Background(), nil)
	return capacity.Available
}

func (b deletesOnce) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	if _, err := b.Get(ctx, &driverkit.GetRequest{ID: req.ID}); err != nil {
		return errBroken
	}
	return b.Array.Delete(ctx, req)
}

func (b keepsVolumes) Delete(context.Context, *driverkit.DeleteRequest) error { return nil }

func (b hidesNotFound) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	v, err := b.Array.Get(ctx, req)
	if err != nil {
		return nil, errBroken
	}
	return v, nil
}

func (b ignoresAfter) List(ctx context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	return b.Array.List(ctx, &driverkit.ListRequest{Limit: req.Limit})
}

func (b mountsNothing) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	_, err := b.Array.Stage(ctx, req)
	return &driverkit.Staged{Mounted: true}, err
}

func (b keepsStages) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

func (b attachesOnce) Attach(ctx context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	if v, err := b.Get(ctx, &driverkit.GetRequest{ID: req.ID}); err == nil && len(v.Nodes) > 0 {
		return nil, errBroken
	}
	return b.Array.Attach(ctx, req)
}

func (b stagesOnce) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	v, err := b.Get(ctx, &driverkit.GetRequest{ID: req.ID})
	if err != nil {
		return nil, err
	}
	marker := b.Dir + "/." + v.ID
	if _, err := os.Stat(marker); err == nil {
		return nil, errBroken
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return nil, err
	}
	return b.Array.Stage(ctx, req)
}

func (b forgetsDevices) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	_, err := b.Array.Stage(ctx, req)
	return &driverkit.Staged{}, err
}

func bugs() map[string]bug {
	return map[string]bug{
		"IgnoresNames":   {func(a *testarray.Array) any { return ignoresNames{a} }, "create the same name again", ""},
		"ForgetsVolumes": {func(a *testarray.Array) any { return testarray.New(a.Dir, NodeID, otherNode) }, "after a restart of the driver", ""},
		"DeletesOnce":    {func(a *testarray.Array) any { return deletesOnce{a} }, "call 2: broken", ""},
		"KeepsVolumes":   {func(a *testarray.Array) any { return keepsVolumes{a} }, "left behind: volume", ""},
		"HidesNotFound":  {func(a *testarray.Array) any { return hidesNotFound{a} }, "want driverkit.NotFound", ""},
		"IgnoresAfter":   {func(a *testarray.Array) any { return ignoresAfter{a} }, "in pages of one", ""},
		"MountsNothing":  {func(a *testarray.Array) any { return mountsNothing{a} }, "returned Mounted, but nothing is mounted", "Walk"},
		"KeepsStages":    {func(a *testarray.Array) any { return keepsStages{a} }, "in use", ""},
		"AttachesOnce":   {func(a *testarray.Array) any { return attachesOnce{a} }, "attach: rpc error", ""},
		"StagesOnce":     {func(a *testarray.Array) any { return stagesOnce{a} }, "stage: rpc error", "Walk"},
		"EmptyCopies":    {func(a *testarray.Array) any { return emptyCopies{a} }, `a volume restored from a snapshot has "", want "first"`, ""},
		"LateSnapshots":  {func(a *testarray.Array) any { return lateSnapshots{a} }, `a volume restored from a snapshot has "second", want "first"`, ""},
		"OnlySaysLarger": {func(a *testarray.Array) any { return onlySaysLarger{a} }, "bytes after its expansion to", ""},
		"KeepsSize":      {func(a *testarray.Array) any { return keepsSize{a} }, "after its expansion", ""},
		"DetachesAll":    {func(a *testarray.Array) any { return detachesAll{a} }, `want Nodes ["other-node"]`, ""},
		"HidesNodes":     {func(a *testarray.Array) any { return hidesNodes{a} }, `want Nodes ["drivertest-node"]`, ""},
		"KeepsSnapshots": {func(a *testarray.Array) any { return keepsSnapshots{a} }, "after its deletion: <nil>", ""},
		"LeaksSnapshots": {func(a *testarray.Array) any { return leaksSnapshots{a} }, "left behind: snapshot", ""},
		"TwoCreations":   {func(a *testarray.Array) any { return twoCreations{a} }, "left behind: volume", ""},
		"TwoSnapshots":   {func(a *testarray.Array) any { return twoSnapshots{a} }, "left behind: snapshot", ""},
		"ForgetsDevices": {func(a *testarray.Array) any { return forgetsDevices{a} }, "must have one of Device, Directory and Mounted", "Walk"},
	}
}

// bugEnv is set in the processes of TestFindsBugs, and names their driver's bug.
const bugEnv = "DRIVERTEST_BUG"

// TestFindsBugs runs the contract and the walk against drivers with one bug each, in processes of their own: each must fail, and print why.
func TestFindsBugs(t *testing.T) {
	if name := os.Getenv(bugEnv); name != "" {
		s := &settings{new: newWorld().driver(bugs()[name].parts), otherNode: otherNode}
		t.Run("Contract", s.contract)
		t.Run("Contents", s.contents)
		t.Run("Walk", s.walk)
		return
	}
	for name, b := range bugs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFindsBugs$/"+b.part, "-test.failfast")
			cmd.Env = append(os.Environ(), bugEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), b.prints) {
				t.Errorf("ended with %v; want a failure that prints %q:\n%s", err, b.prints, out)
			}
		})
	}
}
