package driverkit_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
)

func TestIDFromName(t *testing.T) {
	a, b := driverkit.IDFromName("pvc-a"), driverkit.IDFromName("pvc-b")
	if a == b || a != driverkit.IDFromName("pvc-a") || len(a) != 32 || driverkit.FileName(a) != a {
		t.Errorf("got %q and %q, want two ids of 32 characters that are file names", a, b)
	}
}

// FuzzFileName looks for ids whose files are not in the directory where they belong.
func FuzzFileName(f *testing.F) {
	for _, id := range []string{"", ".", "..", "/", "a/b", "../x", "-rf", "a", "vol-1", "a\x00b", strings.Repeat("x", 300), "ä"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		name := driverkit.FileName(id)
		path := filepath.Join("/root", name)
		if filepath.Dir(path) != "/root" || filepath.Base(path) != name || len(name) > 128 || strings.HasPrefix(name, "-") {
			t.Errorf("%q becomes %q", id, name)
		}
	})
}
