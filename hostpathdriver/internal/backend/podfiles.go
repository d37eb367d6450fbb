package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/podinfo"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Renew implements volume.NodeService.
func (n *Node) Renew(_ context.Context, req *volume.TargetRequest) error {
	known := n.get(req.ID)
	if known == nil || known.Ephemeral == nil || req.Inline == nil {
		return nil
	}
	attributes, err := volume.ParseInline(req.Inline.Attributes)
	if err != nil {
		return err
	}
	return n.showPod(known, req, attributes)
}

// showPod writes files with pod information into an inline volume that asks for
// them. What changes is replaced at once; the other files stay as they are, so
// that no watcher of the files is woken up.
func (n *Node) showPod(known *volume.NodeVolume, req *volume.TargetRequest, attributes volume.Attributes) error {
	if err := req.Inline.CheckPodInfo(attributes, known.Form()); err != nil || !attributes.PodInfo {
		return err
	}
	// The workload may write here: no path leads out of the root.
	root, err := os.OpenRoot(n.path(known))
	if err != nil {
		return fmt.Errorf("open inline volume %q: %w", known.ID, err)
	}
	reader := owner{uid: attributes.UID, gid: attributes.GID}
	if gid, asked := req.Target.Capability.GID(); asked {
		reader.gid, reader.shared = gid, true
	}
	files := req.Inline.Pod.Files()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		n.cfg.Step.at("inline:pod")
		if err = showFile(root, name, files[name], reader); err != nil {
			err = fmt.Errorf("write pod information to inline volume %q: %w", known.ID, err)
			break
		}
	}
	return errors.Join(err, root.Close())
}

// owner is who may read the files.
type owner struct {
	uid, gid int
	// shared is true for a group that was asked for; it may do what the user may.
	shared bool
}

func (o owner) mode(name string) fs.FileMode {
	mode := fs.FileMode(0o644)
	if name == podinfo.FileTokens {
		mode = 0o600
	}
	if o.shared {
		mode |= 0o060
	}
	return mode
}

func showFile(root *os.Root, name, content string, reader owner) error {
	if content != "" {
		if hasContent(root, name, content) {
			return nil
		}
		return replaceFile(root, name, content, reader)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hasContent reports whether a file already has the content. It does not block on a
// pipe that a workload may have put in its place.
func hasContent(root *os.Root, name, content string) bool {
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	read, err := io.ReadAll(io.LimitReader(file, int64(len(content))+1))
	return err == nil && string(read) == content
}

// replaceFile writes beside the file, and renames: a reader sees the old content
// or the new one. Tokens are for the owner of the volume alone, and for its group
// if one was asked for.
func replaceFile(root *os.Root, name, content string, reader owner) error {
	beside := "." + name + ".new"
	if err := root.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	if err == nil {
		err = file.Chown(reader.uid, reader.gid)
	}
	if err == nil {
		err = file.Chmod(reader.mode(name))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return root.Rename(beside, name)
}
