package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	testNode = "node-1"
	gib      = 1 << 30
)

// world is a state directory, a mount table, and the pods' directories: what
// outlives a process.
type world struct {
	t        *testing.T
	ctx      context.Context // fixture of one test
	stateDir string
	pods     string
	mounter  mount.Mounter
	fake     *mount.Fake
	devices  loop.Devices
	fakeLoop *loop.Fake
	systems  filesystem.Filesystems
	fakeFS   *filesystem.Fake
	attach   bool
	offline  bool
	alone    bool // ExpandOnReconcile
	mutable  volume.Mutable
	limits   map[string]int64
	poolDirs map[string]string
	quotas   quota.Quotas
	fakeQ    *quota.Fake
	own      string
	step     Step
}

func newWorld(t *testing.T) *world {
	t.Helper()
	fake, fakeLoop := &mount.Fake{}, &loop.Fake{Dir: t.TempDir()}
	fakeFS, fakeQ := &filesystem.Fake{Mounts: fake, Loops: fakeLoop}, &quota.Fake{}
	return &world{
		t:        t,
		ctx:      klog.NewContext(t.Context(), klog.Logger{}),
		stateDir: filepath.Join(t.TempDir(), "state"),
		pods:     t.TempDir(),
		mounter:  fake,
		fake:     fake,
		devices:  fakeLoop,
		fakeLoop: fakeLoop,
		systems:  fakeFS,
		fakeFS:   fakeFS,
		own:      testNode,
		quotas:   fakeQ,
		fakeQ:    fakeQ,
	}
}

// system is one life of the driver in a world.
type system struct {
	*world
	pools   *volume.Pools
	volumes *Volumes
	node    *Node
}

// boot starts a controller and a node, as after a restart.
func (w *world) boot() *system {
	w.t.Helper()
	s, err := w.tryBoot()
	if err != nil {
		w.t.Fatalf("boot: %v", err)
	}
	return s
}

func (w *world) tryBoot() (*system, error) {
	pools := volume.NewPools(w.limits)
	volumes, err := OpenVolumes(w.ctx, VolumesConfig{
		StateDir: w.stateDir, PoolDirs: w.poolDirs, Placement: volume.Placement{Enabled: true, Own: w.own}, Pools: pools,
		MaxSize: 1 << 40, Attach: w.attach, ProtectUsed: true, Mounter: w.mounter, Quotas: w.quotas, Mutable: w.mutable, Step: w.step,
		OfflineExpansion: w.offline,
	})
	if err != nil {
		return nil, err
	}
	node, err := OpenNode(w.ctx, NodeConfig{
		StateDir: w.stateDir, PoolDirs: w.poolDirs, NodeID: testNode, Pools: pools,
		MaxSize: 1 << 40, Attach: w.attach, Mounter: w.mounter, Quotas: w.quotas, Devices: w.devices, Filesystems: w.systems, Step: w.step,
		ExpandOnReconcile: w.alone,
	})
	if err != nil {
		return nil, err
	}
	return &system{world: w, pools: pools, volumes: volumes, node: node}, nil
}

func writer() volume.Capability {
	return volume.Capability{Access: volume.AccessMount, Mode: volume.SingleNodeWriter}
}

func sharer() volume.Capability {
	return volume.Capability{Access: volume.AccessMount, Mode: volume.SingleNodeMultiWriter}
}

func blockWriter() volume.Capability {
	return volume.Capability{Access: volume.AccessBlock, Mode: volume.SingleNodeWriter}
}

func blockSharer() volume.Capability {
	return volume.Capability{Access: volume.AccessBlock, Mode: volume.SingleNodeMultiWriter}
}

// reboot loses what does not survive the machine.
func (w *world) reboot() {
	w.t.Helper()
	w.fake.Reboot()
	w.must(w.fakeLoop.Reboot())
}

func (w *world) staging(id volume.ID) string { return filepath.Join(w.pods, "staging-"+string(id)) }
func (w *world) target(id volume.ID) string  { return filepath.Join(w.pods, "target-"+string(id)) }

func (w *world) contents(id volume.ID) string { return w.contentsIn(w.stateDir, id) }

func (w *world) inlineContents(id volume.ID) string {
	return w.contentsIn(nodeDir(w.stateDir, testNode), id)
}

// contentsIn finds contents in the home of a pool, or else where they are
// without any.
func (w *world) contentsIn(root string, id volume.ID) string {
	for _, dir := range w.poolDirs {
		if found, err := filepath.Glob(filepath.Join(dir, "*", volumesDir, string(id))); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return filepath.Join(root, volumesDir, string(id))
}

func createRequest(name string) *volume.CreateRequest {
	return &volume.CreateRequest{Name: name, Range: volume.Range{Required: gib}, Capabilities: []volume.Capability{writer()}}
}

func (s *system) create(name string) *volume.Volume {
	s.t.Helper()
	v, err := s.volumes.Create(s.ctx, createRequest(name))
	if err != nil {
		s.t.Fatalf("create %s: %v", name, err)
	}
	return v
}

func (w *world) stageRequest(id volume.ID) *volume.StageRequest {
	return &volume.StageRequest{ID: id, Stage: volume.Stage{Path: w.staging(id), Capability: sharer()}}
}

func (w *world) targetRequest(id volume.ID) *volume.TargetRequest {
	return &volume.TargetRequest{ID: id, Target: volume.Target{Path: w.target(id), Source: w.staging(id), Capability: sharer()}}
}

func (w *world) inlineRequest(id volume.ID, attributes map[string]string) *volume.TargetRequest {
	return &volume.TargetRequest{
		ID:     id,
		Target: volume.Target{Path: w.target(id), Capability: writer()},
		Inline: &volume.InlineRequest{Attributes: attributes, Pod: "ns/pod"},
	}
}

// must stops the test at an error.
func (w *world) must(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

// files lists what lies in the state directory, without the lasting
// directories and lock files.
func (w *world) files() []string {
	w.t.Helper()
	found := w.inPools()
	for _, pattern := range []string{"records/*.json", "volumes/*", "snapshot-records/*.json", "snapshots/*", "group-records/*.json", "copies/*", "trash/*", "nodes/*/records/*.json", "nodes/*/volumes/*", "nodes/*/trash/*"} {
		matches, err := filepath.Glob(filepath.Join(w.stateDir, pattern))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, match := range matches {
			found = append(found, strings.TrimPrefix(match, w.stateDir+"/"))
		}
	}
	return found
}

func (w *world) writeFile(path, content string) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(content), 0o600))
}

// inPools lists what lies in the directories of pools.
func (w *world) inPools() []string {
	w.t.Helper()
	var found []string
	for pool, dir := range w.poolDirs {
		matches, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
		w.must(err)
		for _, match := range matches {
			found = append(found, pool+" "+strings.Join(strings.Split(match, "/")[strings.Count(dir, "/")+2:], "/"))
		}
	}
	return found
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func mountNothing() mount.Options { return mount.Options{} }
