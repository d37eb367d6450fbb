// Command versions checks versions.yaml against the tree: every module is listed once, every component has the binary that
// is named, a changelog, and a Dockerfile for its image, and nothing is listed that is not there. It also checks that a dependency has one
// version in all modules.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := check(os.DirFS(*root)); err != nil {
		fmt.Fprintf(os.Stderr, "versions: %v\n", err)
		os.Exit(1)
	}
}

// file is the schema of versions.yaml.
type file struct {
	Modules  map[string]module `json:"modules"`
	Untagged []string          `json:"untagged"`
}

type module struct {
	Next   string `json:"next"`
	Binary string `json:"binary,omitempty"`
	Image  string `json:"image,omitempty"`
}

// outside lists the modules that are no part of the workspace, as they pin an older Kubernetes than the components'. They are
// neither versioned nor tagged.
func outside() []string { return []string{"devcluster/controlplane", "e2e/k8s"} }

// upstream has further modules outside of the workspace, each with the versions that a program of kubernetes-csi is built with.
const upstream = "e2e/upstream"

var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

// check reports everything that is wrong.
func check(tree fs.FS) error {
	data, err := fs.ReadFile(tree, "versions.yaml")
	if err != nil {
		return err
	}
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return fmt.Errorf("versions.yaml: %w", err)
	}
	found, err := modules(tree)
	if err != nil {
		return err
	}
	errs := append(f.checkLists(found), checkRequirements(tree, found))
	for dir, m := range f.Modules {
		errs = append(errs, m.check(tree, dir))
	}
	return errors.Join(errs...)
}

// checkLists compares the modules that are listed with those that were found.
func (f file) checkLists(found []string) (errs []error) {
	for _, dir := range found {
		if _, tagged := f.Modules[dir]; tagged == slices.Contains(f.Untagged, dir) {
			errs = append(errs, fmt.Errorf("module %s: must be listed once, under modules or untagged", dir))
		}
	}
	for _, dir := range f.Untagged {
		if !slices.Contains(found, dir) {
			errs = append(errs, fmt.Errorf("module %s: has no go.mod", dir))
		}
	}
	return errs
}

func (m module) check(tree fs.FS, dir string) error {
	var errs []error
	if !semver.MatchString(m.Next) {
		errs = append(errs, fmt.Errorf("module %s: next %q is not vX.Y.Z", dir, m.Next))
	}
	for _, name := range m.needs() {
		if _, err := fs.Stat(tree, filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("module %s: has no %s", dir, name))
		}
	}
	if m.Image != "" && m.Binary == "" {
		errs = append(errs, fmt.Errorf("module %s: image %q without a binary", dir, m.Image))
	}
	return errors.Join(errs...)
}

// needs lists the files that the module must have.
func (m module) needs() []string {
	files := []string{"go.mod", "README.md", "CHANGELOG.md"}
	if m.Binary != "" {
		files = append(files, filepath.Join("cmd", m.Binary, "main.go"))
	}
	if m.Image != "" {
		files = append(files, "Dockerfile")
	}
	return files
}

// foreign reports whether a directory is none of ours to look into.
func foreign(path string) bool {
	name := filepath.Base(path)
	return path != "." && (name[0] == '.' || name == "bin" || slices.Contains(outside(), path) || path == upstream)
}

// modules lists the directories with a go.mod.
func modules(tree fs.FS) ([]string, error) {
	var found []string
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && foreign(path) {
			return fs.SkipDir
		}
		if d.Name() == "go.mod" {
			found = append(found, filepath.Dir(path))
		}
		return nil
	})
	return found, err
}
