package backend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func (s *system) expand(id volume.ID, size int64) (*volume.Volume, error) {
	return s.volumes.Expand(s.ctx, &volume.ExpandRequest{ID: id, Range: volume.Range{Required: size}})
}

func (s *system) expandOnNode(id volume.ID, path string, size int64) (int64, error) {
	return s.node.Expand(s.ctx, &volume.NodeExpandRequest{ID: id, Path: path, Range: volume.Range{Required: size}})
}

// diskSize is the size of a block volume's file.
func (w *world) diskSize(id volume.ID) int64 {
	w.t.Helper()
	info, err := os.Stat(filepath.Join(w.contents(id), diskName))
	w.must(err)
	return info.Size()
}

// deviceSize is what the users of a fake device see.
func (w *world) deviceSize() int64 {
	w.t.Helper()
	table := w.fakeLoop.Table()
	if len(table) != 1 {
		w.t.Fatalf("devices %+v, want one", table)
	}
	return table[0].Size
}

// TestExpandADeviceInUse: the file grows first, then what the pods see.
func TestExpandADeviceInUse(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	_, err := s.expandOnNode(v.ID, w.target(v.ID), 2*gib)
	wantErr(t, "the node cannot begin", err, volume.ErrOutOfRange)
	for range 2 {
		after, err := s.expand(v.ID, 2*gib)
		w.must(err)
		if after.Capacity != 2*gib || !after.ExpandOnNode() || w.diskSize(v.ID) != 2*gib {
			t.Errorf("volume of %d bytes, on the node: %t, file of %d; want %d", after.Capacity, after.ExpandOnNode(), w.diskSize(v.ID), 2*gib)
		}
	}
	if got := w.deviceSize(); got != gib {
		t.Errorf("the device has %d bytes before the node was asked", got)
	}
	for _, path := range []string{w.target(v.ID), w.staging(v.ID)} {
		if size, err := s.expandOnNode(v.ID, path, 2*gib); size != 2*gib || err != nil {
			t.Errorf("%s: %d, %v", path, size, err)
		}
	}
	if got := w.deviceSize(); got != 2*gib {
		t.Errorf("the device has %d bytes, want %d", got, 2*gib)
	}
}

func TestExpandADirectory(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)))
	after, err := s.expand(v.ID, 3*gib)
	w.must(err)
	if after.Capacity != 3*gib || after.ExpandOnNode() {
		t.Errorf("volume of %d bytes, on the node: %t; want %d and false", after.Capacity, after.ExpandOnNode(), 3*gib)
	}
	if size, err := s.expandOnNode(v.ID, w.staging(v.ID), 0); size != 3*gib || err != nil {
		t.Errorf("asked all the same: %d, %v", size, err)
	}
	if stats, err := s.node.Stats(s.ctx, v.ID, w.staging(v.ID)); err != nil || stats.Bytes.Total != 3*gib {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if got, err := w.boot().volumes.Get(s.ctx, v.ID); err != nil || got.Capacity != 3*gib {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
}

// TestExpandIsCharged: in the Kubernetes project's driver a pool of 10 MiB has
// less than nothing left after a volume in it was expanded to 1 GiB.
func TestExpandIsCharged(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 4 * gib}
	s := w.boot()
	v := s.create("pvc-1")
	left := func() int64 {
		c, err := s.pools.Capacity("fast")
		w.must(err)
		return c.Available
	}
	_, err := s.expand(v.ID, 5*gib)
	wantErr(t, "beyond the pool", err, volume.ErrExhausted)
	if got := left(); got != 3*gib {
		t.Errorf("%d bytes are left after a refusal, want %d", got, 3*gib)
	}
	_, err = s.expand(v.ID, 4*gib)
	w.must(err)
	if got := left(); got != 0 {
		t.Errorf("%d bytes are left, want none", got)
	}
	s = w.boot()
	if got := left(); got != 0 {
		t.Errorf("%d bytes are left after a restart, want none", got)
	}
	w.must(s.volumes.Delete(s.ctx, v.ID))
	if got := left(); got != 4*gib {
		t.Errorf("%d bytes are left after all, want %d", got, 4*gib)
	}
}

func TestExpandRefusals(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	inline := w.inlineRequest("csi-1", nil)
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, inline))
	_, err := s.expand("unknown", gib)
	wantErr(t, "unknown volume", err, volume.ErrNotFound)
	_, err = s.expand(v.ID, 2<<40)
	wantErr(t, "beyond the driver", err, volume.ErrOutOfRange)
	_, err = s.expandOnNode("unknown", w.staging(v.ID), 0)
	wantErr(t, "unknown on the node", err, volume.ErrNotFound)
	_, err = s.expandOnNode(v.ID, w.target(v.ID), 0)
	wantErr(t, "at another path", err, volume.ErrNotFound)
	_, err = s.expandOnNode("csi-1", inline.Target.Path, 0)
	wantErr(t, "inline", err, volume.ErrInvalid)
	block := blockWriter()
	_, err = s.node.Expand(s.ctx, &volume.NodeExpandRequest{ID: v.ID, Path: w.staging(v.ID), Capability: &block})
	wantErr(t, "a directory is no device", err, volume.ErrInvalid)
	s.node.cfg.MaxExpandSize = gib / 2
	_, err = s.expandOnNode(v.ID, w.staging(v.ID), 0)
	wantErr(t, "beyond the node", err, volume.ErrOutOfRange)
}

// TestExpandUndoesItself: the file cannot be made larger, so the record and the
// pool stay as they were.
func TestExpandUndoesItself(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 4 * gib}
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(os.Remove(filepath.Join(w.contents(v.ID), diskName)))
	if _, err := s.expand(v.ID, 2*gib); err == nil {
		t.Error("a file that does not exist was made larger")
	}
	if got, err := w.boot().volumes.Get(s.ctx, v.ID); err != nil || got.Capacity != gib {
		t.Errorf("after the failure: %+v, %v", got, err)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != 3*gib {
		t.Errorf("left in the pool: %d, %v", c.Available, err)
	}
}

// TestSourceKeepsItsSizeWhileItIsCopied: the copy has the size of its record,
// which the pool is charged with.
func TestSourceKeepsItsSizeWhileItIsCopied(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 100 * gib}
	s := w.boot()
	v := s.createBlock("pvc-1")
	made, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "snapshot", Source: v.ID})
	w.must(err)
	_, err = s.expand(v.ID, 2*gib)
	wantErr(t, "expand while it is copied", err, volume.ErrBusy)
	w.must(s.copyAll())
	info, err := os.Stat(filepath.Join(w.snapshotContents(made.ID), diskName))
	w.must(err)
	if info.Size() != made.Size {
		t.Errorf("the snapshot has %d bytes, its record %d", info.Size(), made.Size)
	}
	clone := imageRequest("clone", "")
	clone.Capabilities, clone.Parameters, clone.Source = []volume.Capability{blockWriter()}, nil, &volume.Source{Volume: v.ID}
	_, err = s.volumes.Create(s.ctx, clone)
	w.must(err)
	_, err = s.expand(v.ID, 2*gib)
	wantErr(t, "expand while it is cloned", err, volume.ErrBusy)
	w.must(s.copyAll())
	_, err = s.expand(v.ID, 2*gib)
	w.must(err)
}

// TestOfflineExpansion: a volume in use keeps its size, and the error names the nodes.
// What is done already stays done.
func TestOfflineExpansion(t *testing.T) {
	w := newWorld(t)
	w.offline, w.attach = true, true
	s := w.boot()
	v := s.createBlock("pvc-1")
	refused := func(use string) {
		t.Helper()
		_, err := s.expand(v.ID, 3*gib)
		wantErr(t, use, err, volume.ErrInUse)
		if err == nil || !strings.Contains(err.Error(), testNode) {
			t.Errorf("%s: error %v must name %s", use, err, testNode)
		}
		if got, err := s.volumes.Get(s.ctx, v.ID); err != nil || got.Capacity != 2*gib || w.diskSize(v.ID) != 2*gib {
			t.Errorf("%s: volume %+v, %v, file of %d bytes", use, got, err, w.diskSize(v.ID))
		}
		_, err = s.expand(v.ID, 2*gib)
		wantErr(t, use+", large enough", err, nil)
	}
	_, err := s.expand(v.ID, 2*gib)
	w.must(err)
	_, err = s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: blockWriter()})
	w.must(err)
	refused("attached")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)))
	refused("attached and staged")
	w.must(s.volumes.Unpublish(s.ctx, v.ID, testNode))
	refused("staged on a node that it was detached from by force")
	w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	after, err := s.expand(v.ID, 3*gib)
	if err != nil || after.Capacity != 3*gib {
		t.Errorf("not in use: %+v, %v", after, err)
	}
}
