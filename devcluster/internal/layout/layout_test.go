package layout_test

import (
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
		"Mark": d.Mark(), "Logs": d.Logs(), "Log": d.Log("etcd"), "Etcd": d.Etcd(), "Config": d.Config("x"), "Controller": d.ControllerSocket(),
		"State": d.DriverState(), "Node": d.Node("n"), "NodeSocket": d.NodeSocket("n", driver), "Registry": d.Registry("n"),
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
