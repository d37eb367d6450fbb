package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	"golang.org/x/mod/modfile"
)

// skeleton has the files of a driver, as templates over names. A name ends with .tmpl so that Go does not take the file for its own.
//
//go:embed all:skeleton
var skeleton embed.FS

// kits are the modules of this repository that a driver needs, by their directories. Of csikittest it needs go.mod only, as the tests of
// driverkit use it.
func kits() []string { return []string{"csikit", "csikittest", "driverkit", "driverkit/drivertest"} }

// vendored is where a driver has the kits that it owns.
const vendored = "third_party/longshore"

// writer writes drivers.
type writer struct {
	root   string
	names  names
	vendor bool
}

// create writes the driver into dir: all of it or nothing.
func (w writer) create(ctx context.Context, dir string) error {
	dir, err := w.checkOut(dir)
	if err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-unfinished-")
	if err != nil {
		return fmt.Errorf("make a directory beside OUT: %w", err)
	}
	defer os.RemoveAll(unfinished) //nolint:errcheck // gone when all went well, and otherwise there is an error already
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return err
	}
	if err := w.write(ctx, unfinished); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the empty directory: %w", err)
	}
	return os.Rename(unfinished, dir)
}

// checkOut returns the absolute path of a directory in which a driver may be written.
func (w writer) checkOut(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("OUT is missing: a directory such as ../foo")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs(w.root)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(abs+"/", root+"/") {
		return "", fmt.Errorf("OUT=%s: must be outside of %s, whose Go workspace is not that of the driver", dir, root)
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return abs, nil
	case err != nil:
		return "", fmt.Errorf("OUT=%s: %w", dir, err)
	case len(entries) > 0:
		return "", fmt.Errorf("OUT=%s: must not exist, or be empty: has %s", dir, entries[0].Name())
	}
	return abs, nil
}

// write writes all files. The driver's module is tidied last, which finds an import that leads nowhere.
func (w writer) write(ctx context.Context, dir string) error {
	var err error
	if w.names.Checkout, err = w.checkout(dir); err != nil {
		return err
	}
	if err := errors.Join(w.fill(dir), w.copyLibrary(dir)); err != nil {
		return err
	}
	if w.vendor {
		if err := w.copyKits(dir); err != nil {
			return err
		}
	}
	if err := w.goMod(dir); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "tidy")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod tidy in the driver: %w: %s", err, out)
	}
	return nil
}

// fill writes the files of skeleton.
func (w writer) fill(dir string) error {
	return fs.WalkDir(skeleton, "skeleton", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		t, err := template.ParseFS(skeleton, path)
		if err != nil {
			return err
		}
		var text strings.Builder
		if err := t.Execute(&text, w.names); err != nil {
			return err
		}
		file := filepath.Join(dir, strings.TrimSuffix(strings.TrimPrefix(path, "skeleton/"), ".tmpl"))
		return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text.String()), 0o644)) //nolint:gosec // source for everybody
	})
}

// copyLibrary copies the library chart into the driver's chart, where helm finds it without a repository.
func (w writer) copyLibrary(dir string) error {
	const name = "charts/csi-driver-lib"
	to := filepath.Join(dir, "chart", name)
	if err := os.CopyFS(to, os.DirFS(filepath.Join(w.root, "deploy", name))); err != nil {
		return fmt.Errorf("copy the library chart: %w", err)
	}
	return errors.Join(os.RemoveAll(filepath.Join(to, "testdata")), w.copyLicense(to))
}

// copyLicense copies the license of what is copied.
func (w writer) copyLicense(dir string) error {
	license, err := os.ReadFile(filepath.Join(w.root, "LICENSE"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "LICENSE"), license, 0o644) //nolint:gosec // for everybody
}

// copyKits copies the source of the kits, for those who must own it.
func (w writer) copyKits(dir string) error {
	for _, kit := range []string{"csikit", "csikittest", "driverkit"} { // drivertest is below driverkit
		if err := os.CopyFS(filepath.Join(dir, vendored, kit), os.DirFS(filepath.Join(w.root, kit))); err != nil {
			return fmt.Errorf("copy %s: %w", kit, err)
		}
	}
	return w.copyLicense(filepath.Join(dir, vendored))
}

// goMod writes go.mod with the versions of the kits' own dependencies, and go.sum. The kits themselves are those of a directory: the copy, or this
// repository until its first release.
func (w writer) goMod(dir string) error {
	mod := new(modfile.File)
	if err := errors.Join(mod.AddModuleStmt(w.names.Module), mod.AddGoStmt("1.26.0")); err != nil {
		return err
	}
	from := w.kitsFrom()
	var sums []byte
	for _, kit := range kits() {
		if err := errors.Join(mod.AddRequire(project+"/"+kit, "v0.0.0"), mod.AddReplace(project+"/"+kit, "", from+"/"+kit, "")); err != nil {
			return err
		}
		theirs, sum, err := readMod(filepath.Join(w.root, kit))
		if err != nil {
			return err
		}
		sums = append(sums, sum...)
		for _, r := range theirs.Require {
			if !strings.HasPrefix(r.Mod.Path, project+"/") {
				mod.AddNewRequire(r.Mod.Path, r.Mod.Version, true)
			}
		}
	}
	mod.Cleanup()
	text, err := mod.Format()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644), //nolint:gosec // source for everybody
		os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644), //nolint:gosec // source for everybody
	)
}

// kitsFrom is the directory of the kits as go.mod names it.
func (w writer) kitsFrom() string {
	if w.vendor {
		return "./" + vendored
	}
	return w.names.Checkout
}

// checkout is the directory of this repository, relative to the driver, whose directory is moved beside where it is written.
func (w writer) checkout(dir string) (string, error) {
	root, err := filepath.Abs(w.root)
	if err != nil {
		return "", err
	}
	return filepath.Rel(dir, root)
}

// readMod reads go.mod and go.sum of a module.
func readMod(dir string) (mod *modfile.File, sum []byte, err error) {
	path := filepath.Join(dir, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if mod, err = modfile.Parse(path, data, nil); err != nil {
		return nil, nil, err
	}
	sum, err = os.ReadFile(filepath.Join(dir, "go.sum"))
	return mod, sum, err
}
