package records

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// TestInterruptedWrite: a process that died between writing and renaming has lost nothing of what
// was there, and the next write is not disturbed by what it left.
func TestInterruptedWrite(t *testing.T) {
	dir := dirOf(t, persistent().SpecVolID)
	if err := persistent().Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tempFile), []byte(`{"driverName":"much longer than what comes then, so that a rest could stay"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadTarget(dir); err != nil || got != persistent() {
		t.Errorf("the old record: %+v, %v", got, err)
	}
	next := persistent()
	next.Handle = "vol-2"
	if err := next.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(next, got); diff != "" {
		t.Errorf("the new record, -want +got:\n%s", diff)
	}
}

// TestWriteThatCannot leaves the record as it was, or none.
func TestWriteThatCannot(t *testing.T) {
	cases := map[string]struct {
		reason  string
		prepare func(dir string) error
	}{
		"TempIsDirectory":   {reason: "the new record cannot be written", prepare: func(dir string) error { return os.Mkdir(filepath.Join(dir, tempFile), 0o700) }},
		"RecordIsDirectory": {reason: "the old record cannot be replaced", prepare: func(dir string) error { return os.MkdirAll(filepath.Join(dir, layout.RecordFile, "x"), 0o700) }},
		"NoDirectory":       {reason: "there is no place for it", prepare: os.Remove},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := tc.prepare(dir); err != nil {
				t.Fatal(err)
			}
			if err := persistent().Write(dir); err == nil {
				t.Errorf("%s: no error", tc.reason)
			}
			if got, err := ReadTarget(dir); err == nil {
				t.Errorf("%s: there is a record: %+v", tc.reason, got)
			}
		})
	}
}

// TestUnreadableIsNotAbsent: what cannot be read now may be there, so it must not count as missing.
func TestUnreadableIsNotAbsent(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, layout.RecordFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadStaging(dir); err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want an error of its own", err)
	}
}

// TestRemoveThatCannot says so: a record that stays would be found at the next start.
func TestRemoveThatCannot(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, layout.RecordFile, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err == nil {
		t.Error("no error")
	}
}

// TestFileMode: records name volumes and nodes, which is nobody's business.
func TestFileMode(t *testing.T) {
	dir := t.TempDir()
	if err := persistent().Write(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, layout.RecordFile))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode is %o, want 600", mode)
	}
}

// FuzzRead: whatever is in the file, it is a usable record or an error.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", "null", "{}", `{"volumeHandle":"v","driverName":"d"}`, `{"volumeHandle":"v","driverName":"d","specVolID":"\u0000"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, layout.RecordFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadTarget(dir)
		switch {
		case err != nil && !errors.Is(err, ErrCorrupt):
			t.Errorf("%q: got %v, want ErrCorrupt", content, err)
		case err == nil && layout.Escape(got.SpecVolID) != filepath.Base(dir):
			t.Errorf("%q: got volume %q in directory %q", content, got.SpecVolID, dir)
		case err == nil && (got.Handle == "" || got.Driver == "" || got.SpecVolID == "" || got.Lifecycle == ""):
			t.Errorf("%q: got %+v, which cannot be used", content, got)
		}
	})
}
