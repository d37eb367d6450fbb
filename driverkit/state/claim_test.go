package state

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestClaim has drivers of several names in one directory: each has its own, again and again, and the first one that which was there before.
func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	want := map[string]string{"first.example.com": dir, "second.example.com": filepath.Join(dir, "drivers/second.example.com"), "third": filepath.Join(dir, "drivers/third")}
	for range 2 {
		for _, driver := range []string{"first.example.com", "second.example.com", "third"} {
			got, err := Claim(dir, driver)
			if err != nil || got != want[driver] {
				t.Errorf("directory of %s: %q, %v, want %q", driver, got, err, want[driver])
			}
			if _, err := os.Stat(got); err != nil {
				t.Error(err)
			}
		}
	}
	if again, err := Claim(want["third"], "third"); err != nil || again != want["third"] {
		t.Errorf("a directory that was claimed already: %q, %v", again, err)
	}
	for _, name := range []string{"", ".", "..", "../other", "a/b", ".hidden"} {
		if got, err := Claim(dir, name); err == nil || !strings.Contains(err.Error(), "its name must be one of a file") {
			t.Errorf("driver %q: %q, %v", name, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(dir, "third"); err == nil || !strings.Contains(err.Error(), "is empty: write the name") {
		t.Errorf("an owner that is not known: %v", err)
	}
}

// TestClaimAtOnce: of drivers that start at the same time one has the directory.
func TestClaimAtOnce(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d", "e", "f"}
	got := make([]string, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() {
			var err error
			if got[i], err = Claim(dir, name); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	owners := 0
	for i, name := range names {
		switch got[i] {
		case dir:
			owners++
		case filepath.Join(dir, "drivers", name):
		default:
			t.Errorf("driver %s has %q", name, got[i])
		}
	}
	if owners != 1 {
		t.Errorf("%d drivers have the directory: %q", owners, got)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".tmp*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
