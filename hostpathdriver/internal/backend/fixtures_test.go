package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNode = "node-1"
	mib      = 1 << 20
	gib      = 1 << 30
)

var errTest = errors.New("error of the test")

// world is what outlives a process: directories, mounts and devices.
type world struct {
	t      *testing.T
	ctx    context.Context // That of one test.
	dir    string
	mounts *mount.Fake
	loops  *loop.Fake
	disks  *filesystem.Fake
	// limits of the pools.
	limits map[string]int64
	// config is changed before a start.
	config ControllerConfig
	node   NodeConfig
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, ctx: klog.NewContext(t.Context(), klog.Logger{}), dir: t.TempDir(), mounts: &mount.Fake{}, loops: &loop.Fake{}}
	w.loops.Dir = w.path("dev")
	w.must(os.Mkdir(w.loops.Dir, 0o700))
	w.loops.HoldMounted(w.mounts.HasFilesystem)
	w.disks = &filesystem.Fake{Mounts: w.mounts, Look: w.loops.Look}
	w.config.Config = Config{StateDir: w.path("state"), MaxSize: 10 * gib, NodeID: testNode, Mounter: w.mounts, Devices: w.loops, Filesystems: w.disks, Patience: time.Hour}
	w.config.Mutable = volume.Mutable{Enabled: true, Names: []string{"tier"}}
	w.config.NodeExpansion = true
	return w
}

func (w *world) path(elements ...string) string {
	return filepath.Join(append([]string{w.dir}, elements...)...)
}

func (w *world) state(elements ...string) string {
	return filepath.Join(append([]string{w.config.StateDir}, elements...)...)
}

func (w *world) must(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) want(what string, err, want error) {
	w.t.Helper()
	if !errors.Is(err, want) {
		w.t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// start starts a controller, as a new process does.
func (w *world) start() *Controller {
	w.t.Helper()
	w.config.Pools = volume.NewPools(w.limits)
	c := NewController(w.config)
	w.must(c.Open(w.ctx))
	w.t.Cleanup(c.Close)
	return c
}

// startNode starts a node that shares its pools with the controller started last.
func (w *world) startNode() *Node {
	w.t.Helper()
	if w.config.Pools == nil {
		w.config.Pools = volume.NewPools(w.limits)
	}
	w.node.Config = w.config.Config
	n := NewNode(w.node)
	w.must(n.Open(w.ctx))
	w.t.Cleanup(n.Close)
	return n
}

// create makes a volume.
func (w *world) create(c *Controller, change func(r *driverkit.CreateRequest)) *driverkit.Volume {
	w.t.Helper()
	v, err := c.Create(w.ctx, request("pvc-1", change))
	w.must(err)
	return v
}

func request(name string, changes ...func(r *driverkit.CreateRequest)) *driverkit.CreateRequest {
	r := &driverkit.CreateRequest{Name: name, Size: driverkit.Range{Required: mib}, Capabilities: []driverkit.Capability{mounted()}}
	for _, change := range changes {
		if change != nil {
			change(r)
		}
	}
	return r
}

// createInline and modify return the error alone.
func (w *world) createInline(n *Node, req *driverkit.InlineRequest) error {
	_, err := n.CreateInline(w.ctx, req)
	return err
}

func (w *world) modify(c *Controller, req *driverkit.ModifyRequest) error {
	_, err := c.Modify(w.ctx, req)
	return err
}

func mounted() driverkit.Capability { return driverkit.Capability{Mode: driverkit.SingleNodeWriter} }

func raw() driverkit.Capability {
	return driverkit.Capability{Mode: driverkit.SingleNodeWriter, Block: true}
}

func ext4() driverkit.Capability {
	return driverkit.Capability{Mode: driverkit.SingleNodeWriter, FSType: "ext4"}
}

func asDevice(r *driverkit.CreateRequest) { r.Capabilities = []driverkit.Capability{raw()} }
func asImage(r *driverkit.CreateRequest)  { r.Capabilities = []driverkit.Capability{ext4()} }

func named(name string) func(r *driverkit.CreateRequest) {
	return func(r *driverkit.CreateRequest) { r.Name = name }
}

func inPool(pool string) func(r *driverkit.CreateRequest) {
	return func(r *driverkit.CreateRequest) { r.Parameters = map[string]string{"kind": pool} }
}

func ofVolume(id string) func(r *driverkit.CreateRequest) {
	return func(r *driverkit.CreateRequest) { r.Source, r.Size = &driverkit.Source{Volume: id}, driverkit.Range{} }
}

func ofSnapshot(id string) func(r *driverkit.CreateRequest) {
	return func(r *driverkit.CreateRequest) {
		r.Source, r.Size = &driverkit.Source{Snapshot: id}, driverkit.Range{}
	}
}

func (w *world) snapshot(c *Controller, name, of string) *driverkit.Snapshot {
	w.t.Helper()
	s, err := c.CreateSnapshot(w.ctx, &driverkit.CreateSnapshotRequest{Name: name, Volume: of})
	w.must(err)
	return s
}

func (w *world) delete(c *Controller, id string) error {
	return c.Delete(w.ctx, &driverkit.DeleteRequest{ID: id})
}

func (w *world) deleteSnapshot(c *Controller, id string) error {
	return c.DeleteSnapshot(w.ctx, &driverkit.DeleteSnapshotRequest{ID: id})
}

// left is the space that is left of a pool on this node.
func (w *world) left(c *Controller, kind string) int64 {
	w.t.Helper()
	left, err := c.pools(testNode).Capacity(kind)
	w.must(err)
	return left.Available
}

func (w *world) wantLeft(c *Controller, kind string, want int64) {
	w.t.Helper()
	if got := w.left(c, kind); got != want {
		w.t.Errorf("%d bytes of pool %q are left, want %d", got, kind, want)
	}
}

func (w *world) write(path, content string) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
}

func (w *world) read(path string) string {
	w.t.Helper()
	data, err := os.ReadFile(path)
	w.must(err)
	return strings.TrimRight(string(data), "\x00")
}

// objects are the records and contents below the state directory and the pools, but for what belongs to nodes, and space that is set aside.
func (w *world) objects(dirs ...string) []string {
	w.t.Helper()
	var found []string
	for _, root := range append([]string{w.config.StateDir}, dirs...) {
		w.must(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.Name() == nodesDir {
				return fs.SkipDir
			}
			if rest, _ := filepath.Rel(w.dir, path); strings.Count(rest, "/") >= 2 && entry.Name() != ".spare" {
				found = append(found, rest)
			}
			return nil
		}))
	}
	return found
}

func (w *world) wantNothing(dirs ...string) {
	w.t.Helper()
	if left := w.objects(dirs...); len(left) > 0 {
		w.t.Errorf("left: %v", left)
	}
}

func diff[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// fault panics or fails at a step, once.
type fault struct {
	at   string
	do   func()
	seen []string
}

func (f *fault) step(name string) {
	f.seen = append(f.seen, name)
	if name == f.at && f.do != nil {
		do := f.do
		f.do = nil
		do()
	}
}

// killed reports whether a call ended as that of a process that was killed: by a panic, also of its work in the background.
func killed(call func() error) (dead bool, err error) {
	defer func() {
		if recover() != nil {
			dead = true
		}
	}()
	err = call()
	return err != nil && strings.Contains(err.Error(), "internal error: killed"), err
}
