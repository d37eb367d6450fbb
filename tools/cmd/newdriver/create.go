package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

// skeleton has the files of the copy that are not copied, as templates over names.
//
//go:embed all:skeleton
var skeleton embed.FS

// leftOut are files of the driver that the copy has not, or has its own of.
func leftOut() []string {
	return []string{"CHANGELOG.md", "COPYING.md", "Dockerfile", "README.md", "docs/differences.md"}
}

// create makes the copy in dir: all of it or nothing.
func create(ctx context.Context, root string, n names, dir string) error {
	dir, err := checkOut(root, dir)
	if err != nil {
		return err
	}
	if err := n.avoidCollision(filepath.Join(root, driverDir)); err != nil {
		return err
	}
	base := filepath.Base(dir)
	unfinished, err := os.MkdirTemp(filepath.Dir(dir), "."+base+"-unfinished-")
	if err != nil {
		return fmt.Errorf("make a directory beside OUT: %w", err)
	}
	defer os.RemoveAll(unfinished) //nolint:errcheck // gone when all went well, and otherwise there is an error already
	c := copier{root: root, out: filepath.Join(unfinished, base), renamer: newRenamer(n)}
	if err := c.write(ctx); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the empty directory: %w", err)
	}
	return os.Rename(c.out, dir)
}

// checkOut returns the absolute path of a directory in which there may be a copy.
func checkOut(root, dir string) (string, error) {
	if dir == "" {
		return "", errors.New("OUT is missing: a directory such as ../foo")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	if strings.HasPrefix(abs+"/", root+"/") {
		return "", fmt.Errorf("OUT=%s: must be outside of %s, whose workspace is not that of the copy", dir, root)
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

// avoidCollision takes another name for the package when one of its importers uses the name for something else.
func (n *names) avoidCollision(dir string) error {
	collision := false
	err := walk(dir, func(path string) error {
		data, err := os.ReadFile(path)
		collision = collision || strings.HasSuffix(path, ".go") && newRenamer(*n).collides(data)
		return err
	})
	if collision {
		n.avoid()
	}
	return err
}

// copier copies from root to out.
type copier struct {
	root, out string
	*renamer
}

func (c copier) write(ctx context.Context) error {
	packages, err := kitPackages(ctx, c.root)
	if err != nil {
		return err
	}
	modules, err := c.driver()
	if err != nil {
		return err
	}
	for _, name := range packages {
		if err := c.kitPackage(name); err != nil {
			return err
		}
	}
	if err := c.manifests(); err != nil {
		return err
	}
	if err := c.skeleton(); err != nil {
		return err
	}
	for _, dir := range modules {
		if err := c.goMod(dir); err != nil {
			return err
		}
	}
	if err := c.checkLeftovers(); err != nil {
		return err
	}
	for _, dir := range modules {
		if err := tidy(ctx, filepath.Join(c.out, dir)); err != nil {
			return err
		}
	}
	return nil
}

// driver copies the driver, and returns the directories of its modules: the root, and what is below.
func (c copier) driver() (modules []string, err error) {
	from := filepath.Join(c.root, driverDir)
	err = walk(from, func(path string) error {
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case slices.Contains(leftOut(), rel) || filepath.Base(rel) == "go.sum":
			return nil
		case filepath.Base(rel) == "go.mod":
			modules = append(modules, filepath.Dir(rel))
			return nil
		}
		return c.file(path, rel)
	})
	return modules, err
}

// kitPackage copies one package of a kit with its tests, but not those below it.
func (c copier) kitPackage(name string) error {
	from := filepath.Join(c.root, name)
	return walk(from, func(path string) error {
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if strings.Contains(rel, "/") && !strings.HasPrefix(rel, "testdata/") {
			return nil
		}
		return c.file(path, filepath.Join(kitsCopy, name, rel))
	})
}

// skeleton writes what the copy does not share with the driver, and the license, which it does.
func (c copier) skeleton() error {
	license, err := os.ReadFile(filepath.Join(c.root, "LICENSE"))
	if err != nil {
		return err
	}
	if err := c.put("LICENSE", license, 0o644); err != nil {
		return err
	}
	return fs.WalkDir(skeleton, "skeleton", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		t, err := template.ParseFS(skeleton, path)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := t.Execute(&text, &c.names); err != nil {
			return err
		}
		return c.put(strings.TrimPrefix(path, "skeleton/"), text.Bytes(), 0o644)
	})
}

// file copies one file to rel, a path in the copy by its old names.
func (c copier) file(path, rel string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	rel, data, err = c.renamer.file(rel, data)
	if err != nil {
		return fmt.Errorf("rename in %s: %w", path, err)
	}
	return c.put(rel, data, info.Mode().Perm())
}

func (c copier) put(rel string, data []byte, mode fs.FileMode) error {
	path := filepath.Join(c.out, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// checkLeftovers returns an error for every line with an old name. NOTICE, which says where the copy is from, has to have them.
func (c copier) checkLeftovers() error {
	var errs []error
	err := walk(c.out, func(path string) error {
		rel, err := filepath.Rel(c.out, path)
		if err != nil || rel == "NOTICE" {
			return err
		}
		data, err := os.ReadFile(path)
		for i, line := range strings.Split(rel+"\n"+string(data), "\n") {
			if left := c.names.leftover(line); left != "" {
				errs = append(errs, fmt.Errorf("%s:%d: %q is left of the old names; they are replaced by the rules in tools/cmd/newdriver/names.go", rel, i, left))
			}
		}
		return err
	})
	return errors.Join(append(errs, err)...)
}

// walk visits the files below dir in lexical order, except for hidden ones at any depth, and what tests and builds leave behind.
func walk(dir string, visit func(path string) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (name[0] == '.' || name == "bin"):
			return fs.SkipDir
		case d.IsDir(), name[0] == '.', strings.HasSuffix(name, ".test"), strings.HasSuffix(name, ".out"):
			return nil
		}
		return visit(path)
	})
}
