package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// blind is a mounter that cannot look: one question fails.
type blind struct {
	*mount.Fake

	mounted, isMountOf, below error
}

func (b *blind) Mounted(ctx context.Context, target string) (bool, error) {
	if b.mounted != nil {
		return false, b.mounted
	}
	return b.Fake.Mounted(ctx, target)
}

func (b *blind) IsMountOf(ctx context.Context, source, target string, o mount.Options) (bool, error) {
	if b.isMountOf != nil {
		return false, b.isMountOf
	}
	return b.Fake.IsMountOf(ctx, source, target, o)
}

func (b *blind) Below(ctx context.Context, dir string) ([]string, error) {
	if b.below != nil {
		return nil, b.below
	}
	return b.Fake.Below(ctx, dir)
}

// TestUnreadableMountTable: who cannot see what is mounted changes nothing.
func TestUnreadableMountTable(t *testing.T) {
	cases := map[string]struct {
		reason string
		broken blind
		call   func(s *system, v *volume.Volume) error
	}{
		"Stage":           {reason: "it may be mounted already", broken: blind{isMountOf: errTest}, call: func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageRequest(v.ID)) }},
		"StageMounted":    {reason: "something may be in the way", broken: blind{mounted: errTest}, call: func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageRequest(v.ID)) }},
		"Delete":          {reason: "something may be mounted inside", broken: blind{below: errTest}, call: func(s *system, v *volume.Volume) error { return s.volumes.Delete(s.ctx, v.ID) }},
		"UnpublishInline": {reason: "something may be mounted inside", broken: blind{below: errTest}, call: func(s *system, _ *volume.Volume) error { return s.node.Unpublish(s.ctx, "csi-1", s.target("csi-1")) }},
		"Unpublish":       {reason: "it may still be mounted", broken: blind{mounted: errTest}, call: func(s *system, v *volume.Volume) error { return s.node.Unpublish(s.ctx, v.ID, s.target(v.ID)) }},
		"Unstage":         {reason: "it may still be mounted", broken: blind{mounted: errTest}, call: func(s *system, v *volume.Volume) error { return s.node.Unstage(s.ctx, v.ID, s.staging(v.ID)) }},
		"Restart":         {reason: "records cannot be checked", broken: blind{isMountOf: errTest}, call: func(s *system, _ *volume.Volume) error { _, err := s.tryBoot(); return err }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := &blind{Fake: w.fake}
			w.mounter = b
			s := w.boot()
			used, free := s.create("used"), s.create("free")
			w.must(s.node.Stage(s.ctx, w.stageRequest(used.ID)), s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
			before := w.files()
			b.mounted, b.isMountOf, b.below = c.broken.mounted, c.broken.isMountOf, c.broken.below
			wantErr(t, c.reason, c.call(s, free), errTest)
			if name == "UnpublishInline" {
				b.below = nil // the target is gone, so repeat for the rest
				w.must(c.call(s, free))
				return
			}
			if diff := cmp.Diff(before, w.files()); diff != "" {
				t.Errorf("%s: files (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestLostDirectories removes parts of the state directory under a running
// driver: every call that needs them fails and says so, none invents success.
func TestLostDirectories(t *testing.T) {
	cases := map[string]struct {
		reason string
		lost   string
		call   func(s *system, v *volume.Volume) error
	}{
		"Create": {reason: "no place for contents", lost: volumesDir, call: func(s *system, _ *volume.Volume) error {
			_, err := s.volumes.Create(s.ctx, createRequest("new"))
			return err
		}},
		"CreateRecord": {reason: "no place for the record", lost: recordsDir, call: func(s *system, _ *volume.Volume) error {
			_, err := s.volumes.Create(s.ctx, createRequest("new"))
			return err
		}},
		"Delete": {reason: "no place for the trash", lost: trashDir, call: func(s *system, v *volume.Volume) error { return s.volumes.Delete(s.ctx, v.ID) }},
		"Attach": {reason: "no place for the record", lost: recordsDir, call: func(s *system, v *volume.Volume) error {
			_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: writer()})
			return err
		}},
		"Stage":        {reason: "no place for the node's record", lost: "nodes/node-1/records", call: func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageRequest(v.ID)) }},
		"Inline":       {reason: "no place for inline contents", lost: "nodes/node-1/volumes", call: func(s *system, _ *volume.Volume) error { return s.node.Publish(s.ctx, s.inlineRequest("csi-1", nil)) }},
		"InlineRecord": {reason: "no place for the node's record", lost: "nodes/node-1/records", call: func(s *system, _ *volume.Volume) error { return s.node.Publish(s.ctx, s.inlineRequest("csi-1", nil)) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			v := s.create("pvc-1")
			w.must(os.RemoveAll(filepath.Join(w.stateDir, c.lost)))
			if err := c.call(s, v); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: error %v, want os.ErrNotExist", c.reason, err)
			}
			if left := w.fake.Targets(); len(left) > 0 {
				t.Errorf("%s: mounts left: %v", c.reason, left)
			}
		})
	}
}

// TestFailedAttachGivesItsSlotBack: the record cannot be written.
func TestFailedAttachGivesItsSlotBack(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	s.volumes.cfg.AttachLimit = 1
	v := s.create("pvc-1")
	publish := func() error {
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: writer()})
		return err
	}
	records := filepath.Join(w.stateDir, recordsDir)
	w.must(os.Rename(records, records+"-away"))
	wantErr(t, "attach", publish(), os.ErrNotExist)
	w.must(os.Rename(records+"-away", records))
	if err := publish(); err != nil {
		t.Errorf("attach when the directory is back: %v", err)
	}
}

// TestRecoverRefusesAFileForADirectory: better no start than a wrong one.
func TestRecoverRefusesAFileForADirectory(t *testing.T) {
	for _, name := range []string{recordsDir, volumesDir, trashDir, "nodes/node-1/records", "nodes/node-1/volumes"} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			w := newWorld(t)
			w.writeFile(filepath.Join(w.stateDir, name), "a file")
			if _, err := w.tryBoot(); err == nil {
				t.Errorf("%s is a file, and the driver starts", name)
			}
		})
	}
}

// TestSecondInterruptedDelete: an id comes back (inline volumes of a pod that
// is published again) while its former contents are still in the trash.
func TestSecondInterruptedDelete(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	w.writeFile(filepath.Join(nodeDir(w.stateDir, testNode), trashDir, "csi-1", "old"), "rest")
	w.must(s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	w.writeFile(filepath.Join(w.inlineContents("csi-1"), "new"), "data")
	w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

// BenchmarkCreateDelete is a whole life of a volume on disk, next to many
// others. It must cost the same with few and with many.
func BenchmarkCreateDelete(b *testing.B) {
	ctx := b.Context()
	volumes, err := OpenVolumes(ctx, VolumesConfig{
		StateDir: b.TempDir(), Pools: volume.NewPools(nil), MaxSize: gib, Attach: true, ProtectUsed: true, Mounter: &mount.Fake{},
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		volumes.volumes.catalog.put(numbered(i))
	}
	for b.Loop() {
		v, err := volumes.Create(ctx, createRequest("pvc"))
		if err != nil {
			b.Fatal(err)
		}
		if err := volumes.Delete(ctx, v.ID); err != nil {
			b.Fatal(err)
		}
	}
}
