package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// kitPackages lists the packages of the kits that the driver, its tests, and their own tests need, such as csikit/logging.
func kitPackages(ctx context.Context, root string) ([]string, error) {
	var modules []string
	if err := walk(filepath.Join(root, driverDir), func(path string) error {
		if filepath.Base(path) == "go.mod" {
			modules = append(modules, filepath.Dir(path))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, dir := range modules {
		if err := addNeeded(ctx, needed, dir, "./..."); err != nil {
			return nil, err
		}
	}
	for known := 0; known < len(needed); {
		known = len(needed)
		for _, kit := range kits() {
			var patterns []string
			for name := range needed {
				if strings.HasPrefix(name, kit+"/") {
					patterns = append(patterns, project+"/"+name)
				}
			}
			if len(patterns) == 0 {
				continue
			}
			if err := addNeeded(ctx, needed, filepath.Join(root, kit), patterns...); err != nil {
				return nil, err
			}
		}
	}
	list := make([]string, 0, len(needed))
	for name := range needed {
		list = append(list, name)
	}
	slices.Sort(list)
	return list, nil
}

// addNeeded adds the packages of the kits that those of the patterns and their tests need.
func addNeeded(ctx context.Context, needed map[string]bool, dir string, patterns ...string) error {
	// The package as a test sees it has the same import path, with the test's behind it in brackets.
	format := `{{if not .ForTest}}{{.ImportPath}}{{end}}`
	out, err := goCommand(ctx, dir, append([]string{"list", "-deps", "-test", "-f", format}, patterns...)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		name, ours := strings.CutPrefix(strings.TrimSpace(line), project+"/")
		kit, _, below := strings.Cut(name, "/")
		if ours && below && slices.Contains(kits(), kit) && !strings.HasSuffix(name, ".test") {
			needed[name] = true
		}
	}
	return nil
}

// goMod writes go.mod and go.sum of a module of the copy. The requirements of the kits become its own; versions stay.
func (c copier) goMod(dir string) error {
	mod, err := readMod(filepath.Join(c.root, driverDir, dir))
	if err != nil {
		return err
	}
	if err := errors.Join(mod.AddModuleStmt(c.text.Replace(mod.Module.Mod.Path)), c.replaced(mod), c.required(mod)); err != nil {
		return fmt.Errorf("make a go.mod of that of %s: %w", driverDir, err)
	}
	mod.Cleanup()
	text, err := mod.Format()
	if err != nil {
		return err
	}
	if err := c.put(filepath.Join(dir, "go.mod"), text, 0o644); err != nil {
		return err
	}
	return c.goSum(dir)
}

// replaced leaves only what has the copy take its own root module from its directory.
func (c copier) replaced(mod *modfile.File) (err error) {
	for _, r := range slices.Clone(mod.Replace) {
		replaced := *r // dropping empties what it points to
		err = errors.Join(err, mod.DropReplace(replaced.Old.Path, replaced.Old.Version))
		if replaced.Old.Path == driverPath {
			err = errors.Join(err, mod.AddReplace(c.names.Module, "", replaced.New.Path, ""))
		}
	}
	return err
}

// required puts the requirements of the kits in the place of the kits.
func (c copier) required(mod *modfile.File) (err error) {
	for _, kit := range kits() {
		if !requires(mod, kitPath(kit)) {
			continue
		}
		from, readErr := readMod(filepath.Join(c.root, kit))
		if readErr != nil {
			return readErr
		}
		for _, r := range from.Require {
			if !requires(mod, r.Mod.Path) {
				mod.AddNewRequire(r.Mod.Path, r.Mod.Version, true)
			}
		}
	}
	for _, kit := range kits() {
		err = errors.Join(err, mod.DropRequire(kitPath(kit)))
	}
	if requires(mod, driverPath) {
		err = errors.Join(err, mod.DropRequire(driverPath), mod.AddRequire(c.names.Module, c.names.version()))
	}
	return err
}

// goSum puts the checksums together that are known; what is too many goes when the module is tidied.
func (c copier) goSum(dir string) error {
	var sums []byte
	for _, from := range append(kits(), filepath.Join(driverDir, dir)) {
		data, err := os.ReadFile(filepath.Join(c.root, from, "go.sum"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sums = append(sums, data...)
	}
	return c.put(filepath.Join(dir, "go.sum"), sums, 0o644)
}

func readMod(dir string) (*modfile.File, error) {
	path := filepath.Join(dir, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(path, data, nil)
}

func requires(mod *modfile.File, path string) bool {
	return slices.ContainsFunc(mod.Require, func(r *modfile.Require) bool { return r.Mod.Path == path })
}

// tidy also has the go command look at the whole copy for the first time: an import that leads nowhere is an error.
func tidy(ctx context.Context, dir string) error {
	_, err := goCommand(ctx, dir, "mod", "tidy")
	return err
}

// goCommand runs go in a module as it is by itself, outside of any workspace.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w: %s", strings.Join(args[:2], " "), dir, err, stderr.String())
	}
	return string(out), nil
}
