package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// apart is the module outside of the workspace whose dependencies are the linters', which nothing else is compiled with.
const apart = "tools"

// checkRequirements returns an error for each dependency that has several versions in the modules. In the workspace all have the newest,
// so that such a dependency, and everything above it, would be tested in another version than a module has that stands alone, and be compiled twice.
func checkRequirements(tree fs.FS, modules []string) error {
	users := map[string]map[string][]string{} // modules, by dependency and version
	for _, dir := range modules {
		if dir == apart {
			continue
		}
		name := filepath.Join(dir, "go.mod")
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(name, data, nil)
		if err != nil {
			return err
		}
		for _, r := range mod.Require {
			if users[r.Mod.Path] == nil {
				users[r.Mod.Path] = map[string][]string{}
			}
			users[r.Mod.Path][r.Mod.Version] = append(users[r.Mod.Path][r.Mod.Version], dir)
		}
	}
	var errs []error
	for dependency, versions := range users {
		if len(versions) == 1 {
			continue
		}
		var found []string
		for version, dirs := range versions {
			found = append(found, fmt.Sprintf("%s in %s", version, strings.Join(dirs, ", ")))
		}
		slices.Sort(found)
		errs = append(errs, fmt.Errorf("%s is %s: give all modules the newest (`go get %[1]s@VERSION`, `make tidy`)", dependency, strings.Join(found, "; ")))
	}
	return errors.Join(errs...)
}
