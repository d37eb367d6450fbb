package devcluster

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func validOptions(t *testing.T) Options {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", "/state")
	t.Setenv("XDG_CACHE_HOME", "/cache")
	o, err := NewOptions()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDefaultsAreValid(t *testing.T) {
	o := validOptions(t)
	if err := o.check(); err != nil {
		t.Error(err)
	}
	if o.Nodes != 3 || o.Dir != "/state/longshore/devcluster" || o.Cache != "/cache/longshore" {
		t.Errorf("got %+v", o)
	}
}

func TestArgsRoundTrip(t *testing.T) {
	want := Options{Dir: "/d", Nodes: 7, Driver: "/x y", ControlPlane: "/p", Cache: "/c", Verbosity: 4, Audit: true}
	var got Options
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	got.AddFlags(fs)
	if err := fs.Parse(want.Args()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestValidateNamesEverythingThatIsWrong(t *testing.T) {
	o := validOptions(t)
	o.Nodes, o.Verbosity, o.Driver, o.Dir = 0, -1, "/nonexistent/driver", "relative"
	err := o.check()
	if err == nil {
		t.Fatal("no error")
	}
	// The directory is checked for the nodes that there would be: none here.
	for _, want := range []string{"--nodes=0", "--v=-1", "--driver=/nonexistent/driver", `"relative"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q: %v", want, err)
		}
	}
}

func TestDriverMustBeAProgram(t *testing.T) {
	o := validOptions(t)
	o.Driver = filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(o.Driver, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "not a program") {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(o.Driver, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := o.check(); err != nil {
		t.Error(err)
	}
}

func TestCompleteFindsTheCheckout(t *testing.T) {
	o := validOptions(t)
	root := t.TempDir()
	pins := filepath.Join(root, "devcluster", "controlplane")
	deep := filepath.Join(root, "a", "b")
	for _, dir := range []string{pins, deep} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(pins, "go.mod"), []byte("module m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(deep)
	o.Dir = "here"
	if err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	if o.ControlPlane != pins || o.Dir != filepath.Join(deep, "here") || o.Driver != "" {
		t.Errorf("got %+v", o)
	}
}

func TestNodeNames(t *testing.T) {
	if diff := cmp.Diff([]string{"node-1", "node-2"}, NodeNames(2)); diff != "" {
		t.Error(diff)
	}
	if got := NodeNames(-1); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}
