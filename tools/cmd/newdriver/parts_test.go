package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// part is one that a vendor does not have. It is removed as the comment of internal/grpcapi says.
type part struct {
	reason string
	// files go, below internal/grpcapi.
	files []string
	// lines go from what is left; each is there once, as it is here or, where it ends in a colon, begun so.
	lines map[string][]string
	// flags switch on what is not by default.
	flags []string
	// capabilities are those that go with it, as the probe prints them, and methods the calls.
	capabilities []string
	methods      []string
}

func parts() map[string]part {
	const controller = "internal/grpcapi/controller.go"
	return map[string]part{
		"Expansion": {
			reason:       "volumes that keep their size",
			files:        []string{"controller_expand.go"},
			lines:        map[string][]string{controller: {"controllerExpand", "controllerExpand:", "&c.controllerExpand,"}},
			capabilities: []string{"Controller EXPAND_VOLUME"},
			methods:      []string{"/csi.v1.Controller/ControllerExpandVolume"},
		},
		"Modification": {
			reason:       "no parameters that can be changed",
			files:        []string{"controller_modify.go"},
			lines:        map[string][]string{controller: {"controllerModify", "controllerModify:", "&c.controllerModify,"}},
			flags:        []string{"--enable-controller-modify-volume"},
			capabilities: []string{"Controller MODIFY_VOLUME"},
			methods:      []string{"/csi.v1.Controller/ControllerModifyVolume"},
		},
		"Attachment": {
			reason:       "volumes that every node reaches",
			files:        []string{"controller_publish.go"},
			lines:        map[string][]string{controller: {"controllerPublish", "controllerPublish:", "&c.controllerPublish,"}},
			flags:        []string{"--enable-attach"},
			capabilities: []string{"Controller PUBLISH_UNPUBLISH_VOLUME", "Controller PUBLISH_READONLY"},
			methods:      []string{"/csi.v1.Controller/ControllerPublishVolume", "/csi.v1.Controller/ControllerUnpublishVolume"},
		},
	}
}

// testParts removes each part from a copy of its own. It must build, announce all that it did before but the capabilities of the part,
// and answer UNIMPLEMENTED to its calls.
func testParts(t *testing.T, dir string) {
	probe := buildProbe(t, dir)
	for name, p := range parts() {
		t.Run(name, func(t *testing.T) {
			before := ask(t, dir, probe, p)
			without := filepath.Join(t.TempDir(), "foo")
			if err := os.CopyFS(without, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			p.remove(t, without)
			in(t, without, "go vet ./...")
			after := ask(t, without, probe, p)

			for _, c := range p.capabilities {
				if !slices.Contains(before, c) {
					t.Errorf("%s: the driver has no capability %q in the first place: %q", p.reason, c, before)
				}
			}
			want := slices.DeleteFunc(slices.Clone(before), func(c string) bool { return slices.Contains(p.capabilities, c) })
			for i, line := range want {
				if method, code, _ := strings.Cut(line, " "); slices.Contains(p.methods, method) {
					if code == "Unimplemented" {
						t.Errorf("%s: %s is not served in the first place", p.reason, method)
					}
					want[i] = method + " Unimplemented"
				}
			}
			if !slices.Equal(after, want) {
				t.Errorf("%s: without it the driver has\n%q, want\n%q", p.reason, after, want)
			}
		})
	}
}

// buildProbe builds the program of testdata/probe with what the copy requires.
func buildProbe(t *testing.T, dir string) string {
	t.Helper()
	source := filepath.Join(dir, "cmd", "probe")
	if err := os.CopyFS(source, os.DirFS("testdata/probe")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "probe")
	in(t, dir, "go build -o "+program+" ./cmd/probe")
	if err := os.RemoveAll(source); err != nil {
		t.Fatal(err)
	}
	return program
}

// ask runs the driver of dir, and the probe against it.
func ask(t *testing.T, dir, probe string, p part) []string {
	t.Helper()
	machine, err := os.MkdirTemp("", "part") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(machine)
	program, socket := filepath.Join(machine, "driver"), "unix://"+filepath.Join(machine, "csi.sock")
	in(t, dir, "go build -o "+program+" ./cmd/foo")
	driver := exec.CommandContext(t.Context(), program,
		append([]string{"--nodeid=n1", "--endpoint=" + socket, "--statedir=" + filepath.Join(machine, "state")}, p.flags...)...)
	var log bytes.Buffer
	driver.Stderr = &log
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), probe, append([]string{socket}, p.methods...)...).CombinedOutput()
	if stopped := driver.Process.Signal(syscall.SIGTERM); stopped != nil {
		t.Errorf("stop the driver: %v", stopped)
	}
	if stopped := driver.Wait(); stopped != nil || err != nil {
		t.Fatalf("the driver ends with %v, the probe with %v: %s\n%s", stopped, err, out, &log)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func (p part) remove(t *testing.T, dir string) {
	t.Helper()
	for _, name := range p.files {
		if err := os.Remove(filepath.Join(dir, "internal/grpcapi", name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, lines := range p.lines {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := removeLines(string(text), lines)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, []byte(rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func removeLines(text string, lines []string) (string, error) {
	var kept strings.Builder
	removed := map[string]int{}
	for line := range strings.Lines(text) {
		i := slices.IndexFunc(lines, func(l string) bool {
			trimmed := strings.TrimSpace(line)
			return trimmed == l || strings.HasSuffix(l, ":") && strings.HasPrefix(trimmed, l)
		})
		if i < 0 {
			kept.WriteString(line)
		} else {
			removed[lines[i]]++
		}
	}
	for _, l := range lines {
		if removed[l] != 1 {
			return "", fmt.Errorf("has %d lines %q, want one", removed[l], l)
		}
	}
	return kept.String(), nil
}
