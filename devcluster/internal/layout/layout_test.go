package layout_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

const driver = "hostpath.csi.k8s.io"

func TestDefaultHonoursXDG(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	got, err := layout.Default()
	if err != nil || got != "/state/longshore/devcluster" {
		t.Fatalf("Default() = %q, %v", got, err)
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "/home/ada")
	got, err = layout.Default()
	if err != nil || got != "/home/ada/.local/state/longshore/devcluster" {
		t.Fatalf("Default() = %q, %v", got, err)
	}
}

func TestCacheHonoursXDG(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	if got, err := layout.Cache(); err != nil || got != "/cache/longshore" {
		t.Fatalf("Cache() = %q, %v", got, err)
	}
}

func TestPathsStayBelowTheRoot(t *testing.T) {
	d := layout.Dir("/c")
	for name, path := range map[string]string{
		"Kubeconfig": d.Kubeconfig(), "User": d.UserKubeconfig("u"), "PKI": d.PKI(), "Supervisor": d.Supervisor(), "Lock": d.Lock(),
		"Mark": d.Mark(), "Logs": d.Logs(), "Log": d.Log("etcd"), "Etcd": d.Etcd(), "Config": d.Config("x"), "Controller": d.ControllerSocket(""),
		"State": d.DriverState(""), "Node": d.Node("n"), "NodeSocket": d.NodeSocket("n", driver), "Registry": d.Registry("n"),
	} {
		if rel, err := filepath.Rel("/c", path); err != nil || strings.HasPrefix(rel, "..") || rel == "." {
			t.Errorf("%s = %q: not below the root", name, path)
		}
	}
}

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		reason string
		dir    layout.Dir
		want   string
	}{
		"Short":    {reason: "an ordinary directory is fine", dir: "/var/tmp/c"},
		"Relative": {reason: "components run in other directories", dir: "c", want: "absolute"},
		"Long":     {reason: "the kernel limits socket paths", dir: layout.Dir("/" + strings.Repeat("d", 80)), want: "shorter directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.dir.Check(driver, []string{"node-1"})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestNoHome(t *testing.T) {
	for _, name := range []string{"XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME"} {
		t.Setenv(name, "")
	}
	if got, err := layout.Default(); err == nil {
		t.Errorf("Default() = %q without a home", got)
	}
	if got, err := layout.Cache(); err == nil {
		t.Errorf("Cache() = %q without a home", got)
	}
}

func TestNoTwoThingsShareAPath(t *testing.T) {
	d := layout.Dir("/c")
	seen := map[string]string{}
	for name, path := range map[string]string{
		"Kubeconfig": d.Kubeconfig(), "UserA": d.UserKubeconfig("a"), "UserB": d.UserKubeconfig("b"), "PKI": d.PKI(), "Supervisor": d.Supervisor(),
		"Lock": d.Lock(), "Mark": d.Mark(), "Logs": d.Logs(), "LogA": d.Log("a"), "LogB": d.Log("b"), "Etcd": d.Etcd(), "Config": d.Config("a"),
		"Controller": d.ControllerSocket(""), "State": d.DriverState(""), "NodeA": d.Node("a"), "NodeB": d.Node("b"),
		"Controller2": d.ControllerSocket("-2"), "State2": d.DriverState("-2"),
		"SocketA": d.NodeSocket("a", driver), "SocketB": d.NodeSocket("b", driver), "RegistryA": d.Registry("a"), "RegistryB": d.Registry("b"),
	} {
		if other := seen[path]; other != "" {
			t.Errorf("%s and %s are both %q", name, other, path)
		}
		seen[path] = name
	}
}

// TestCheckAgreesWithTheKernel binds to the longest socket that Check lets through, and to one byte more.
func TestCheckAgreesWithTheKernel(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "l")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	accepted := 0
	for n := 1; ; n++ {
		d := layout.Dir(filepath.Join(base, strings.Repeat("d", n)))
		longest := filepath.Join(d.Registry("node-1"), driver+"-reg.sock") + ".tmp1234"
		if err := os.MkdirAll(d.Registry("node-1"), 0o755); err != nil {
			t.Fatal(err)
		}
		l, bindErr := net.Listen("unix", longest)
		if bindErr == nil {
			_ = l.Close()
		}
		err := d.Check(driver, []string{"node-1"})
		if (err == nil) != (bindErr == nil) {
			t.Fatalf("%d bytes: check says %v, the kernel %v", len(longest), err, bindErr)
		}
		if err != nil {
			break
		}
		accepted++
	}
	if accepted == 0 {
		t.Error("every directory is too long: the test proves nothing")
	}
}

func TestResolve(t *testing.T) {
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "real", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "real", "absolute": filepath.Join(base, "real"), "dangling": "real/../later/c", "loop": "loop", "a": "b/x", "b": "a/x"} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct{ reason, dir, want string }{
		"Plain":    {"nothing to resolve", "real/deep", "real/deep"},
		"Link":     {"a link above", "link/deep", "real/deep"},
		"Absolute": {"a link with an absolute target", "absolute/deep", "real/deep"},
		"Absent":   {"the end does not exist yet", "link/x/y", "real/x/y"},
		"Dangling": {"the target of a link does not exist yet", "dangling/x", "later/c/x"},
		"Loop":     {"a link to itself", "loop/x", ""},
		"Endless":  {"links that lead ever deeper", "a", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := layout.Resolve(filepath.Join(base, tc.dir))
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), tc.dir) {
					t.Errorf("%s: got %q, %v", tc.reason, got, err)
				}
				return
			}
			if want := filepath.Join(base, tc.want); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", tc.reason, got, err, want)
			}
		})
	}
}
