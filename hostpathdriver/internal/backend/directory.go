package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// diskName is the file in the directory of a block volume.
const diskName = "disk"

// Directory keeps the contents of volumes as one directory each: the volume
// itself, or, for a block volume, a directory with one sparse file in it. A
// driver for real storage has a client of its storage system in this place.
type Directory struct {
	data    string
	trash   string
	mounter mount.Mounter
}

// Leftovers is what Recover found without a record.
type Leftovers struct {
	// Removed were empty, or in the trash.
	Removed []string
	// Kept have contents, so that a human must look at them.
	Kept []string
	// Failed says what could not be removed from the trash, and why.
	Failed []error
}

// OpenDirectory prepares root for volumes. The mounter tells what must not be
// removed, because something else is mounted there.
func OpenDirectory(root string, mounter mount.Mounter) (*Directory, error) {
	d := directoryAt(root, mounter)
	for _, dir := range []string{d.data, d.trash} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create directory for volumes: %w", err)
		}
	}
	return d, nil
}

func directoryAt(root string, mounter mount.Mounter) *Directory {
	return &Directory{data: filepath.Join(root, volumesDir), trash: filepath.Join(root, trashDir), mounter: mounter}
}

// Path returns where the contents of a volume are.
func (d *Directory) Path(id volume.ID) string {
	return filepath.Join(d.data, string(id))
}

// Exists tells whether a volume has contents.
func (d *Directory) Exists(id volume.ID) bool {
	info, err := os.Lstat(d.Path(id))
	return err == nil && info.IsDir()
}

// Create makes an empty volume durably. One that exists gets the attributes.
func (d *Directory) Create(id volume.ID, attributes volume.Attributes) error {
	path := d.Path(id)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create volume %q: %w", id, err)
	}
	if err := os.Lchown(path, attributes.UID, attributes.GID); err != nil {
		return fmt.Errorf("give volume %q to uid %d and gid %d: %w", id, attributes.UID, attributes.GID, err)
	}
	// After the change of owner, which clears the setuid and setgid bits.
	if err := os.Chmod(path, attributes.Mode); err != nil {
		return fmt.Errorf("set mode of volume %q to %v: %w", id, attributes.Mode, err)
	}
	return state.SyncDir(d.data)
}

// Disk returns where the contents of a block volume are.
func (d *Directory) Disk(id volume.ID) string {
	return filepath.Join(d.Path(id), diskName)
}

// CreateDisk makes a block volume of zeros durably. It takes no space yet.
func (d *Directory) CreateDisk(id volume.ID, size int64) error {
	if err := d.Create(id, volume.Attributes{Mode: 0o700, UID: -1, GID: -1}); err != nil {
		return err
	}
	file, err := os.OpenFile(d.Disk(id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create volume %q: %w", id, err)
	}
	err = file.Truncate(size)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("make the file of volume %q %d bytes large: %w", id, size, err)
	}
	return state.SyncDir(d.Path(id))
}

// GrowDisk makes a block volume larger durably; one that is large enough stays
// as it is.
func (d *Directory) GrowDisk(id volume.ID, size int64) error {
	info, err := os.Stat(d.Disk(id))
	if err != nil {
		return fmt.Errorf("look at the file of volume %q: %w", id, err)
	}
	if info.Size() >= size {
		return nil
	}
	file, err := os.OpenFile(d.Disk(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the file of volume %q to make it larger: %w", id, err)
	}
	err = file.Truncate(size)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("make the file of volume %q %d bytes large: %w", id, size, err)
	}
	return nil
}

// Abandon removes a volume to which nothing was written yet. One that does not
// exist is no error.
func (d *Directory) Abandon(id volume.ID) error {
	if err := removeBlank(d.Path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("undo creation of volume %q: %w", id, err)
	}
	return nil
}

// removeBlank removes an empty directory, or that of a block volume that has
// never been written to. What has contents stays, and is an error.
func removeBlank(path string) error {
	disk := filepath.Join(path, diskName)
	blank, err := allHoles(disk)
	if err == nil && blank {
		err = os.Remove(disk)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(path)
}

// allHoles tells whether a file takes no space: it reads as zeros throughout.
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
func (d *Directory) Discard(ctx context.Context, id volume.ID) error {
	if !d.Exists(id) {
		return nil
	}
	if err := d.checkNoMounts(ctx, d.Path(id)); err != nil {
		return fmt.Errorf("discard volume %q: %w", id, err)
	}
	if err := d.Purge(ctx, id); err != nil {
		return err
	}
	if err := os.Rename(d.Path(id), d.trashed(id)); err != nil {
		return fmt.Errorf("discard volume %q: %w", id, err)
	}
	return errors.Join(state.SyncDir(d.trash), state.SyncDir(d.data))
}

// Purge removes a discarded volume's contents. When ctx ends in the middle,
// the rest remains in the trash and Purge can be called again. A mount inside
// is an ErrInUse: removing would reach into what is mounted.
func (d *Directory) Purge(ctx context.Context, id volume.ID) error {
	if err := d.empty(ctx, d.trashed(id)); err != nil {
		return fmt.Errorf("remove contents of volume %q: %w", id, err)
	}
	return nil
}

func (d *Directory) empty(ctx context.Context, path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.checkNoMounts(ctx, path)
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

func (d *Directory) checkNoMounts(ctx context.Context, path string) error {
	below, err := d.mounter.Below(ctx, path)
	if err == nil && len(below) > 0 {
		err = fmt.Errorf("%s is mounted inside it: %w", below[0], volume.ErrInUse)
	}
	return err
}

// Recover removes what a crash left: the trash, and volumes without a record
// to which nothing was written. What cannot be removed stops nobody from starting.
func (d *Directory) Recover(ctx context.Context, known func(volume.ID) bool) (Leftovers, error) {
	var left Leftovers
	trashed, err := os.ReadDir(d.trash)
	if err != nil {
		return left, fmt.Errorf("list discarded volumes: %w", err)
	}
	for _, entry := range trashed {
		id := volume.ID(entry.Name())
		switch err := d.Purge(ctx, id); {
		case ctx.Err() != nil:
			return left, err
		case err != nil:
			left.Failed = append(left.Failed, err)
		default:
			left.Removed = append(left.Removed, d.trashed(id))
		}
	}
	entries, err := os.ReadDir(d.data)
	if err != nil {
		return left, fmt.Errorf("list volumes: %w", err)
	}
	for _, entry := range entries {
		if known(volume.ID(entry.Name())) {
			continue
		}
		path := filepath.Join(d.data, entry.Name())
		if err := removeBlank(path); err != nil {
			left.Kept = append(left.Kept, path)
			continue
		}
		left.Removed = append(left.Removed, path)
	}
	return left, nil
}

func (d *Directory) trashed(id volume.ID) string {
	return filepath.Join(d.trash, string(id))
}

func (d *Directory) discarded(id volume.ID) bool {
	_, err := os.Lstat(d.trashed(id))
	return err == nil
}
