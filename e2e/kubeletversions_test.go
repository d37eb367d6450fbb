package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/version"
)

// minor is a minor version of Kubernetes: 36 is 1.36.
type minor uint

func (m minor) String() string { return fmt.Sprintf("1.%d", uint(m)) }

// parseMinor reads a version such as 1.36, or v1.36.3 of a kubelet.
func parseMinor(text string) (minor, error) {
	v, err := version.ParseGeneric(text)
	if err != nil {
		return 0, err
	}
	if v.Major() != 1 {
		return 0, fmt.Errorf("%q is no version of Kubernetes", text)
	}
	return minor(v.Minor()), nil
}

// transcripts has what real kubelets do in each scenario.
const transcripts transcriptDir = "testdata/kubelet"

// transcriptDir is a directory with one for each minor version of Kubernetes, such as 1.36. The oldest has the transcripts of all scenarios, a later
// one those of the scenarios in which its kubelet does not do what that of the version before does.
type transcriptDir string

// file is where a transcript of a version is, if it has its own.
func (d transcriptDir) file(scenario string, v minor) string {
	return filepath.Join(string(d), v.String(), scenario+".txt")
}

// versions lists those that have transcripts, oldest first.
func (d transcriptDir) versions() ([]minor, error) {
	dirs, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	all := make([]minor, 0, len(dirs))
	for _, dir := range dirs {
		v, err := parseMinor(dir.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d, err)
		}
		all = append(all, v)
	}
	slices.Sort(all)
	return all, nil
}

// read returns the transcript of a version: its own, or that of the last version before it that has one.
func (d transcriptDir) read(scenario string, v minor) (file, text string, err error) {
	all, err := d.versions()
	if err != nil {
		return "", "", err
	}
	for _, former := range slices.Backward(all) {
		if former > v {
			continue
		}
		file := d.file(scenario, former)
		text, err := os.ReadFile(file)
		if !errors.Is(err, fs.ErrNotExist) {
			return file, string(text), err
		}
	}
	return "", "", fmt.Errorf("no transcript of %s in %s is of %v or a version before: %w", scenario, d, v, fs.ErrNotExist)
}

// write makes a transcript that of a version. A file is written only if the version before has another transcript, and removed otherwise.
func (d transcriptDir) write(scenario string, v minor, text string) error {
	file := d.file(scenario, v)
	_, before, err := d.read(scenario, v-1)
	switch {
	case err == nil && before == text:
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

// TestTranscriptsOfVersions: a version has files only for what differs from the version before.
func TestTranscriptsOfVersions(t *testing.T) {
	d := transcriptDir(t.TempDir())
	type step struct {
		reason string
		v      minor
		text   string
		files  []string
	}
	for _, s := range []step{
		{"the oldest has all", 36, "a", []string{"1.36/S.txt"}},
		{"as the version before", 37, "a", []string{"1.36/S.txt"}},
		{"another than two versions before", 38, "b", []string{"1.36/S.txt", "1.38/S.txt"}},
		{"again another", 37, "c", []string{"1.36/S.txt", "1.37/S.txt", "1.38/S.txt"}},
		{"now as the version before", 38, "c", []string{"1.36/S.txt", "1.37/S.txt"}},
		{"two digits more are newer", 100, "d", []string{"1.100/S.txt", "1.36/S.txt", "1.37/S.txt"}},
	} {
		if err := d.write("S", s.v, s.text); err != nil {
			t.Fatal(err)
		}
		if file, got, err := d.read("S", s.v); err != nil || got != s.text {
			t.Errorf("%s: version %v has %q of %s, %v, want %q", s.reason, s.v, got, file, err, s.text)
		}
		files, err := fs.Glob(os.DirFS(string(d)), "*/*.txt")
		if diff := cmp.Diff(s.files, files); err != nil || diff != "" {
			t.Errorf("%s: %v, files (-want +got):\n%s", s.reason, err, diff)
		}
	}
	if file, _, err := d.read("S", 35); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before all that is recorded: %q, %v, want an error", file, err)
	}
}

func TestParseMinor(t *testing.T) {
	for text, want := range map[string]minor{"1.36": 36, "v1.37.2": 37, "v1.36.3+longshore": 36, "2.1": 0, "latest": 0, "": 0} {
		if got, err := parseMinor(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}
