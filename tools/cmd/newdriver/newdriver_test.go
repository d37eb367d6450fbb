package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const repository = "../../.."

// write writes a driver, and returns its directory.
func write(t *testing.T, args ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "foo")
	var out bytes.Buffer
	err := run(t.Context(), &out, append([]string{"-root", repository, "-name", "foo.example.com", "-module", "example.com/foo", "-out", dir}, args...))
	if err != nil {
		t.Fatal(err)
	}
	if want := dir + ": driver foo.example.com, module example.com/foo. Next: cd " + dir + " && make test, and README.md\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	return dir
}

// do runs a command in a driver as its author does.
func do(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "MAKEFLAGS=", "MFLAGS=", "MAKELEVEL=") // The test may be run by another make.
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestNewDriver writes a driver and changes nothing: it is small, builds, and passes its tests, for root and for others.
func TestNewDriver(t *testing.T) {
	dir := write(t)
	checkFiles(t, dir)
	if unformatted := do(t, dir, "gofmt", "-l", "."); unformatted != "" {
		t.Errorf("not formatted: %s", unformatted)
	}
	if out := do(t, dir, "make", "test", "build", "VERSION=v7.7.7"); !strings.Contains(out, "ok  \texample.com/foo\t") {
		t.Errorf("make test printed\n%s", out)
	}
	do(t, dir, "go", "test", "-c", "-o", "bin/foo.test", ".")
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/foo.test"))
	cmd.Env = []string{"TMPDIR=/tmp"}
	if os.Geteuid() == 0 {
		cmd.Path = copyForAll(t, cmd.Path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("tests without privileges: %v\n%s", err, out)
	}
	if version := do(t, dir, "bin/foo", "--version"); !strings.Contains(version, "v7.7.7") {
		t.Errorf("--version prints %q", version)
	}
}

// checkFiles checks which files a driver has, beside the copy of the library chart, and how long they are altogether.
func checkFiles(t *testing.T, dir string) {
	t.Helper()
	const most = 400
	lines, names := 0, []string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if path == "chart/charts" {
			return fs.SkipDir
		}
		if err != nil || entry.IsDir() {
			return err
		}
		names = append(names, path)
		data, err := os.ReadFile(filepath.Join(dir, path))
		if text := string(data); strings.Contains(text, "{{.") || strings.Contains(text, "\r") {
			t.Errorf("%s has braces of a template:\n%s", path, text)
		}
		if path != "go.mod" && path != "go.sum" {
			lines += bytes.Count(data, []byte("\n"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := ".dockerignore .gitignore Dockerfile Makefile README.md backend.go chart/Chart.yaml chart/templates/driver.yaml chart/values.yaml driver_test.go go.mod go.sum main.go"
	if strings.Join(names, " ") != want {
		t.Errorf("files are %q, want %q", names, want)
	}
	t.Logf("%d lines", lines)
	if lines > most {
		t.Errorf("%d lines, want at most %d", lines, most)
	}
	for _, name := range []string{"Chart.yaml", "LICENSE", "README.md", "templates/_chart.tpl", "values.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, "chart/charts/csi-driver-lib", name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "chart/charts/csi-driver-lib/testdata")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the library chart has its tests: %v", err)
	}
}

// TestDevcluster: the targets hand over to the checkout from which the driver was made.
func TestDevcluster(t *testing.T) {
	for _, args := range [][]string{nil, {"-vendor"}} {
		dir := write(t, args...)
		for target, want := range map[string]string{
			"devcluster":      "--nodes 1 --driver " + dir + "/bin/foo --driver-flags --v=4 --nodes 2",
			"devcluster-down": "",
		} {
			checkout := t.TempDir()
			if err := os.WriteFile(filepath.Join(checkout, "Makefile"), []byte("up:\n\t@echo $@: $(UPFLAGS)\ndown:\n\t@echo $@:\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out := do(t, dir, "make", "-s", "-o", "build", target, "LONGSHORE="+checkout, "DRIVER_FLAGS=--v=4", "UP_FLAGS=--nodes 2")
			_, got, _ := strings.Cut(strings.TrimSpace(out), ":")
			if strings.TrimSpace(got) != want {
				t.Errorf("make %s: %s, want %q", target, out, want)
			}
		}
		checkout := regexp.MustCompile(`(?m)^LONGSHORE \?= (.+)$`).FindStringSubmatch(readFile(t, filepath.Join(dir, "Makefile")))
		if checkout == nil {
			t.Fatal("the Makefile has no LONGSHORE")
		}
		if _, err := os.Stat(filepath.Join(dir, checkout[1], "make/cluster.mk")); err != nil {
			t.Error(err)
		}
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// copyForAll copies a program to where every user may run it.
func copyForAll(t *testing.T, program string) string {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.CreateTemp("/tmp", "newdriver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file.Name()) })
	_, err = file.Write(data)
	if err := errors.Join(err, file.Chmod(0o755), file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// TestVendor writes a driver that has the source of the kit, and needs nothing of this repository.
func TestVendor(t *testing.T) {
	dir := write(t, "-vendor")
	for _, name := range []string{"csikit/go.mod", "csikittest/go.mod", "driverkit/driver.go", "driverkit/drivertest/walk.go", "LICENSE"} {
		if _, err := os.Stat(filepath.Join(dir, vendored, name)); err != nil {
			t.Error(err)
		}
	}
	used := do(t, dir, "go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}", ".")
	for line := range strings.Lines(used) {
		if path, from, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(path, project) && !strings.HasPrefix(from, dir) {
			t.Errorf("%s is from %s", path, from)
		}
	}
	do(t, dir, "go", "vet", ".")
}

func TestRefused(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"name": "foo.example.com", "module": "example.com/foo", "out": filepath.Join(t.TempDir(), "foo")}
	for name, tc := range map[string]struct{ flag, value, want string }{
		"NoName":        {"name", "", "NAME is missing"},
		"OneLabel":      {"name", "foo", "must be a domain name"},
		"UpperCase":     {"name", "Foo.example.com", "must be a domain name"},
		"LongName":      {"name", strings.Repeat("a", 60) + ".com", "at most 63 characters"},
		"NoModule":      {"module", "", "MODULE is missing"},
		"BadModule":     {"module", "example.com/ä", "malformed module path"},
		"OwnModule":     {"module", project + "/foo", "must not be a module of this repository"},
		"NoOut":         {"out", "", "OUT is missing"},
		"OutFull":       {"out", full, "must not exist, or be empty: has file"},
		"OutInside":     {"out", repository + "/foo", "must be outside of"},
		"OutIsAFile":    {"out", filepath.Join(full, "file"), "not a directory"},
		"OutHasNowhere": {"out", "/proc/nowhere/foo", "make a directory beside OUT"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"-root", repository}
			for flag, value := range good {
				if flag == tc.flag {
					value = tc.value
				}
				args = append(args, "-"+flag, value)
			}
			if err := run(t.Context(), io.Discard, args); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if err := run(t.Context(), io.Discard, []string{"extra"}); err == nil || !strings.Contains(err.Error(), "unexpected arguments") {
		t.Errorf("an argument: %v", err)
	}
}

func TestBinary(t *testing.T) {
	for modulePath, want := range map[string]string{"example.com/foo": "foo", "example.com/My-CSI.driver/v2": "my-csi-driver", "example.com/_": "driver"} {
		n, err := newNames("foo.example.com", modulePath)
		if err != nil || n.Binary != want {
			t.Errorf("%s: binary %q, %v, want %q", modulePath, n.Binary, err, want)
		}
	}
}
