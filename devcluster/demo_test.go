package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestDemoSaysWhatItNeeds(t *testing.T) {
	s, _ := serveOnly(t)
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("this is no kubeconfig: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason  string
		options DemoOptions
		want    string
	}{
		"NoExamples":    {reason: "outside of a checkout there are no examples", options: DemoOptions{Dir: s.options.Dir}, want: "name the directory by --examples"},
		"NoCluster":     {reason: "without a cluster there is nothing to show", options: DemoOptions{Dir: "/nonexistent/c", Examples: "/e"}, want: "no cluster is up in /nonexistent/c"},
		"NotReady":      {reason: "a cluster that is being started is not ready", options: DemoOptions{Dir: s.options.Dir, Examples: "/e"}, want: "is Starting, not Running"},
		"BadKubeconfig": {reason: "another cluster is named by a file", options: DemoOptions{Kubeconfig: broken, Examples: "/e"}, want: "read the kubeconfig"},
		"NoKubeconfig":  {reason: "a file that is not there", options: DemoOptions{Kubeconfig: "/nonexistent/k", Examples: "/e"}, want: "/nonexistent/k"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			var out strings.Builder
			err := Demo(t.Context(), tc.options, &out)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
			if out.Len() > 0 {
				t.Errorf("%s: it shows something: %q", tc.reason, &out)
			}
		})
	}
	if err := Demo(t.Context(), DemoOptions{Dir: "/nonexistent/c", Examples: "/e"}, &strings.Builder{}); !errors.Is(err, ErrDown) {
		t.Errorf("the caller cannot tell that the cluster is down: %v", err)
	}
}

// TestDriverIsAskedForSnapshots: a demo leaves out what the driver of the cluster cannot do.
func TestDriverIsAskedForSnapshots(t *testing.T) {
	able := append(csitest.AllController(), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	for want, capabilities := range map[string][]csi.ControllerServiceCapability_RPC_Type{
		"": able, "driver d.example.com does not announce CREATE_DELETE_SNAPSHOT": csitest.AllController(),
	} {
		driver := csitest.New(csitest.Options{Name: "d.example.com", Controller: capabilities})
		if got, err := noSnapshots(t.Context(), driver.Serve(t)); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := noSnapshots(ctx, filepath.Join(t.TempDir(), "csi.sock")); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "ask the driver") {
		t.Errorf("without a driver: got %v", err)
	}
}

func TestFindUpwards(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b", "c")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("x", "marker-of-this-test")
	for _, dir := range []string{filepath.Join(root, "x"), filepath.Join(root, "a", "b", "x")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "marker-of-this-test"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for from, want := range map[string]string{
		deep: filepath.Join(root, "a", "b", "x"), filepath.Join(root, "a"): filepath.Join(root, "x"), "/": "",
	} {
		t.Run(strings.ReplaceAll(from, "/", "_"), func(t *testing.T) {
			t.Chdir(from)
			if got := findUpwards(file); got != want {
				t.Errorf("from %s: got %q, want %q", from, got, want)
			}
		})
	}
}
