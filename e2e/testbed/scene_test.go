package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestObjectsAreWhatTheTestsSay(t *testing.T) {
	if c := Claim("n", "a", "class"); *c.Spec.StorageClassName != "class" || c.Namespace != "n" {
		t.Errorf("claim %+v", c)
	}
	p := Pod("n", "a", Inline("d.example.com"))
	if p.Spec.Volumes[0].CSI.Driver != "d.example.com" || p.Spec.Containers[0].VolumeMounts[0].Name != p.Spec.Volumes[0].Name {
		t.Errorf("pod %+v", p)
	}
	if s := FromClaim("a"); s.PersistentVolumeClaim.ClaimName != "a" {
		t.Errorf("source %+v", s)
	}
}

func TestNamesOfScenes(t *testing.T) {
	for test, want := range map[string]string{
		"TestKilledInTheMiddle/Create/csi-attacher": "e2e-7-killedinthemiddle-create-csi-attacher",
		"BenchmarkClaim/Concurrent1":                "e2e-7-benchmarkclaim-concurrent1",
		"TestA_b#01":                                "e2e-7-a-b-01",
		"Test" + strings.Repeat("x", 43) + "/long":  "e2e-7-" + strings.Repeat("x", 43), // a name must not end in a dash
	} {
		if got := sceneName(7, test); got != want {
			t.Errorf("%s: got %q, want %q", test, got, want)
		}
	}
}

func TestTailOfALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Tail(path, 2); got != "b\nc" {
		t.Errorf("got %q", got)
	}
	if got := Tail(path+"x", 2); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}
