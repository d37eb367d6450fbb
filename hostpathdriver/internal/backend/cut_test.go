package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/driverkit/state"
	filling "github.com/longshore-csi/longshore/hostpathdriver/internal/fill"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/idempotent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// inUse is a directory and a device that are in use.
type inUse struct {
	*system

	directory, device volume.ID
	group             *volume.Group
}

func (w *world) inUse() *inUse {
	w.t.Helper()
	u := &inUse{system: w.boot()}
	u.directory, u.device = u.create("directory").ID, u.createBlock("device").ID
	u.write("old")
	w.must(u.node.Stage(u.ctx, w.stageRequest(u.directory)), u.node.Stage(u.ctx, w.stageBlock(u.device)))
	u.volumes.cfg.Step = func(name string) { w.step.at(name) }
	w.t.Cleanup(func() { w.step = nil })
	return u
}

// write writes to both: a directory with one file, which has the name of the
// text.
func (u *inUse) write(text string) {
	u.t.Helper()
	u.writeDirectory(text)
	u.writeDisk(u.device, text)
}

func (u *inUse) writeDirectory(text string) {
	u.t.Helper()
	u.must(os.RemoveAll(u.path("sub")))
	u.writeFile(u.path("sub/"+text), text)
}

func (u *inUse) path(name string) string { return filepath.Join(u.contents(u.directory), name) }

// begin makes a group that is to be filled.
func (u *inUse) begin(sources ...volume.ID) {
	u.t.Helper()
	var err error
	u.group, err = u.volumes.CreateGroup(u.ctx, &volume.GroupRequest{Name: "g", Sources: sources})
	u.must(err)
}

// wantGroup wants both snapshots complete, with the same text.
func (u *inUse) wantGroup(text string) {
	u.t.Helper()
	found, err := u.volumes.GetGroup(u.ctx, u.group.ID, u.group.Members)
	u.must(err)
	if found.Filling() || !found.Whole {
		u.t.Errorf("the group is not whole: %+v", found)
	}
	for _, member := range found.Snapshots {
		if member.Source != u.directory && member.Source != u.device {
			continue
		}
		if member.Form.Disk {
			if got := u.snapshotDisk(member.ID); got != text {
				u.t.Errorf("snapshot of the device: %q, want %q", got, text)
			}
			continue
		}
		entries, err := os.ReadDir(filepath.Join(u.snapshotContents(member.ID), "sub"))
		if err != nil || len(entries) != 1 {
			u.t.Errorf("snapshot of the directory: %v, %v, want one file", entries, err)
		}
		u.wantFile(filepath.Join(u.snapshotContents(member.ID), "sub", text), text)
	}
	if left, err := filepath.Glob(filepath.Join(u.stateDir, copiesDir, "*")); err != nil || len(left) > 0 {
		u.t.Errorf("left of the copies: %v, %v", left, err)
	}
}

func (w *world) snapshotDisk(id volume.ID) string {
	w.t.Helper()
	return w.readText(filepath.Join(w.snapshotContents(id), diskName))
}

// readRecord reads what a node would.
func (w *world) readRecord(id volume.ID) *volume.Volume {
	w.t.Helper()
	found, err := state.View[volume.Volume](filepath.Join(w.stateDir, recordsDir), volumeKind).Get(string(id))
	w.must(err)
	return &found
}

// orders are a group with the directory first, or last.
func (u *inUse) orders() map[string][]volume.ID {
	return map[string][]volume.ID{"DirectoryFirst": {u.directory, u.device}, "DeviceFirst": {u.device, u.directory}, "DeviceAlone": {u.device}, "DirectoryAlone": {u.directory}}
}

// TestGroupOfVolumesInUse: if nobody writes, it is made, and nobody is kept
// from anything meanwhile.
func TestGroupOfVolumesInUse(t *testing.T) {
	eachDisk(t, func(t *testing.T, w *world) {
		u := w.inUse()
		for name, order := range u.orders() {
			t.Run(name, func(t *testing.T) {
				u.begin(order...)
				again := w.stageRequest(u.directory)
				w.must(u.node.Unstage(u.ctx, u.directory, again.Stage.Path), u.node.Stage(u.ctx, again))
				u.write("new") // before the first copy
				w.must(u.copy(u.group.ID))
				u.wantGroup("new")
				u.write("old") // is not seen in the snapshots
				w.must(u.copy(u.group.ID))
				u.wantGroup("new")
				w.must(u.volumes.DeleteGroup(u.ctx, u.group.ID, u.group.Members))
			})
		}
	})
}

// TestWriteBetweenCopies at each step of the copies of a group: they are good
// for nothing, unless the write was before all of them or behind all of them;
// the next attempt has what was written, and nothing of the one before.
func TestWriteBetweenCopies(t *testing.T) {
	needs.Time(t)
	eachDisk(t, func(t *testing.T, w *world) {
		u := w.inUse()
		refused := 0
		for name, order := range u.orders() {
			for at, more := 1, true; more; at++ {
				t.Run(fmt.Sprintf("%s%02d", name, at), func(t *testing.T) {
					u.write("old")
					u.begin(order...)
					passed, text := 0, "old"
					w.step = func(string) {
						if passed++; passed == at {
							u.write("new")
						}
					}
					err := u.copy(u.group.ID)
					w.step = nil
					more = passed >= at
					if errors.Is(err, volume.ErrConcurrentWrite) {
						refused++
						if found, err := u.volumes.GetGroup(u.ctx, u.group.ID, nil); err != nil || !found.Filling() || found.Whole {
							t.Errorf("after the refusal: %+v, %v", found, err)
						}
						err, text = u.copy(u.group.ID), "new"
					}
					w.must(err)
					if text == "old" && more && u.has("new") {
						text = "new" // it was before the first copy
					}
					u.wantGroup(text)
					w.must(u.volumes.DeleteGroup(u.ctx, u.group.ID, u.group.Members))
				})
			}
		}
		if refused < 8 {
			t.Errorf("%d attempts were refused, want more", refused)
		}
	})
}

// has reports whether a snapshot of the group has that text.
func (u *inUse) has(text string) bool {
	u.t.Helper()
	return slices.ContainsFunc(u.group.Snapshots, func(s *volume.Snapshot) bool {
		if s.Form.Disk {
			return u.snapshotDisk(s.ID) == text
		}
		return !gone(filepath.Join(u.snapshotContents(s.ID), "sub", text))
	})
}

// TestConstantWriter: the group is refused, with what to do, and nothing is
// left of it. The pauses between the attempts are those of package fill.
func TestConstantWriter(t *testing.T) {
	eachDisk(t, func(t *testing.T, w *world) {
		w.limits = map[string]int64{"fast": 10 * gib}
		u := w.inUse()
		for name, order := range u.orders() {
			t.Run(name, func(t *testing.T) {
				before, attempts := w.files(), 0
				w.step = func(name string) {
					if attempts++; name == "copy:contents" {
						u.write("new")
					}
					if name == "reflink" || name == "copy" || name == "mkdir" {
						u.write("old")
					}
				}
				err := u.createOverTime(t, &volume.GroupRequest{Name: "g", Sources: order})
				w.step = nil
				wantErr(t, "constant writer", err, volume.ErrConcurrentWrite)
				if err == nil || !strings.Contains(err.Error(), "stop its users, or ") || !slices.ContainsFunc(order, func(id volume.ID) bool {
					return strings.Contains(err.Error(), fmt.Sprintf("volume %q", id))
				}) {
					t.Errorf("error %v does not say what to do about which volume", err)
				}
				if after := w.files(); !slices.Equal(before, after) {
					t.Errorf("files %v, before %v", after, before)
				}
				if c, err := u.pools.Capacity("fast"); err != nil || c.Available != 8*gib {
					t.Errorf("pool: %+v, %v", c, err)
				}
			})
		}
	})
}

// createOverTime makes a group through the layers above, in virtual time.
func (u *inUse) createOverTime(t *testing.T, req *volume.GroupRequest) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.WithoutCancel(u.ctx)
		services, openErr := filling.Open(ctx, filling.Config{Next: idempotent.New(u.volumes)})
		if openErr != nil {
			t.Fatal(openErr)
		}
		begin := time.Now()
		_, err = services.CreateGroup(ctx, req)
		if took := time.Since(begin); took < 10*time.Second {
			t.Errorf("gave up after %v", took)
		}
		if err := services.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return err
}

// TestCutGoesOn where it was, in another process: what is copied is not copied
// again as long as nobody writes.
func TestCutGoesOn(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(u *inUse)
		want   string
		again  bool // the first copy is made again
	}{
		"Restart": {reason: "nobody wrote", change: func(*inUse) {}, want: "old"},
		"Written": {reason: "somebody wrote while no driver was there", change: func(u *inUse) { u.write("new") }, want: "new", again: true},
		"Reboot": {reason: "what was in memory is lost", want: "old", again: true, change: func(u *inUse) {
			path := u.volumes.copyPath(u.group.ID, "progress")
			data, err := os.ReadFile(path)
			u.must(err)
			boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			u.must(err, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), strings.TrimSpace(string(boot)), "another")), 0o600))
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.moveTo(newFileSystem(t, "ext4"))
			u := w.inUse()
			u.begin(u.directory, u.device)
			ctx, cancel := context.WithCancel(u.ctx)
			w.step = func(name string) {
				if name == "copy" && !gone(filepath.Join(w.snapshotContents(u.group.Members[1]), diskName)) {
					cancel() // in the copy of the device
				}
			}
			wantErr(t, "interrupted", u.volumes.Copy(ctx, u.group.ID, nil), context.Canceled)
			w.step = nil
			u.system = w.boot()
			c.change(u)
			again := false
			u.volumes.cfg.Step = func(name string) { again = again || name == "mkdir" }
			if ids, err := u.volumes.Unfilled(u.ctx); err != nil || !slices.Equal(ids, []volume.ID{u.group.ID}) {
				t.Errorf("unfilled: %v, %v", ids, err)
			}
			w.must(u.copyAll())
			if again != c.again {
				t.Errorf("%s: the directory was copied again %t, want %t", c.reason, again, c.again)
			}
			u.wantGroup(c.want)
		})
	}
}

// TestWholeGroupIsNotCopiedAgain: its record makes it whole. What is left to do
// after a crash is to tell the snapshots and the volumes, whatever was written
// since.
func TestWholeGroupIsNotCopiedAgain(t *testing.T) {
	eachDisk(t, func(t *testing.T, w *world) {
		u := w.inUse()
		held := u.create("held")
		for at, more := 1, true; more; at++ {
			u.write("old")
			u.begin(u.directory, u.device, held.ID)
			func() {
				defer func() { more = recover() != nil }()
				members := 0
				u.volumes.cfg.Step = func(name string) {
					if name == "group:member" || name == "group:release" {
						if members++; members == at {
							panic("killed")
						}
					}
				}
				w.must(u.copy(u.group.ID))
			}()
			u.write("new")
			u.system = w.boot()
			w.must(u.copyAll())
			w.must(w.readRecord(held.ID).CheckWritable())
			u.wantGroup("old")
			w.must(u.volumes.DeleteGroup(u.ctx, u.group.ID, u.group.Members))
		}
	})
}

// TestWhatCannotBeCut is refused, with what to do: in memory nobody knows
// whether a directory was written to.
func TestWhatCannotBeCut(t *testing.T) {
	w := newWorld(t)
	w.moveTo(newFileSystem(t, "tmpfs"))
	u := w.inUse()
	u.begin(u.device)
	w.must(u.copy(u.group.ID), u.volumes.DeleteGroup(u.ctx, u.group.ID, u.group.Members))
	u.begin(u.device, u.directory)
	err := u.copy(u.group.ID)
	wantErr(t, "directory", err, volume.ErrPrecondition)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("volume %q is in use", u.directory)) {
		t.Errorf("error %v does not name the volume", err)
	}
	if errors.Is(err, volume.ErrConcurrentWrite) {
		t.Errorf("error %v would be tried again", err)
	}
}

// TestWhoIsHeld: who can only read is not in use.
func TestWhoIsHeld(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	reader, writer, idle := s.create("reader"), s.create("writer"), s.create("idle")
	request := w.stageRequest(reader.ID)
	request.Stage.Capability.Mode = volume.MultiNodeReaderOnly
	w.must(s.node.Stage(s.ctx, request), s.node.Stage(s.ctx, w.stageRequest(writer.ID)))
	group, err := s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "g", Sources: []volume.ID{reader.ID, writer.ID, idle.ID}})
	w.must(err)
	for id, want := range map[volume.ID]volume.ID{reader.ID: group.ID, writer.ID: "", idle.ID: group.ID} {
		if got := w.readRecord(id).Held; got != want {
			t.Errorf("%s is held by %q, want %q", id, got, want)
		}
	}
}

// TestImageThatIsFormattedMeanwhile: a snapshot of what was blank has nothing of
// an earlier attempt that says so.
func TestImageThatIsFormattedMeanwhile(t *testing.T) {
	eachDisk(t, func(t *testing.T, w *world) {
		s := w.boot()
		req := imageRequest("image", "ext4")
		req.Parameters = nil // another owner needs privileges
		image, err := s.volumes.Create(s.ctx, req)
		w.must(err)
		made, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: image.ID})
		w.must(err)
		wantErr(t, "not recorded", s.volumes.Copy(s.ctx, made.ID, func(context.Context) error { return errTest }), errTest)
		if blank, err := s.volumes.snapshots.contents(made).Unformatted(made.ID); err != nil || !blank {
			t.Errorf("snapshot of a blank image: blank %t, %v", blank, err)
		}
		w.must(s.node.Stage(s.ctx, w.stageImage(image.ID, "")))
		w.writeDisk(image.ID, "new")
		w.must(s.copy(made.ID))
		if blank, err := s.volumes.snapshots.contents(made).Unformatted(made.ID); err != nil || blank {
			t.Errorf("snapshot of a formatted image: blank %t, %v", blank, err)
		}
		if got := w.snapshotDisk(made.ID); got != "new" {
			t.Errorf("snapshot has %q", got)
		}
	})
}
