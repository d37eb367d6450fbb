package shared

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func (c calls) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	return &volume.Snapshot{Name: req.Name}, c.call(ctx, "create snapshot")
}

func (c calls) DeleteSnapshot(ctx context.Context, _ volume.ID) error {
	return c.call(ctx, "delete snapshot")
}

func (c calls) GetSnapshot(ctx context.Context, id volume.ID) (*volume.Snapshot, error) {
	return &volume.Snapshot{ID: id}, c.call(ctx, "get snapshot")
}

func (c calls) FindSnapshot(ctx context.Context, name string) (*volume.Snapshot, error) {
	return &volume.Snapshot{Name: name}, c.call(ctx, "find snapshot")
}

func (c calls) ListSnapshots(ctx context.Context, _ volume.SnapshotListRequest) (*volume.SnapshotPage, error) {
	return &volume.SnapshotPage{}, c.call(ctx, "list snapshots")
}

func (c calls) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	return &volume.Group{Name: req.Name}, c.call(ctx, "create group")
}

func (c calls) DeleteGroup(ctx context.Context, _ volume.ID, _ []volume.ID) error {
	return c.call(ctx, "delete group")
}

func (c calls) GetGroup(ctx context.Context, id volume.ID, _ []volume.ID) (*volume.Group, error) {
	return &volume.Group{ID: id}, c.call(ctx, "get group")
}

func (c calls) FindGroup(ctx context.Context, name string) (*volume.Group, error) {
	return &volume.Group{Name: name}, c.call(ctx, "find group")
}

func (c calls) Unfilled(ctx context.Context) ([]volume.ID, error) {
	return []volume.ID{"1"}, c.call(ctx, "unfilled")
}

func (c calls) Complete(ctx context.Context, _ volume.ID) error { return c.call(ctx, "complete") }

// Copy is no call that needs a turn.
func (c calls) Copy(ctx context.Context, _ volume.ID, then func(context.Context) error) error {
	c.process.note("copy")
	return then(ctx)
}

// snapshotCalls are those that have to do with snapshots, by the name in the
// log.
func (p *process) snapshotCalls() map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"create snapshot": func(ctx context.Context) error {
			_, err := p.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "s"})
			return err
		},
		"delete snapshot": func(ctx context.Context) error { return p.DeleteSnapshot(ctx, "1") },
		"get snapshot":    func(ctx context.Context) error { _, err := p.GetSnapshot(ctx, "1"); return err },
		"find snapshot":   func(ctx context.Context) error { _, err := p.FindSnapshot(ctx, "s"); return err },
		"list snapshots": func(ctx context.Context) error {
			_, err := p.ListSnapshots(ctx, volume.SnapshotListRequest{})
			return err
		},
		"create group": func(ctx context.Context) error {
			_, err := p.CreateGroup(ctx, &volume.GroupRequest{Name: "g"})
			return err
		},
		"delete group": func(ctx context.Context) error { return p.DeleteGroup(ctx, "1", nil) },
		"get group":    func(ctx context.Context) error { _, err := p.GetGroup(ctx, "1", nil); return err },
		"find group":   func(ctx context.Context) error { _, err := p.FindGroup(ctx, "g"); return err },
		"unfilled":     func(ctx context.Context) error { _, err := p.Unfilled(ctx); return err },
		"complete":     func(ctx context.Context) error { return p.Complete(ctx, "1") },
	}
}

// TestSnapshotsNeedATurn: every call is made in one, and the other process
// reads again what was changed, and only that.
func TestSnapshotsNeedATurn(t *testing.T) {
	change := []string{"create snapshot", "delete snapshot", "create group", "delete group", "complete"}
	d := newDisk(t)
	p, other := d.start(DefaultTurn), d.start(DefaultTurn)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	for name, call := range p.snapshotCalls() {
		t.Run(name, func(t *testing.T) {
			_, err := p.Get(d.ctx, "1")
			_, otherErr := other.Get(d.ctx, "1")
			d.must(err, otherErr)
			p.log, other.log = nil, nil
			d.must(call(d.ctx))
			p.wantLog(name)
			_, err = other.Get(d.ctx, "1")
			d.must(err)
			if slices.Contains(change, name) {
				other.wantLog("refresh", "get")
			} else {
				other.wantLog("get")
			}
			if _, err := other.gate.baton.Take(d.ctx); err != nil {
				t.Fatal(err)
			}
			if err := call(ctx); !errors.Is(err, volume.ErrBusy) {
				t.Errorf("while another process has its turn: %v, want an ErrBusy", err)
			}
			p.wantLog()
			d.must(other.gate.baton.Give())
		})
	}
}

// TestCopiesNeedNoTurn: another process has its own meanwhile. What is done
// with a copy takes turns again.
func TestCopiesNeedNoTurn(t *testing.T) {
	d := newDisk(t)
	p, other := d.start(DefaultTurn), d.start(DefaultTurn)
	d.must(p.Copy(d.ctx, "1", func(ctx context.Context) error {
		if err := other.Delete(ctx, "2"); err != nil {
			return err
		}
		return p.Complete(ctx, "1")
	}))
	p.wantLog("open", "copy", "refresh", "complete")
	other.wantLog("open", "delete")
}
