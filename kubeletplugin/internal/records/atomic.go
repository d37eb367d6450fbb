package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// tempFile is where the next record is written before it replaces the old one. Only one writer at
// a time works on a directory, so the name need not be unique.
const tempFile = "." + layout.RecordFile + ".tmp"

func write(dir string, m map[string]string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode volume record for %q: %w", dir, err)
	}
	temp := filepath.Join(dir, tempFile)
	if err := writeSynced(temp, append(data, '\n')); err != nil {
		return fmt.Errorf("write volume record: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, layout.RecordFile)); err != nil {
		return fmt.Errorf("replace volume record: %w", err)
	}
	return syncDir(dir)
}

// Link makes a symbolic link to a path, which need not exist, and syncs its directory, which must. A link to another path is
// replaced.
func Link(path, link string) error {
	if found, err := os.Readlink(link); err == nil && found != path {
		if err := os.Remove(link); err != nil {
			return fmt.Errorf("replace link: %w", err)
		}
	} else if err == nil {
		return nil
	}
	if err := os.Symlink(path, link); err != nil {
		return fmt.Errorf("make link: %w", err)
	}
	return syncDir(filepath.Dir(link))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %q: %w", dir, err)
	}
	return nil
}
