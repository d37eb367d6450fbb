package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
)

// The directories below the root. Each object has one in volumes or snapshots, with its subvolume, data, and what btrfs does not remember, object. It is made in making and removed in removing: an
// object exists, or does not, by one rename.
const (
	volumes   = "volumes"
	snapshots = "snapshots"
	making    = "making"
	removing  = "removing"
)

// store is a directory of a btrfs file system with quotas.
type store struct {
	root string
	// node is the segment of its node.
	node driverkit.Segments
}

// object is a volume or a snapshot.
type object struct {
	ID      string    `json:"id"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	// Source is that of a volume, Volume that of a snapshot.
	Source *driverkit.Source `json:"source,omitempty"`
	Volume string            `json:"volume,omitempty"`
}

func openStore(root string, node driverkit.Segments) (*store, error) {
	for _, dir := range []string{volumes, snapshots, making, removing} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("make the directories of volumes: %w", err)
		}
	}
	return &store{root: root, node: node}, nil
}

func (s *store) path(kind, id string) string {
	return filepath.Join(s.root, kind, driverkit.FileName(id))
}

func (s *store) data(kind, id string) string { return filepath.Join(s.path(kind, id), "data") }

// find returns an object, or driverkit.NotFound.
func (s *store) find(kind, id string) (*object, error) {
	text, err := os.ReadFile(filepath.Join(s.path(kind, id), "object"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, driverkit.NotFound(strings.TrimSuffix(kind, "s"), id)
	}
	if err != nil {
		return nil, err
	}
	found := &object{}
	return found, json.Unmarshal(text, found)
}

func (s *store) all(kind string) (all []*object, err error) {
	entries, err := os.ReadDir(filepath.Join(s.root, kind))
	for _, e := range entries {
		found, err := s.find(kind, e.Name())
		if errors.Is(err, driverkit.ErrNotFound) { // It was deleted since.
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	return all, err
}

// write replaces what is known of an object in its directory.
func (o *object) write(dir string) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "object")
	return errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file))
}

// make makes an object, from another subvolume or empty, whole or not at all.
func (s *store) make(ctx context.Context, kind string, o *object, from string) error {
	dir := s.path(making, kind+"-"+o.ID)
	if err := s.remove(ctx, dir); err != nil { // of a call that was interrupted
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := s.fill(ctx, filepath.Join(dir, "data"), kind, o.Size, from); err != nil {
		return err
	}
	if err := o.write(dir); err != nil {
		return err
	}
	driverkit.FaultPoint(ctx, "made, and not there yet")
	if _, err := btrfs(ctx, "filesystem", "sync", s.root); err != nil {
		return err
	}
	return os.Rename(dir, s.path(kind, o.ID))
}

func (s *store) fill(ctx context.Context, data, kind string, size int64, from string) error {
	switch {
	case kind == snapshots:
		_, err := btrfs(ctx, "subvolume", "snapshot", "-r", from, data)
		return err
	case from != "":
		if _, err := btrfs(ctx, "subvolume", "snapshot", from, data); err != nil {
			return err
		}
	default:
		if _, err := btrfs(ctx, "subvolume", "create", data); err != nil {
			return err
		}
		if err := os.Chmod(data, 0o777); err != nil { // Users of a volume are not root.
			return err
		}
	}
	return s.limit(ctx, data, size)
}

// limit sets the quota of a subvolume.
func (s *store) limit(ctx context.Context, data string, size int64) error {
	_, err := btrfs(ctx, "qgroup", "limit", strconv.FormatInt(size, 10), data)
	return err
}

// delete deletes an object; none is no error.
func (s *store) delete(ctx context.Context, kind, id string) error {
	removed := s.path(removing, kind+"-"+driverkit.FileName(id))
	if err := s.remove(ctx, removed); err != nil { // of a call that was interrupted
		return err
	}
	if err := os.Rename(s.path(kind, id), removed); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	driverkit.FaultPoint(ctx, "not there any more, and not removed yet")
	return s.remove(ctx, removed)
}

// remove removes a directory with its subvolume and the quota of that.
func (s *store) remove(ctx context.Context, dir string) error {
	data := filepath.Join(dir, "data")
	if _, err := os.Lstat(data); err == nil {
		group, err := btrfs(ctx, "inspect-internal", "rootid", data)
		if err != nil {
			return err
		}
		if _, err := btrfs(ctx, "subvolume", "delete", "--commit-after", data); err != nil {
			return err
		}
		_, _ = btrfs(ctx, "qgroup", "destroy", "0/"+strings.TrimSpace(group), s.root) // newer kernels do it themselves
	}
	return os.RemoveAll(dir)
}

// btrfs runs btrfs(8).
func btrfs(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "btrfs", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("btrfs %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
