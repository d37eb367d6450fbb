package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	// edits are regular expressions by the files in which they are there once. What they match goes.
	edits map[string][]string
	// flags switch on what is not by default.
	flags []string
	// capabilities are those that go with it, as the probe prints them, and methods the calls.
	capabilities []string
	methods      []string
}

const (
	inController = "internal/grpcapi/controller.go"
	inNode       = "internal/grpcapi/node.go"
	inRun        = "run.go"
)

// lines are those of a part in the file of its service: in the struct, and twice in the constructor.
func lines(member string) []string {
	return []string{
		`(?m)^\t` + member + `\n`,
		`(?m)^\t\t` + member + `:.*\n`,
		`(?m)^\t\t&\w\.` + member + `,\n|, &\w\.` + member + `\b`,
	}
}

func parts() map[string]part {
	return map[string]part{
		"Expansion": {
			reason: "volumes that keep their size",
			files:  []string{"controller_expand.go", "node_expand.go"},
			edits: map[string][]string{
				inController: lines("controllerExpand"),
				inNode:       lines("nodeExpand"),
				inRun:        {`(?m)^\t\tExpansion: +o\.controllerExpansion\(\) \|\| o\.nodeExpansion\(\),\n`},
			},
			capabilities: []string{"Plugin expansion ONLINE", "Controller EXPAND_VOLUME", "Node EXPAND_VOLUME"},
			methods:      []string{"/csi.v1.Controller/ControllerExpandVolume", "/csi.v1.Node/NodeExpandVolume"},
		},
		"Modification": {
			reason:       "no parameters that can be changed",
			files:        []string{"controller_modify.go"},
			edits:        map[string][]string{inController: lines("controllerModify")},
			flags:        []string{"--enable-controller-modify-volume"},
			capabilities: []string{"Controller MODIFY_VOLUME"},
			methods:      []string{"/csi.v1.Controller/ControllerModifyVolume"},
		},
		"MountGroup": {
			reason: "whoever mounts gives files to groups",
			files:  []string{"node_mountgroup.go"},
			edits: map[string][]string{
				inNode: append(lines("nodeMountGroup"), `(?m)^\tn\.nodeStage\.group, .*\n`),
			},
			flags:        []string{"--enable-volume-mount-group"},
			capabilities: []string{"Node VOLUME_MOUNT_GROUP"},
		},
		"Attachment": {
			reason:       "volumes that every node reaches",
			files:        []string{"controller_publish.go"},
			edits:        map[string][]string{inController: lines("controllerPublish")},
			flags:        []string{"--enable-attach"},
			capabilities: []string{"Controller PUBLISH_UNPUBLISH_VOLUME", "Controller PUBLISH_READONLY"},
			methods:      []string{"/csi.v1.Controller/ControllerPublishVolume", "/csi.v1.Controller/ControllerUnpublishVolume"},
		},
		"GroupSnapshots": {
			reason: "snapshots of one volume at a time",
			files:  []string{"group.go"},
			edits: map[string][]string{inRun: {
				`(?m)^\td\.services = append\(d\.services, grpcapi\.NewGroup\(.*\n`,
				`(?m)^\t\tGroups: +true,\n`,
			}},
			capabilities: []string{"Plugin GROUP_CONTROLLER_SERVICE", "GroupController CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"},
			methods: []string{
				"/csi.v1.GroupController/CreateVolumeGroupSnapshot", "/csi.v1.GroupController/DeleteVolumeGroupSnapshot",
				"/csi.v1.GroupController/GetVolumeGroupSnapshot",
			},
		},
		"SnapshotMetadata": {
			reason: "no changed blocks",
			files:  []string{"metadata.go"},
			edits: map[string][]string{inRun: {
				`(?ms)^\tif o\.SnapshotMetadata \{\n.*?^\t\}\n`,
				`(?m)^\t\tMetadata: +o\.SnapshotMetadata,\n`,
				`(?m)^\t".*/internal/extent"\n`,
			}},
			flags:        []string{"--enable-snapshot-metadata"},
			capabilities: []string{"Plugin SNAPSHOT_METADATA_SERVICE"},
			methods:      []string{"/csi.v1.SnapshotMetadata/GetMetadataAllocated", "/csi.v1.SnapshotMetadata/GetMetadataDelta"},
		},
		"Health": {
			reason:       "no health of volumes",
			files:        []string{"controller_health.go"},
			edits:        map[string][]string{inController: lines("controllerHealth")},
			capabilities: []string{"Controller GET_VOLUME_HEALTH", "Controller LIST_VOLUME_HEALTH"},
			methods:      []string{"/csi.v1.Controller/ControllerGetVolumeHealth", "/csi.v1.Controller/ControllerListVolumeHealth"},
		},
	}
}

// testParts removes each part from a copy of its own. It must build, announce all that it did before but the capabilities of the part,
// and answer UNIMPLEMENTED to its calls.
func testParts(t *testing.T, dir string) {
	probe := buildProbe(t, dir)
	var flags, methods []string
	for _, p := range parts() {
		flags, methods = append(flags, p.flags...), append(methods, p.methods...)
	}
	slices.Sort(methods)
	before := ask(t, dir, probe, flags, methods)
	for name, p := range parts() {
		t.Run(name, func(t *testing.T) {
			var want []string
			found := 0
			for _, line := range before {
				method, code, _ := strings.Cut(line, " ")
				switch {
				case slices.Contains(p.capabilities, line):
					found++
					continue
				case slices.Contains(p.methods, method) && code != "Unimplemented":
					found++
					line = method + " Unimplemented"
				}
				want = append(want, line)
			}
			if found != len(p.capabilities)+len(p.methods) {
				t.Fatalf("%s: the driver has %q, of which not all of %q and %q are there in the first place", p.reason, before, p.capabilities, p.methods)
			}
			without := filepath.Join(t.TempDir(), "foo")
			if err := os.CopyFS(without, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			p.remove(t, without)
			in(t, without, "go build ./...")
			if after := ask(t, without, probe, flags, methods); !slices.Equal(after, want) {
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

// ask runs the driver of dir, and the probe against it, whose lines it returns.
func ask(t *testing.T, dir, probe string, flags, methods []string) []string {
	t.Helper()
	machine, err := os.MkdirTemp("", "part") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(machine)
	program, socket := filepath.Join(machine, "driver"), "unix://"+filepath.Join(machine, "csi.sock")
	in(t, dir, "go build -o "+program+" ./cmd/foo")
	driver := exec.CommandContext(t.Context(), program,
		append([]string{"--nodeid=n1", "--endpoint=" + socket, "--statedir=" + filepath.Join(machine, "state")}, flags...)...)
	var log bytes.Buffer
	driver.Stderr = &log
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), probe, append([]string{socket}, methods...)...).CombinedOutput()
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
	for name, edits := range p.edits {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, edit := range edits {
			found := regexp.MustCompile(edit).FindAllIndex(text, -1)
			if len(found) != 1 {
				t.Fatalf("%s has %d times %s, want once", name, len(found), edit)
			}
			text = slices.Delete(text, found[0][0], found[0][1])
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
