package records

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// Attachment is the record of a VolumeAttachment that this node creates. A kubelet has none.
type Attachment struct {
	// SpecVolID is the name of the PersistentVolume; empty if it is not known.
	SpecVolID string
	// Handle is the volume_id.
	Handle string
	// Driver is the name of the CSI driver.
	Driver string
	// Name is the name of the VolumeAttachment.
	Name string
	// UID is that of an attachment that is no object of an API server; empty for others.
	UID types.UID
	// Deleting is the UID of the VolumeAttachment of this name that is to be deleted; empty for none.
	Deleting types.UID
}

const keyDeleting = "deletingUID"

// Write puts the record into a directory of its own below dir, which is made.
func (a Attachment) Write(dir string) error {
	path := filepath.Join(dir, a.Name)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return fmt.Errorf("make directory of attachment: %w", err)
	}
	rec := map[string]string{keyHandle: a.Handle, keyDriver: a.Driver, keyAttachment: a.Name}
	set(rec, keySpecVolID, a.SpecVolID)
	set(rec, keyAttachmentUID, string(a.UID))
	set(rec, keyDeleting, string(a.Deleting))
	return errors.Join(write(path, rec), syncDir(dir))
}

// ReadAttachments reads all records below dir, which need not exist. Those that cannot be used are in the error. A directory without a record is that of an
// attachment that was not created, or is gone; it is removed.
func ReadAttachments(dir string) ([]Attachment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the records of attachments: %w", err)
	}
	var (
		all  []Attachment
		errs []error
	)
	for _, e := range entries {
		m, err := read(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, RemoveAttachment(dir, e.Name()))
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, Attachment{
				SpecVolID: m[keySpecVolID], Handle: m[keyHandle], Driver: m[keyDriver], Name: e.Name(),
				UID: types.UID(m[keyAttachmentUID]), Deleting: types.UID(m[keyDeleting]),
			})
		}
	}
	return all, errors.Join(errs...)
}

// RemoveAttachment removes a record. One that is not there is no error.
func RemoveAttachment(dir, name string) error {
	path := filepath.Join(dir, name)
	if err := Remove(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of an attachment: %w", err)
	}
	return nil
}
