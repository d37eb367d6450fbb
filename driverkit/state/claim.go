package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// ownerFile has the name of the driver that a directory belongs to.
	ownerFile = "driver"
	// othersDir has the directories of the other drivers.
	othersDir = "drivers"
)

// Claim returns the directory of a driver in one that several drivers may share, and makes it. The first driver has the directory itself, as did the versions that had no other; each other driver has one
// of its name below "drivers". The same name has the same directory again. An error names the directory.
func Claim(dir, driver string) (string, error) {
	if driver != filepath.Base(driver) || strings.HasPrefix(driver, ".") {
		return "", fmt.Errorf("claim a directory in %s for driver %q: its name must be one of a file", dir, driver)
	}
	own := dir
	owner, err := ownerOf(dir, driver)
	if err == nil && owner != driver {
		own = filepath.Join(dir, othersDir, driver)
		err = os.MkdirAll(own, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("claim a directory in %s for driver %q: %w", dir, driver, err)
	}
	return own, nil
}

// ownerOf returns the driver that a directory belongs to: this one, if it belongs to none yet.
func ownerOf(dir, driver string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, ownerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = own(dir, path, driver); IsFull(err) {
			return driver, nil // a full disk must not keep a driver from starting, which may make room; the next start writes it
		}
		if err == nil {
			text, err = os.ReadFile(path)
		}
	}
	if owner := strings.TrimSpace(string(text)); err != nil || owner != "" {
		return owner, err
	}
	return "", fmt.Errorf("%s is empty: write the name of the driver whose volumes are in %s into it", path, dir)
}

// own makes a directory that of a driver, unless another process does so at the same time.
func own(dir, path, driver string) (err error) {
	file, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.WriteString(driver + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(dir)
}
