package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// contents calls the driver's functions for what is in volumes: what a volume had when a snapshot was made, or it was cloned, is in the new volume, and stays there; an expanded volume is larger;
// and a node that is attached is listed until it is detached.
func (s *settings) contents(t *testing.T) {
	m := s.newMachine(t)
	if err := os.Mkdir(m.path("co"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &holder{T: t, m: m}
	source := c.create("contents", nil)
	c.write(source, "first")
	snapshot := c.snapshot(source)
	c.write(source, "second")
	made := []*driverkit.Volume{source}
	if snapshot != nil {
		restored := c.create("contents-restored", &driverkit.Source{Snapshot: snapshot.ID})
		made = append(made, restored)
		c.want("a volume restored from a snapshot", restored, "first")
	}
	if m.options.Support.Clones {
		clone := c.create("contents-cloned", &driverkit.Source{Volume: source.ID})
		made = append(made, clone)
		c.want("a clone", clone, "second")
		c.write(clone, "third")
	}
	c.expand(source)
	c.twoNodes(source)
	c.want("the source, after all that", source, "second")
	if snapshot != nil {
		c.deleteSnapshot(snapshot)
	}
	for _, v := range made {
		if err := m.driver.Provisioner.Delete(t.Context(), &driverkit.DeleteRequest{ID: v.ID, Secrets: s.secrets}); err != nil {
			t.Errorf("delete volume %q: %v", v.ID, err)
		}
	}
	m.checkLeaks(t)
}

// holder writes and reads the contents of volumes.
type holder struct {
	*testing.T
	m *machine
}

func (c *holder) create(name string, source *driverkit.Source) *driverkit.Volume {
	c.Helper()
	req := c.m.s.request(name)
	req.Source = source
	v, err := c.m.driver.Provisioner.Create(c.Context(), req)
	if err != nil {
		c.Fatalf("create volume %q from %v: %v", name, source, err)
	}
	return v
}

// snapshot makes a snapshot that is ready; nil if the driver makes none.
func (c *holder) snapshot(of *driverkit.Volume) *driverkit.Snapshot {
	c.Helper()
	snapshotter := c.m.driver.Snapshotter
	if snapshotter == nil {
		return nil
	}
	made, err := snapshotter.CreateSnapshot(c.Context(), &driverkit.CreateSnapshotRequest{Name: "contents", Volume: of.ID, Secrets: c.m.s.secrets})
	tick, end := time.NewTicker(10*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for err == nil && !made.Ready {
		select {
		case <-tick.C:
			made, err = snapshotter.GetSnapshot(c.Context(), &driverkit.GetSnapshotRequest{ID: made.ID, Secrets: c.m.s.secrets})
		case <-end:
			c.Fatalf("snapshot %q is not ready after %v", made.ID, patience)
		}
	}
	if err != nil {
		c.Fatalf("make a snapshot of volume %q: %v", of.ID, err)
	}
	return made
}

// deleteSnapshot deletes a snapshot, after which it does not exist.
func (c *holder) deleteSnapshot(s *driverkit.Snapshot) {
	c.Helper()
	snapshotter := c.m.driver.Snapshotter
	if err := snapshotter.DeleteSnapshot(c.Context(), &driverkit.DeleteSnapshotRequest{ID: s.ID, Secrets: c.m.s.secrets}); err != nil {
		c.Errorf("delete snapshot %q: %v", s.ID, err)
	}
	if _, err := snapshotter.GetSnapshot(c.Context(), &driverkit.GetSnapshotRequest{ID: s.ID, Secrets: c.m.s.secrets}); !driverkit.IsNotFound(err, s.ID) {
		c.Errorf("get snapshot %q after its deletion: %v, want driverkit.NotFound of it", s.ID, err)
	}
}

// used is a volume that is staged.
type used struct {
	*driverkit.Staged
	path           string
	publishContext map[string]string
}

// use attaches and stages a volume, and undoes that after do.
func (c *holder) use(v *driverkit.Volume, do func(u used) error) {
	c.Helper()
	u := used{path: c.m.path("co/contents"), publishContext: c.attach(v)}
	if err := os.Mkdir(u.path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		c.Fatal(err)
	}
	var err error
	u.Staged, err = c.m.driver.Stager.Stage(c.Context(), &driverkit.StageRequest{
		ID: v.ID, Path: u.path, Capability: c.m.s.request("").Capabilities[0], Secrets: c.m.s.secrets, VolumeContext: v.Context, PublishContext: u.publishContext,
	})
	if err != nil {
		c.Fatalf("stage volume %q: %v", v.ID, err)
	}
	if err := do(u); err != nil {
		c.Errorf("volume %q, staged as %+v: %v", v.ID, u.Staged, err)
	}
	if u.Mounted {
		if err := mount.UnmountAll(c.Context(), c.m.options.Mounter, u.path); err != nil {
			c.Fatalf("unmount volume %q: %v", v.ID, err)
		}
	}
	err = c.m.driver.Stager.Unstage(c.Context(), &driverkit.UnstageRequest{ID: v.ID, Path: u.path, Staged: u.Staged, VolumeContext: v.Context, PublishContext: u.publishContext})
	if err != nil {
		c.Errorf("unstage volume %q: %v", v.ID, err)
	}
	c.detach(v)
}

// attach attaches a volume to the node, if the driver attaches.
func (c *holder) attach(v *driverkit.Volume) map[string]string {
	c.Helper()
	if c.m.driver.Attacher == nil {
		return nil
	}
	attached, err := c.m.driver.Attacher.Attach(c.Context(), &driverkit.AttachRequest{
		ID: v.ID, Node: NodeID, Capability: c.m.s.request("").Capabilities[0], Secrets: c.m.s.secrets, VolumeContext: v.Context,
	})
	if err != nil {
		c.Fatalf("attach volume %q: %v", v.ID, err)
	}
	c.wantNodes(v, "attached", NodeID)
	return attached.PublishContext
}

// detach undoes attach.
func (c *holder) detach(v *driverkit.Volume) {
	c.Helper()
	if c.m.driver.Attacher == nil {
		return
	}
	if err := c.m.driver.Attacher.Detach(c.Context(), &driverkit.DetachRequest{ID: v.ID, Node: NodeID, Secrets: c.m.s.secrets}); err != nil {
		c.Errorf("detach volume %q: %v", v.ID, err)
	}
	c.wantNodes(v, "detached")
}

// twoNodes attaches a volume to one node after the other. A CO repeats calls, also when the volume is elsewhere meanwhile.
func (c *holder) twoNodes(v *driverkit.Volume) {
	c.Helper()
	other := c.m.s.otherNode
	attacher := c.m.driver.Attacher
	if other == "" || attacher == nil {
		return
	}
	c.attach(v)
	c.detach(v)
	_, err := attacher.Attach(c.Context(), &driverkit.AttachRequest{
		ID: v.ID, Node: other, Capability: c.m.s.request("").Capabilities[0], Secrets: c.m.s.secrets, VolumeContext: v.Context,
	})
	if err != nil {
		c.Errorf("attach volume %q to node %q: %v", v.ID, other, err)
	}
	for i, node := range []string{NodeID, other} {
		if err := attacher.Detach(c.Context(), &driverkit.DetachRequest{ID: v.ID, Node: node, Secrets: c.m.s.secrets}); err != nil {
			c.Errorf("detach volume %q from node %q: %v", v.ID, node, err)
		}
		c.wantNodes(v, fmt.Sprintf("attached to node %q, and detached from node %q", other, node), []string{other}[i:]...)
	}
}

// wantNodes looks at the nodes of a volume, as the kit does before it attaches another one, and COs do in lists.
func (c *holder) wantNodes(v *driverkit.Volume, when string, want ...string) {
	c.Helper()
	got, err := c.m.driver.Provisioner.Get(c.Context(), &driverkit.GetRequest{ID: v.ID, Secrets: c.m.s.secrets})
	if err != nil || !slices.Equal(got.Nodes, want) {
		c.Errorf("get volume %q when it is %s: %+v, %v, want Nodes %q", v.ID, when, got, err, want)
	}
	if c.m.driver.List == nil {
		return
	}
	all, err := c.m.driver.List(c.Context(), &driverkit.ListRequest{})
	if err != nil {
		c.Fatalf("list: %v", err)
	}
	for _, listed := range all.Entries {
		if listed.ID == v.ID && !slices.Equal(listed.Nodes, want) {
			c.Errorf("list when volume %q is %s: Nodes %q, want %q", v.ID, when, listed.Nodes, want)
		}
	}
}

// place returns the file, and where in it, that holds a text; empty where the volume is nothing but a line in the table of a mount.Fake.
func (c *holder) place(u used) (file string, offset int64) {
	_, fake := c.m.options.Mounter.(*mount.Fake)
	switch {
	case u.Device != "":
		return u.Device, 2 << 20 // in the middle: a driver must not copy the beginning alone
	case u.Directory != "":
		return filepath.Join(u.Directory, "drivertest"), 0
	case fake:
		return "", 0
	}
	return filepath.Join(u.path, "drivertest"), 0
}

func (c *holder) write(v *driverkit.Volume, text string) {
	c.Helper()
	c.use(v, func(u used) error {
		path, offset := c.place(u)
		if path == "" {
			return nil
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(block(text), offset)
		return errors.Join(err, file.Sync(), file.Close())
	})
}

func (c *holder) want(what string, v *driverkit.Volume, text string) {
	c.Helper()
	c.use(v, func(u used) error {
		path, offset := c.place(u)
		if path == "" {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("%s has lost its contents: %w", what, err)
		}
		got := make([]byte, len(block(text)))
		_, err = file.ReadAt(got, offset)
		if err == nil && !bytes.Equal(got, block(text)) {
			err = fmt.Errorf("%s has %q, want %q", what, bytes.TrimRight(got, "\x00"), text)
		}
		return errors.Join(err, file.Close())
	})
}

// block is a text as a block, which can be written to any device.
func block(text string) []byte {
	const size = 4096
	return append([]byte(text), make([]byte, size-len(text))...)
}

// expand makes a volume larger, if the driver does that: its device, or what is mounted, has the new size.
func (c *holder) expand(v *driverkit.Volume) {
	c.Helper()
	want := max(v.Size, 4<<20) * 2
	d := &c.m.driver
	if d.Expand != nil {
		c.expandController(v, want)
	}
	if d.Expand == nil && d.ExpandOnNode == nil {
		return
	}
	c.use(v, func(u used) error {
		if d.ExpandOnNode != nil {
			_, err := d.ExpandOnNode(c.Context(), &driverkit.NodeExpandRequest{
				ID: v.ID, Path: u.path, Staged: *u.Staged, Size: driverkit.Range{Required: want}, Secrets: c.m.s.secrets, VolumeContext: v.Context, PublishContext: u.publishContext,
			})
			if err != nil {
				return fmt.Errorf("expand on the node: %w", err)
			}
		}
		return c.wantSize(u, want)
	})
}

func (c *holder) expandController(v *driverkit.Volume, want int64) {
	c.Helper()
	done, err := c.m.driver.Expand(c.Context(), &driverkit.ExpandRequest{ID: v.ID, Size: driverkit.Range{Required: want}, Secrets: c.m.s.secrets})
	if err != nil || done.Size < want {
		c.Fatalf("expand volume %q to %d bytes: %+v, %v", v.ID, want, done, err)
	}
	got, err := c.m.driver.Provisioner.Get(c.Context(), &driverkit.GetRequest{ID: v.ID, Secrets: c.m.s.secrets})
	if err != nil || got.Size != 0 && got.Size < want {
		c.Errorf("get volume %q after its expansion: %+v, %v, want %d bytes", v.ID, got, err, want)
	}
}

// wantSize looks at the size of a staged volume. That of a directory is the storage system's to know.
func (c *holder) wantSize(u used, want int64) error {
	var got int64
	if path, _ := c.place(u); u.Device != "" {
		file, err := os.Open(u.Device)
		if err != nil {
			return err
		}
		got, err = file.Seek(0, io.SeekEnd)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	} else if u.Mounted && path != "" {
		usage, err := filesystem.Kernel{}.Usage(c.Context(), u.path)
		if err != nil {
			return err
		}
		got = usage.Bytes.Total
	} else {
		return nil
	}
	if got < want/8*7 { // a file system needs some for itself
		return fmt.Errorf("it has %d bytes after its expansion to %d", got, want)
	}
	return nil
}
