package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// task is what the machine has to do.
type task struct {
	// Modules are the files of modules, in the order in which they are loaded.
	Modules []string
	// Run is the regular expression of tests.
	Run    string
	Short  bool
	Suites []suite
}

// suite is the tests of one package.
type suite struct {
	Package string
	// Dir is where they run.
	Dir string
}

const taskFile = "/task.json"

func (a *archive) task(t task) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return a.contents(taskFile, data, 0o644)
}

// program adds a program of this machine and its libraries, if there is one.
func (a *archive) program(ctx context.Context, name string) error {
	source, err := lookPath(name)
	if err != nil {
		return nil //nolint:nilerr // the test that needs it will say so
	}
	if err := a.file("/bin/"+name, source, 0o755); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ldd", source).Output()
	if err != nil {
		return nil //nolint:nilerr // a script, or a static program
	}
	for _, library := range libraries(string(out)) {
		if err := a.file(library, library, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // where an ordinary user's PATH may not lead
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	return path, err
}

// libraries returns the files in what ldd prints.
func libraries(printed string) []string {
	matches := regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x`).FindAllStringSubmatch(printed, -1)
	files := make([]string, 0, len(matches))
	for _, match := range matches {
		files = append(files, match[1])
	}
	return files
}

// modules adds modules, and returns their files in the order in which they are loaded.
func (a *archive) modules(ctx context.Context, k kernel, wanted []string) ([]string, error) {
	read := map[string][]byte{}
	order, err := k.inOrder(wanted, func(name string) ([]string, error) {
		module, err := k.readModule(ctx, name)
		if err != nil {
			return nil, err
		}
		read[name] = module
		return k.needs(module)
	})
	if err != nil {
		return nil, err
	}
	files := make([]string, 0, len(order))
	for _, name := range order {
		file := "/modules/" + name + ".ko"
		if err := a.contents(file, read[name], 0o644); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// importPaths returns those of packages, which may be given by directories and patterns.
func importPaths(ctx context.Context, packages []string) ([]string, error) {
	out, err := output(ctx, "go", append([]string{"list", "--"}, packages...)...)
	return strings.Fields(string(out)), err
}

// suite adds the tests of a package, compiled, and their testdata.
func (a *archive) suite(ctx context.Context, path, program string) (suite, error) {
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, path)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		return suite{}, fmt.Errorf("compile the tests of %s: %w\n%s", path, err, out)
	}
	if _, err := os.Stat(program); err != nil {
		return suite{}, fmt.Errorf("package %s has no tests", path)
	}
	s := suite{Package: path, Dir: "/tests/" + path}
	if err := a.file(s.Dir+"/package.test", program, 0o755); err != nil {
		return suite{}, err
	}
	dir, err := output(ctx, "go", "list", "-f", "{{.Dir}}", path)
	if err != nil {
		return suite{}, err
	}
	return s, a.tree(s.Dir+"/testdata", filepath.Join(strings.TrimSpace(string(dir)), "testdata"))
}

// tree adds the files of a directory, if there is one.
func (a *archive) tree(name, source string) error {
	if _, err := os.Stat(source); err != nil {
		return nil //nolint:nilerr // most packages have none
	}
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		below, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		return a.file(filepath.Join(name, below), path, 0o644)
	})
}
