package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// commands are the only ones that can be found until the end of a test: go, and scripts by their names.
func commands(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	program, err := exec.LookPath("go")
	if err == nil {
		err = os.Symlink(program, filepath.Join(dir, "go"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range scripts {
		script = "#!/bin/sh -eu\nPATH=/usr/bin:/bin\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", dir)
}

const (
	// aptCache knows one kernel.
	aptCache = `echo "Version: 1.0"; echo "Depends: linux-image-1 (= 1.0)"`
	// aptGet downloads what dpkgDeb unpacks.
	aptGet = `test "$*" = "-qq -o APT::Sandbox::User=root -o Acquire::Retries=3 download linux-image-1=1.0"; echo package >linux-image-1.deb`
	// dpkgDeb makes a kernel that has all modules built in.
	dpkgDeb = `test -s "$2"; mkdir -p "$3/boot" "$3/lib/modules/1"; echo image >"$3/boot/vmlinuz-1"
for m in ext4 loop overlay quota_v2 xfs; do echo kernel/$m.ko; done >"$3/lib/modules/1/modules.builtin"`
)

// try runs the tests of a package, and lists the outcomes.
func try(t *testing.T, scripts map[string]string, packages ...string) (list []string, ok bool, err error) {
	t.Helper()
	commands(t, scripts)
	var out bytes.Buffer
	ok, err = runTests(t.Context(), options{packages: packages, run: "^TestNone$", kernel: "linux-image", memory: "1G", timeout: time.Hour, out: &out, log: io.Discard})
	return actions(t, out.String()), ok, err
}

func TestRunTests(t *testing.T) {
	const passes = `echo "@vmtest begin p"; echo "=== RUN   TestA"; echo "--- PASS: TestA (0.00s)"; echo PASS; echo "@vmtest end 0"; echo "@vmtest done"`
	tests := map[string]struct {
		reason   string
		scripts  map[string]string
		packages []string
		want     []string
		ok       bool
		err      string
	}{
		"Passed": {
			reason:   "what the machine says is the outcome",
			scripts:  map[string]string{"apt-cache": aptCache, "apt-get": aptGet, "dpkg-deb": dpkgDeb, "qemu-system-x86_64": passes},
			packages: []string{"."},
			want:     []string{"pass p.TestA", "pass p."},
			ok:       true,
		},
		"DiesOnce": {
			reason: "a machine that ends before its program runs is started again",
			scripts: map[string]string{"apt-cache": aptCache, "apt-get": aptGet, "dpkg-deb": dpkgDeb,
				"qemu-system-x86_64": `if test ! -e "$XDG_CACHE_HOME/once"; then echo once >"$XDG_CACHE_HOME/once"; exit 1; fi; ` + passes},
			packages: []string{"."},
			want:     []string{"pass p.TestA", "pass p."},
			ok:       true,
		},
		"Dies": {
			reason: "what the machine's console has said last is why",
			scripts: map[string]string{"apt-cache": aptCache, "apt-get": aptGet, "dpkg-deb": dpkgDeb, "qemu-system-x86_64": `for a in "$@"; do case $a in file:*) echo oops >"${a#file:}"; esac; done
echo "cannot go on" >&2; exit 1`},
			packages: []string{"."},
			err:      "exit status 1\ncannot go on\noops",
		},
		"NoMachine": {
			reason:   "without qemu nothing can be tested",
			packages: []string{".", "../testsum"},
			want:     []string{"skip github.com/longshore-csi/longshore/tools/cmd/vmtest.All", "skip github.com/longshore-csi/longshore/tools/cmd/testsum.All"},
			ok:       true,
		},
		"OtherDistribution": {
			reason:   "nor without Debian's kernel",
			scripts:  map[string]string{"apt-cache": "echo 'E: No packages found' >&2; exit 100", "qemu-system-x86_64": passes},
			packages: []string{"."},
			want:     []string{"skip github.com/longshore-csi/longshore/tools/cmd/vmtest.All"},
			ok:       true,
		},
		"NoDownload": {
			reason:   "what can be had and does not come is an error",
			scripts:  map[string]string{"apt-cache": aptCache, "apt-get": "echo 'E: 404 Not Found'; exit 100", "qemu-system-x86_64": passes},
			packages: []string{"."},
			err:      "download the package linux-image-1 1.0: exit status 100: E: 404 Not Found",
		},
		"NoPackages":     {reason: "nothing tested is no success", err: "no packages"},
		"UnknownPackage": {reason: "a typing error is not skipped", packages: []string{"./nonexistent"}, err: "nonexistent"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok, err := try(t, tc.scripts, tc.packages...)
			if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(tc.want))) || ok != tc.ok {
				t.Errorf("%s: got %q, ok %t, want %q", tc.reason, got, ok, tc.want)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got the error %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}

// TestKernelIsKept needs no apt-get the second time, and leaves nothing half unpacked.
func TestKernelIsKept(t *testing.T) {
	commands(t, map[string]string{"apt-cache": aptCache, "apt-get": aptGet, "dpkg-deb": "mkdir -p $3/boot; exit 1"})
	if _, err := fetchKernel(t.Context(), "linux-image"); err == nil {
		t.Fatal("no error of dpkg-deb")
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	commands(t, map[string]string{"apt-cache": aptCache, "apt-get": aptGet, "dpkg-deb": dpkgDeb})
	t.Setenv("XDG_CACHE_HOME", cache)
	first, err := fetchKernel(t.Context(), "linux-image")
	if err != nil {
		t.Fatal(err)
	}
	commands(t, map[string]string{"apt-cache": aptCache})
	t.Setenv("XDG_CACHE_HOME", cache)
	second, err := fetchKernel(t.Context(), "linux-image")
	if err != nil || second.image != first.image || !strings.HasPrefix(second.image, cache+"/longshore/vmtest/linux-image-1_1.0/") {
		t.Errorf("got %q, then %q, %v", first.image, second.image, err)
	}
	entries, err := os.ReadDir(filepath.Join(cache, "longshore/vmtest"))
	if err != nil || len(entries) != 1 {
		t.Errorf("the cache has %v, %v", entries, err)
	}
}

// TestFill looks at all files of a machine that tests this package.
func TestFill(t *testing.T) {
	scratch := t.TempDir()
	archive := filepath.Join(scratch, "initramfs")
	k := kernel{builtin: map[string]bool{}}
	for _, name := range modules() {
		k.builtin[name] = true
	}
	const path = "github.com/longshore-csi/longshore/tools/cmd/vmtest"
	if err := fill(context.Background(), archive, scratch, k, options{run: "^TestNone$"}, []string{path}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, data)
	for name, mode := range map[string]string{"init": "100755", "bin/mkfs.ext4": "100755", "etc/mke2fs.conf": "100644", "tests/" + path + "/package.test": "100755"} {
		if got, _, _ := strings.Cut(files[name], ":"); got != mode {
			t.Errorf("%s: mode %q, want %q", name, got, mode)
		}
	}
	libraries := 0
	for name := range files {
		if strings.Contains(name, "/libext2fs.so") {
			libraries++
		}
	}
	if libraries != 1 {
		t.Errorf("there are %d of the library of mkfs.ext4", libraries)
	}
	_, encoded, _ := strings.Cut(files[taskFile[1:]], ":")
	var todo task
	if err := json.Unmarshal([]byte(encoded), &todo); err != nil {
		t.Fatal(err)
	}
	if want := (suite{Package: path, Dir: "/tests/" + path}); todo.Run != "^TestNone$" || len(todo.Modules) != 0 || !slices.Equal(todo.Suites, []suite{want}) {
		t.Errorf("got %+v", todo)
	}
}
