package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// copyStories are those of what is made of something else.
func copyStories() []story {
	remove := func(name string) func(*system) error {
		return withNamed(name, func(s *system, v *volume.Volume) error { return s.volumes.Delete(s.ctx, v.ID) })
	}
	stage := withNamed("pvc-1", func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageImage(v.ID, "")) })
	unstage := withNamed("pvc-1", func(s *system, v *volume.Volume) error { return s.node.Unstage(s.ctx, v.ID, s.staging(v.ID)) })
	stageDevice := withNamed("pvc-3", func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageBlock(v.ID)) })
	unstageDevice := withNamed("pvc-3", func(s *system, v *volume.Volume) error { return s.node.Unstage(s.ctx, v.ID, s.staging(v.ID)) })
	expand := withNamed("pvc-1", func(s *system, v *volume.Volume) error {
		if _, err := s.expand(v.ID, 2*gib); err != nil {
			return err
		}
		// A reboot may have forgotten the staging mount; a CO stages again.
		if err := s.node.Stage(s.ctx, s.stageImage(v.ID, "")); err != nil {
			return err
		}
		_, err := s.expandOnNode(v.ID, s.staging(v.ID), 2*gib)
		return err
	})
	image := makeOnce(func() *volume.CreateRequest { return imageRequest("pvc-1", "ext4") })
	return []story{
		{
			name: "Image",
			do:   []func(*system) error{image, stage, expand},
			undo: []func(*system) error{unstage, remove("pvc-1")},
		},
		{
			name: "Clone",
			do:   []func(*system) error{written, cloned("pvc-2", sharer())},
			undo: []func(*system) error{remove("pvc-2"), remove("pvc-1")},
		},
		{
			name: "ImageClone",
			do:   []func(*system) error{image, stage, cloned("pvc-2", sharer())},
			undo: []func(*system) error{unstage, remove("pvc-2"), remove("pvc-1")},
		},
		{
			name: "Snapshot",
			do:   []func(*system) error{written, snapshotted, remove("pvc-1"), restored},
			undo: []func(*system) error{remove("pvc-2"), unsnapshotted, remove("pvc-1")},
		},
		{
			name: "Group",
			do:   []func(*system) error{written, makeOnce(func() *volume.CreateRequest { return blockRequest("pvc-3") }), grouped},
			undo: []func(*system) error{ungrouped, remove("pvc-3"), remove("pvc-1")},
		},
		{
			name: "GroupInUse",
			do:   []func(*system) error{written, makeOnce(func() *volume.CreateRequest { return blockRequest("pvc-3") }), stageDevice, grouped},
			undo: []func(*system) error{ungrouped, unstageDevice, remove("pvc-3"), remove("pvc-1")},
		},
	}
}

// makeOnce makes a volume that the story may have made before the crash.
func makeOnce(request func() *volume.CreateRequest) func(s *system) error {
	return func(s *system) error {
		req := request()
		_, err := s.volumes.Find(s.ctx, req.Name)
		if errors.Is(err, volume.ErrNotFound) {
			_, err = s.volumes.Create(s.ctx, req)
		}
		return errors.Join(err, s.copyAll())
	}
}

// written makes a volume with a file in it.
func written(s *system) error {
	v, err := s.named("pvc-1")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.contents(v.ID), "file"), []byte("text"), 0o600)
}

func cloned(name string, c volume.Capability) func(s *system) error {
	return withNamed("pvc-1", func(s *system, v *volume.Volume) error {
		req := from(name, volume.Source{Volume: v.ID})
		req.Capabilities = []volume.Capability{c}
		return errors.Join(makeOnce(func() *volume.CreateRequest { return req })(s), s.checkCopy(name))
	})
}

// checkCopy reports whether a volume has what its source had.
func (s *system) checkCopy(name string) error {
	v, err := s.volumes.Find(s.ctx, name)
	if err != nil {
		return err
	}
	if v.Filling {
		return fmt.Errorf("%s is not complete", name)
	}
	if v.Form().Disk {
		if size := s.diskSize(v.ID); size != v.Capacity {
			return fmt.Errorf("the file of %s has %d bytes, the volume %d", name, size, v.Capacity)
		}
		return nil
	}
	text, err := os.ReadFile(filepath.Join(s.contents(v.ID), "file"))
	if err == nil && string(text) != "text" {
		err = fmt.Errorf("%s has %q", name, text)
	}
	return err
}

var snapshotted = withNamed("pvc-1", func(s *system, v *volume.Volume) error {
	_, err := s.volumes.FindSnapshot(s.ctx, "snapshot")
	if errors.Is(err, volume.ErrNotFound) {
		_, err = s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "snapshot", Source: v.ID})
	}
	return errors.Join(err, s.copyAll())
})

func restored(s *system) error {
	found, err := s.volumes.FindSnapshot(s.ctx, "snapshot")
	if err != nil {
		return err
	}
	return errors.Join(makeOnce(func() *volume.CreateRequest { return from("pvc-2", volume.Source{Snapshot: found.ID}) })(s), s.checkCopy("pvc-2"))
}

func unsnapshotted(s *system) error {
	found, err := s.volumes.FindSnapshot(s.ctx, "snapshot")
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return errors.Join(err, s.volumes.DeleteSnapshot(s.ctx, found.ID))
}

func grouped(s *system) error {
	_, err := s.volumes.FindGroup(s.ctx, "group")
	if errors.Is(err, volume.ErrNotFound) {
		var sources []volume.ID
		for _, name := range []string{"pvc-1", "pvc-3"} {
			v, err := s.volumes.Find(s.ctx, name)
			if err != nil {
				return err
			}
			sources = append(sources, v.ID)
		}
		_, err = s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "group", Sources: sources})
	}
	if err := errors.Join(err, s.copyAll()); err != nil {
		return err
	}
	group, err := s.volumes.FindGroup(s.ctx, "group")
	if err == nil && group.Filling() {
		err = errors.New("the group is not complete")
	}
	for _, name := range []string{"pvc-1", "pvc-3"} {
		v, findErr := s.volumes.Find(s.ctx, name)
		if err = errors.Join(err, findErr); err == nil {
			err = v.CheckWritable()
		}
	}
	return err
}

func ungrouped(s *system) error {
	found, err := s.volumes.FindGroup(s.ctx, "group")
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case errors.Is(err, volume.ErrBusy): // members are gone already
		found, err = s.volumes.groups.catalog.find("group")
	}
	if err != nil {
		return err
	}
	return s.volumes.DeleteGroup(s.ctx, found.ID, found.Members)
}
