package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFileInPlaceOfDirectory: a file that stands where a directory belongs is somebody's mistake, and
// perhaps somebody's data. It is named, and it stays.
func TestFileInPlaceOfDirectory(t *testing.T) {
	cases := map[string]struct {
		reason string
		file   func(d *Disk) string
		act    func(d *Disk) error
	}{
		"PrepareStaging": {
			reason: "no record without a directory",
			file:   func(d *Disk) string { return d.Root.StagingDir(staging.Driver, staging.Handle) },
			act:    func(d *Disk) error { return d.PrepareStaging(staging) },
		},
		"PrepareTarget": {
			reason: "no record without a directory",
			file:   func(d *Disk) string { return d.Root.TargetDir("uid-1", target.SpecVolID) },
			act:    func(d *Disk) error { return d.PrepareTarget("uid-1", target) },
		},
		"PrepareTargetOfPod": {
			reason: "the pod's own directory is a file",
			file:   func(d *Disk) string { return d.Root.Pod("uid-1") },
			act:    func(d *Disk) error { return d.PrepareTarget("uid-1", target) },
		},
		"CleanPod": {
			reason: "what cannot be listed cannot be clean",
			file:   func(d *Disk) string { return d.Root.PodVolumes("uid-1") },
			act:    func(d *Disk) error { return d.CleanPod("uid-1") },
		},
		"SweepStaging": {
			reason: "a directory without a record is swept, a file is not",
			file:   func(d *Disk) string { return d.Root.StagingDir(staging.Driver, staging.Handle) },
			act:    func(d *Disk) error { return d.SweepStaging(d.Root.StagingDir(staging.Driver, staging.Handle)) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			path := tc.file(d)
			if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tc.act(d); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %v, want an error that names %q", tc.reason, err, path)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
				t.Errorf("%s: the file has %q (%v) now", tc.reason, text, err)
			}
		})
	}
}
