//go:build linux

package state

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// fullDisk mounts a file system of a type, and returns a directory in it and a function that leaves no byte of it free.
func fullDisk(t *testing.T, fsType string) (dir string, fill func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	dir = t.TempDir()
	args := []string{"-t", "tmpfs", "-o", "size=1m", "full", dir}
	if fsType != "tmpfs" {
		needs.Programs(t, "mkfs."+fsType)
		image := filepath.Join(t.TempDir(), "image")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, map[string]int64{"ext4": 16 << 20, "xfs": 300 << 20}[fsType])); err != nil {
			t.Fatal(err)
		}
		run(t, "mkfs."+fsType, "-q", image)
		args = []string{"-o", "loop", image, dir}
	}
	run(t, "mount", args...)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		t.Helper()
		for size, n := 1<<20, 0; size > 0; n++ { // ever smaller files, until not even an empty one fits
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("ballast-%d", n)), make([]byte, size), 0o600); errors.Is(err, syscall.ENOSPC) {
				size /= 2
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func TestRecordsShrinkOnAFullDisk(t *testing.T) {
	for _, fsType := range []string{"tmpfs", "ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			dir, fill := fullDisk(t, fsType)
			dir = filepath.Join(dir, "records")
			records := open(t, dir)
			want := map[string]thing{}
			for i := range 20 {
				id := fmt.Sprintf("record-%d", i)
				want[id] = thing{Name: strings.Repeat("x", 100*i+100), Count: 10}
				if err := records.Put(id, want[id]); err != nil {
					t.Fatal(err)
				}
			}
			fill()
			first, second := records.Put("new", thing{}), records.Put("newer", thing{})
			if !errors.Is(first, syscall.ENOSPC) || second == nil || first.Error() != second.Error() {
				t.Errorf("new records on a full disk: %v, and then %v: want the same error, that it is full", first, second)
			}
			for round := range 3 {
				for i := range 20 {
					id := fmt.Sprintf("record-%d", i)
					changed := thing{Name: want[id].Name[:100*i+90-round], Count: round}
					if err := records.Put(id, changed); err != nil {
						t.Fatalf("round %d: a shorter record on a full disk: %v", round, err)
					}
					want[id] = changed
				}
			}
			if err := records.Put("record-1", thing{Name: strings.Repeat("y", 10_000)}); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("a longer record on a full disk: %v", err)
			}
			again := open(t, dir)
			got, damaged, err := again.Load()
			if err != nil || len(damaged) > 0 {
				t.Fatalf("Load: %v, %v", damaged, err)
			}
			for id, one := range want {
				if got[id] != one {
					t.Errorf("%s is %+v, want %+v", id, got[id], one)
				}
				if info, err := os.Stat(again.path(id)); err != nil || info.Size() > 4096 {
					t.Errorf("%s has the blocks of the spare file: %v, %v", id, info.Size(), err)
				}
			}
			if len(got) != len(want) {
				t.Errorf("%d records, want %d", len(got), len(want))
			}
		})
	}
}

// A crash at any moment leaves the old record or the new one, and a spare file for the next time.
func TestShrinkIsCutOff(t *testing.T) {
	dir := t.TempDir()
	records := open(t, dir)
	old, changed := thing{Name: "a long name", Count: 1}, thing{Name: "short", Count: 2}
	if err := records.Put("a", old); err != nil {
		t.Fatal(err)
	}
	data := []byte(`{"version": 1, "kind": "thing", "record": {"name": "short", "count": 2}}`)
	steps := []struct {
		name string
		do   func() error
		want thing
	}{
		{"filled", func() error { return records.spare.fill(append(data, blank(spareSize-len(data))...)) }, old},
		{"exchanged", func() error { return records.spare.swap(records.path("a")) }, changed},
		{"filled again", func() error { return records.spare.fill(data[:10]) }, changed},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got, damaged, err := open(t, dir).Load()
		if err != nil || len(damaged) > 0 || got["a"] != step.want {
			t.Errorf("after %s: %+v, %v, %v; want %+v", step.name, got, damaged, err, step.want)
		}
	}
	if info, err := os.Stat(records.spare.path()); err != nil || info.Size() != spareSize {
		t.Errorf("the next start has no spare file: %v, %v", info, err)
	}
	// Files that could not change back leave a spare file that is too short: with free space, no start is needed.
	if err := errors.Join(records.spare.fill(data[:10]), records.spare.replace(records.path("a"), []byte("{}"))); err != nil {
		t.Errorf("replace a record with a spare file that is too short: %v", err)
	}
}
