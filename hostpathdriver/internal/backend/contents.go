package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	// diskName is the file in the directory of contents that are a disk.
	diskName = "disk"
)

// Contents keeps the contents of volumes or snapshots as one directory each:
// the contents themselves, or, for a disk, a directory with one sparse file in
// it. A driver for real storage has a client of its storage system here.
type Contents struct {
	data    string
	trash   string
	mounter mount.Mounter
	quotas  quota.Quotas
}

// Leftovers is what Recover found without a record.
type Leftovers struct {
	// Removed were empty, or in the trash.
	Removed []string
	// Kept have contents, so that an administrator must decide.
	Kept []string
	// Failed are the errors of removals from the trash.
	Failed []error
}

// contentsAt returns the contents below root in the directory of that name. The
// mounter finds mounts inside directories that are to be removed; the quotas limit
// directories to their size, where the file system can.
func contentsAt(root, name string, mounter mount.Mounter, quotas quota.Quotas) *Contents {
	return &Contents{data: filepath.Join(root, name), trash: filepath.Join(root, trashDir), mounter: mounter, quotas: quotas}
}

// Path returns the directory of contents.
func (c *Contents) Path(id volume.ID) string {
	return filepath.Join(c.data, string(id))
}

// Disk returns the file of contents that are a disk.
func (c *Contents) Disk(id volume.ID) string {
	return filepath.Join(c.Path(id), diskName)
}

// Place returns the file or directory that is source or destination of a copy.
func (c *Contents) Place(id volume.ID, f volume.Form) string {
	if f.Disk {
		return c.Disk(id)
	}
	return c.Path(id)
}

// Exists reports whether there are contents.
func (c *Contents) Exists(id volume.ID) bool {
	info, err := os.Lstat(c.Path(id))
	return err == nil && info.IsDir()
}

// Create makes an empty directory with the attributes, or a disk of zeros that
// takes no space yet, durably. A directory that exists gets the attributes.
func (c *Contents) Create(id volume.ID, f volume.Form, size int64, attributes volume.Attributes) error {
	if !f.Disk {
		return c.makeDirectory(id, size, attributes)
	}
	if err := c.Begin(id, f, 0); err != nil {
		return err
	}
	if f.FSType != "" {
		if err := c.touch(id, unformattedName, 0); err != nil {
			return err
		}
	}
	if err := c.touch(id, diskName, size); err != nil {
		return err
	}
	return state.SyncDir(c.Path(id))
}

// Begin makes a directory to copy to. If it is the contents itself, it is limited
// to that size; zero is no limit.
func (c *Contents) Begin(id volume.ID, f volume.Form, size int64) error {
	if f.Disk {
		size = 0
	}
	return c.makeDirectory(id, size, volume.Attributes{Mode: 0o700, UID: -1, GID: -1})
}

func (c *Contents) makeDirectory(id volume.ID, size int64, attributes volume.Attributes) error {
	path := c.Path(id)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create contents of %q: %w", id, err)
	}
	if err := c.limit(path, size); err != nil {
		return err
	}
	if err := applyOwnership(path, attributes); err != nil {
		return err
	}
	return state.SyncDir(c.data)
}

// limit limits a new directory to its size, where the file system can.
func (c *Contents) limit(path string, size int64) error {
	if size == 0 {
		return nil
	}
	err := c.quotas.Limit(path, size)
	if errors.Is(err, quota.ErrUnavailable) || errors.Is(err, quota.ErrInherited) {
		return nil
	}
	return err
}

// Resize makes contents durably as large as their record says, if they are not.
// A directory that was made without a limit stays unlimited.
func (c *Contents) Resize(id volume.ID, f volume.Form, size int64) error {
	if f.Disk {
		return c.growDisk(id, size)
	}
	now, limited, err := c.quotas.Usage(c.Path(id))
	if err != nil || !limited || now.Limit >= size {
		return err
	}
	return c.quotas.Limit(c.Path(id), size)
}

// applyOwnership sets the requested owner, group and mode of a directory.
func applyOwnership(path string, a volume.Attributes) error {
	if err := os.Lchown(path, a.UID, a.GID); err != nil {
		return fmt.Errorf("set owner of %s to uid %d and gid %d: %w", path, a.UID, a.GID, err)
	}
	// After the change of owner, which clears the setuid and setgid bits.
	if err := os.Chmod(path, a.Mode); err != nil {
		return fmt.Errorf("set mode of %s to %v: %w", path, a.Mode, err)
	}
	return nil
}

// touch makes a file of zeros, or takes the one that an interrupted call made.
func (c *Contents) touch(id volume.ID, name string, size int64) error {
	file, err := os.OpenFile(filepath.Join(c.Path(id), name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("create contents of %q: %w", id, err)
	}
	return resize(id, file, size)
}

// resize gives the file of a disk its size durably, and closes it.
func resize(id volume.ID, file *os.File, size int64) error {
	err := file.Truncate(size)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("make the file of %q %d bytes large: %w", id, size, err)
	}
	return nil
}

func (c *Contents) growDisk(id volume.ID, size int64) error {
	info, err := os.Stat(c.Disk(id))
	if err != nil {
		return fmt.Errorf("look at the file of %q: %w", id, err)
	}
	if info.Size() >= size {
		return nil
	}
	file, err := os.OpenFile(c.Disk(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the file of %q to make it larger: %w", id, err)
	}
	return resize(id, file, size)
}

// Wipe makes a disk one of zeros again. It must not be attached.
func (c *Contents) Wipe(id volume.ID) error {
	file, err := os.OpenFile(c.Disk(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the file of %q to wipe it: %w", id, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = file.Truncate(0)
	}
	if err != nil {
		return fmt.Errorf("wipe the file of %q: %w", id, errors.Join(err, file.Close()))
	}
	return resize(id, file, info.Size())
}

// Abandon removes contents to which nothing was written yet. Missing contents are
// no error.
func (c *Contents) Abandon(id volume.ID) error {
	if err := c.removeBlank(c.Path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("undo creation of %q: %w", id, err)
	}
	return nil
}

// removeBlank removes an empty directory, or that of a disk that has never been
// written to. Any other directory stays, and is an error.
func (c *Contents) removeBlank(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := filepath.Join(path, entry.Name())
		if !entry.Type().IsRegular() || !slices.Contains([]string{diskName, unformattedName, unreplayedName}, entry.Name()) {
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
	if err := c.quotas.Release(path); err != nil {
		return err
	}
	return os.Remove(path)
}

// allHoles reports whether a file takes no space: it reads as zeros throughout.
func allHoles(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	_, err = file.Seek(0, unix.SEEK_DATA)
	blank := errors.Is(err, unix.ENXIO) // no data from here on
	if blank {
		err = nil
	}
	return blank, errors.Join(err, file.Close())
}

// Discard moves a volume into the trash at once and durably. One that does
// not exist is no error; one with a mount inside is an ErrInUse.
func (c *Contents) Discard(ctx context.Context, id volume.ID) error {
	if !c.Exists(id) {
		return checkDir(c.data) // without it the contents are on a disk that is missing for now
	}
	if err := c.checkNoMounts(ctx, c.Path(id)); err != nil {
		return fmt.Errorf("discard %q: %w", id, err)
	}
	if err := c.Purge(ctx, id); err != nil {
		return err
	}
	if err := os.Rename(c.Path(id), c.trashed(id)); err != nil {
		return fmt.Errorf("discard %q: %w", id, err)
	}
	return errors.Join(state.SyncDir(c.trash), state.SyncDir(c.data))
}

// Purge removes a discarded volume's contents. When ctx ends in the middle,
// the rest remains in the trash and Purge can be called again. A mount inside
// is an ErrInUse: removing would delete files of the mounted file system.
func (c *Contents) Purge(ctx context.Context, id volume.ID) error {
	if err := c.empty(ctx, c.trashed(id)); err != nil {
		return fmt.Errorf("remove contents of %q: %w", id, err)
	}
	return nil
}

func (c *Contents) empty(ctx context.Context, path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = c.checkNoMounts(ctx, path)
	}
	if err == nil {
		err = c.quotas.Release(path)
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		err := ctx.Err()
		if err == nil {
			err = os.RemoveAll(filepath.Join(path, entry.Name()))
		}
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

func (c *Contents) checkNoMounts(ctx context.Context, path string) error {
	below, err := c.mounter.Below(ctx, path)
	if err == nil && len(below) > 0 {
		err = fmt.Errorf("%s is mounted inside it: %w", below[0], volume.ErrInUse)
	}
	return err
}

// Recover removes what a crash left: the trash, and volumes without a record
// to which nothing was written. A failed removal does not prevent the start.
func (c *Contents) Recover(ctx context.Context, known func(volume.ID) bool) (Leftovers, error) {
	var left Leftovers
	trashed, err := os.ReadDir(c.trash)
	if err != nil {
		return left, fmt.Errorf("list discarded volumes: %w", err)
	}
	for _, entry := range trashed {
		id := volume.ID(entry.Name())
		switch err := c.Purge(ctx, id); {
		case ctx.Err() != nil:
			return left, err
		case err != nil:
			left.Failed = append(left.Failed, err)
		default:
			left.Removed = append(left.Removed, c.trashed(id))
		}
	}
	entries, err := os.ReadDir(c.data)
	if err != nil {
		return left, fmt.Errorf("list volumes: %w", err)
	}
	for _, entry := range entries {
		if known(volume.ID(entry.Name())) {
			continue
		}
		path := filepath.Join(c.data, entry.Name())
		if err := c.removeBlank(path); err != nil {
			left.Kept = append(left.Kept, path)
			continue
		}
		left.Removed = append(left.Removed, path)
	}
	return left, nil
}

func (c *Contents) trashed(id volume.ID) string {
	return filepath.Join(c.trash, string(id))
}

func (c *Contents) discarded(id volume.ID) bool {
	_, err := os.Lstat(c.trashed(id))
	return err == nil
}
