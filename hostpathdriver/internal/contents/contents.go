// Package contents keeps the contents of volumes and snapshots below a root directory:
//
//	<root>/volumes/<id>/              a volume that is a directory
//	<root>/volumes/<id>/disk          a volume that is a disk: a sparse file
//	<root>/volumes/<id>/unformatted   until a node has made the file system of an image
//	<root>/volumes/<id>/unreplayed    until a node has mounted the copy of an image for writing once
//	<root>/snapshots/<id>/            a snapshot, in the same way
//	<root>/copies/<id>/               a copy that is not complete
//	<root>/trash/<id>/                contents that are being deleted
//
// It keeps no records, and does not know what exists: its caller writes the record of an object when the contents are complete, and deletes it when they
// are in the trash. A driver for real storage has a client of its storage system here.
package contents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// The kinds of contents, and the names of their directories.
const (
	Volumes   = "volumes"
	Snapshots = "snapshots"

	trashDir  = "trash"
	copiesDir = "copies"
	diskName  = "disk"
)

// Store is the contents of one kind below a root.
type Store struct {
	root, data string
	mounter    mount.Mounter
}

// At returns the contents of a kind below a root. The mounter finds mounts in directories that are to be removed.
func At(root, kind string, mounter mount.Mounter) *Store {
	return &Store{root: root, data: filepath.Join(root, kind), mounter: mounter}
}

// Prepare makes the directories below a root.
func Prepare(root string, kinds ...string) error {
	for _, name := range append([]string{trashDir, copiesDir}, kinds...) {
		if err := os.MkdirAll(filepath.Join(root, name), 0o700); err != nil {
			return fmt.Errorf("create directory for contents: %w", err)
		}
	}
	return nil
}

// Copies returns the copies that are not complete.
func (s *Store) Copies() *Store {
	return &Store{root: s.root, data: filepath.Join(s.root, copiesDir), mounter: s.mounter}
}

// Path returns the directory of contents.
func (s *Store) Path(id string) string { return filepath.Join(s.data, id) }

// Disk returns the file of contents that are a disk.
func (s *Store) Disk(id string) string { return filepath.Join(s.data, id, diskName) }

// Place returns the file or directory that is the source or destination of a copy.
func (s *Store) Place(id string, f volume.Form) string {
	if f.Disk {
		return s.Disk(id)
	}
	return s.Path(id)
}

// Exists reports whether there are contents.
func (s *Store) Exists(id string) bool {
	info, err := os.Lstat(s.Path(id))
	return err == nil && info.IsDir()
}

// CheckReachable reports whether the store is there. If not, its disk is not mounted, and the error is an ErrUnavailable.
func (s *Store) CheckReachable() error {
	info, err := os.Stat(s.data)
	if err == nil && !info.IsDir() {
		err = errors.New("is no directory")
	}
	if err != nil {
		return fmt.Errorf("%s is missing: is its disk mounted, and does the driver's container have it? %w: %w", s.data, err, driverkit.ErrUnavailable)
	}
	return nil
}

// Create makes an empty directory with mode and owner of the parameters, or a disk of zeros that takes no space yet, durably.
func (s *Store) Create(id string, f volume.Form, size int64, p volume.Parameters) error {
	if !f.Disk {
		return s.makeDirectory(id, p)
	}
	if err := s.Begin(id); err != nil {
		return err
	}
	if f.FSType != "" {
		if err := s.touch(id, unformatted, 0); err != nil {
			return err
		}
	}
	if err := s.touch(id, diskName, size); err != nil {
		return err
	}
	return state.SyncDir(s.Path(id))
}

// Begin makes a directory to copy to.
func (s *Store) Begin(id string) error {
	return s.makeDirectory(id, volume.Parameters{Mode: 0o700, UID: -1, GID: -1})
}

func (s *Store) makeDirectory(id string, p volume.Parameters) error {
	if err := os.Mkdir(s.Path(id), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create contents of %q: %w", id, err)
	}
	if err := Own(s.Path(id), p); err != nil {
		return err
	}
	return state.SyncDir(s.data)
}

// Own sets the requested owner, group and mode of a directory.
func Own(path string, p volume.Parameters) error {
	if err := os.Lchown(path, p.UID, p.GID); err != nil {
		return fmt.Errorf("set owner of %s to uid %d and gid %d: %w", path, p.UID, p.GID, err)
	}
	if err := os.Chmod(path, p.Mode); err != nil { // After the change of owner, which clears the setuid and setgid bits.
		return fmt.Errorf("set mode of %s to %v: %w", path, p.Mode, err)
	}
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&bits != p.Mode&bits { // chmod(2) leaves out setgid without CAP_FSETID, and says nothing
		err = fmt.Errorf("it is %v: the driver's container needs the capability FSETID", info.Mode()&bits)
	}
	if err != nil {
		return fmt.Errorf("set mode of %s to %v: %w", path, p.Mode, err)
	}
	return nil
}

// touch makes a file of zeros, or takes the one that an interrupted call made.
func (s *Store) touch(id, name string, size int64) error {
	file, err := os.OpenFile(filepath.Join(s.Path(id), name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("create contents of %q: %w", id, err)
	}
	return resize(id, file, size)
}

// resize gives the file of a disk its size durably, and closes it.
func resize(id string, file *os.File, size int64) error {
	err := file.Truncate(size)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("make the file of %q %d bytes large: %w", id, size, err)
	}
	return nil
}

// Grow makes a disk durably as large as its record says, if it is not. One that is smaller than it was before is an ErrDataLoss, and stays as it is. A directory has no size.
func (s *Store) Grow(id string, f volume.Form, before, size int64) error {
	if !f.Disk {
		return nil
	}
	file, err := os.OpenFile(s.Disk(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the file of %q to make it larger: %w", id, err)
	}
	info, err := file.Stat()
	if err == nil && info.Size() < before {
		err = truncated(s.Disk(id), info.Size(), before)
	}
	if err != nil || info.Size() >= size {
		return errors.Join(err, file.Close())
	}
	return resize(id, file, size)
}

// CheckSize reports whether a disk has at least this size; it is an ErrDataLoss if not: its end was cut off, by a repair of the file system that it is on, or a copy that was put back.
func (s *Store) CheckSize(id string, size int64) error {
	info, err := os.Stat(s.Disk(id))
	if err == nil && info.Size() < size {
		err = truncated(s.Disk(id), info.Size(), size)
	}
	return err
}

func truncated(path string, has, want int64) error {
	return fmt.Errorf("%s has %d bytes, the volume %d: restore it, or cut the loss by making the file as large by hand: %w", path, has, want, driverkit.ErrDataLoss)
}

// Wipe makes a disk one of zeros again, as large as its record says: an interrupted call may have left it with no size. It must not be attached.
func (s *Store) Wipe(id string, size int64) error {
	file, err := os.OpenFile(s.Disk(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the file of %q to wipe it: %w", id, err)
	}
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("wipe the file of %q: %w", id, errors.Join(err, file.Close()))
	}
	return resize(id, file, size)
}

// Adopt moves a complete copy to where its record says it is, durably. The record is written when the copy is durable, and before it is moved: a crash in
// between leaves a copy with a record, which is adopted at the next start. Contents without a record would not be known from those of a lost record.
func (s *Store) Adopt(id string, record func() error) error {
	copies := s.Copies()
	if err := state.SyncDir(copies.Path(id)); err != nil {
		return err
	}
	if err := record(); err != nil {
		return err
	}
	if err := os.Rename(copies.Path(id), s.Path(id)); err != nil {
		return fmt.Errorf("take over the copy %q: %w", id, err)
	}
	return errors.Join(state.SyncDir(s.data), state.SyncDir(copies.data))
}

// Abandon removes contents to which nothing was written yet. Missing contents are no error.
func (s *Store) Abandon(id string) error {
	if err := s.removeBlank(s.Path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("undo creation of %q: %w", id, err)
	}
	return nil
}

// removeBlank removes an empty directory, or that of a disk that has never been written to. Any other directory stays, and is an error.
func (*Store) removeBlank(path string) error {
	entries, err := few(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := filepath.Join(path, entry.Name())
		if !entry.Type().IsRegular() || !slices.Contains([]string{diskName, unformatted, unreplayed}, entry.Name()) {
			return fmt.Errorf("%s: is not empty", path)
		}
		if blank, err := allHoles(name); err != nil || !blank {
			return errors.Join(err, fmt.Errorf("%s: has contents", name))
		}
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// few returns entries of a directory, all of them if it is that of a disk.
func few(path string) ([]fs.DirEntry, error) {
	const atMost = 10
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(atMost)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, errors.Join(err, dir.Close())
}

// allHoles reports whether a file takes no space: it reads as zeros throughout.
func allHoles(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	_, err = file.Seek(0, unix.SEEK_DATA)
	blank := errors.Is(err, unix.ENXIO) // No data from here on.
	if blank {
		err = nil
	}
	return blank, errors.Join(err, file.Close())
}

// Discard moves contents into the trash at once and durably, or removes them where that is as fast: an empty directory. Contents that do not exist are no error; those with a mount inside
// are an ErrInUse.
func (s *Store) Discard(ctx context.Context, id string) error {
	if !s.Exists(id) {
		return s.CheckReachable()
	}
	if unix.Rmdir(s.Path(id)) == nil { // which no mount is in
		return state.SyncDir(s.data)
	}
	if err := s.checkNoMounts(ctx, s.Path(id)); err != nil {
		return fmt.Errorf("discard %q: %w", id, err)
	}
	if s.Discarded(id) { // by an interrupted call
		if err := s.Purge(ctx, id); err != nil {
			return err
		}
	}
	if err := os.Rename(s.Path(id), s.Trashed(id)); err != nil {
		return fmt.Errorf("discard %q: %w", id, err)
	}
	return errors.Join(state.SyncDir(filepath.Dir(s.Trashed(id))), state.SyncDir(s.data))
}

// Purge removes discarded contents. When ctx ends in the middle, the rest remains in the trash and Purge can be called again. A mount inside is an ErrInUse:
// removing would delete files of the mounted file system.
func (s *Store) Purge(ctx context.Context, id string) error { return s.remove(ctx, s.Trashed(id)) }

// Remove removes a copy that is not complete.
func (s *Store) Remove(ctx context.Context, id string) error { return s.remove(ctx, s.Path(id)) }

func (s *Store) remove(ctx context.Context, path string) error {
	err := s.checkNoMounts(ctx, path)
	if err == nil {
		err = removeTree(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("remove contents in %s: %w", path, err)
	}
	return nil
}

func (s *Store) checkNoMounts(ctx context.Context, path string) error {
	below, err := s.mounter.Below(ctx, path)
	if err == nil && len(below) > 0 {
		err = fmt.Errorf("%s is mounted inside it: %w", below[0], driverkit.ErrInUse)
	}
	return err
}

// Leftovers is what Recover found without a record.
type Leftovers struct {
	// Removed were empty, and Discarded are copies, which are in the trash now.
	Removed, Discarded []string
	// Kept have contents, so that an administrator must decide.
	Kept []string
}

// copyPrefix begins the names of copies in the trash: no id of contents begins so.
const copyPrefix = ".copy-"

// Recover moves what a crash left of copies into the trash, and removes contents without a record to which nothing was written. How much a tenant has put there makes no difference.
func (s *Store) Recover(known func(id string) bool) (Leftovers, error) {
	var left Leftovers
	copies, err := os.ReadDir(s.Copies().data)
	if err != nil {
		return left, fmt.Errorf("list copies that are not complete: %w", err)
	}
	for _, entry := range copies {
		path := s.Copies().Path(entry.Name())
		if err := s.discardCopy(path, entry.Name()); err != nil {
			return left, fmt.Errorf("discard a copy that is not complete: %w", err)
		}
		left.Discarded = append(left.Discarded, path)
	}
	entries, err := os.ReadDir(s.data)
	if err != nil {
		return left, fmt.Errorf("list contents: %w", err)
	}
	for _, entry := range entries {
		if known(entry.Name()) {
			continue
		}
		path := filepath.Join(s.data, entry.Name())
		if err := s.removeBlank(path); err != nil {
			left.Kept = append(left.Kept, path)
			continue
		}
		left.Removed = append(left.Removed, path)
	}
	return left, nil
}

// discardCopy moves a copy into the trash, where another one of its name may be.
func (s *Store) discardCopy(path, id string) error {
	for n := 0; ; n++ {
		err := os.Rename(path, s.Trashed(fmt.Sprint(copyPrefix, id, "-", n)))
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// Empty removes all that is in the trash, and calls done with the path and the error of each removal, until ctx ends.
func (s *Store) Empty(ctx context.Context, done func(path string, err error)) error {
	entries, err := os.ReadDir(s.Trashed("."))
	if err != nil {
		return fmt.Errorf("list the trash: %w", err)
	}
	for _, entry := range entries {
		path := s.Trashed(entry.Name())
		err := s.remove(ctx, path)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done(path, err)
	}
	return nil
}

// Trashed is where contents are when they are discarded.
func (s *Store) Trashed(id string) string { return filepath.Join(s.root, trashDir, id) }

// Discarded reports whether contents are in the trash.
func (s *Store) Discarded(id string) bool {
	_, err := os.Lstat(s.Trashed(id))
	return err == nil
}

// OwnerOf returns the id of the contents that a path of a disk belongs to, with or without the directories above; empty for any other path.
func OwnerOf(file string) string {
	dir, name := filepath.Split(file)
	parent, id := filepath.Split(filepath.Clean(dir))
	if kind := filepath.Base(parent); name != diskName || kind != Volumes && kind != trashDir || volume.CheckID(id) != nil {
		return ""
	}
	return id
}

// DisksOf returns where the disk of an id may be below a root.
func DisksOf(root, id string) []string {
	return []string{filepath.Join(root, Volumes, id, diskName), filepath.Join(root, trashDir, id, diskName)}
}
