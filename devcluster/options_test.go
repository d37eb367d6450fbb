package devcluster

import (
	"errors"
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
	want := Options{Dir: "/d", Nodes: 7, NodesPerAgent: 3, MaxPods: 9, Drivers: []Driver{{}, {Path: "/x y", Flags: "--a={endpoint} --b", CSIDriver: "/o", StorageClass: "/s"}, {Path: "/z"}}, ControlPlane: "/p", Cache: "/c", KubernetesURL: "https://k", EtcdURL: "https://e", Verbosity: 4, Audit: true, FeatureGates: "A=true", SelfAttach: "pv", Without: []string{"csi-snapshotter", "snapshot-controller"}}
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
	o.Nodes, o.Verbosity, o.Drivers, o.Dir = 0, -1, []Driver{{Path: "/nonexistent/driver"}, {Path: "/nonexistent/other"}}, "relative"
	o.Without, o.SelfAttach = []string{"csi-attacher", "etcd"}, "maybe"
	err := o.check()
	if err == nil {
		t.Fatal("no error")
	}
	// The directory is checked for the nodes that there would be: none here.
	for _, want := range []string{"--nodes=0", "--v=-1", "--driver=/nonexistent/driver", "--driver=/nonexistent/other", "--self-attach=maybe", `"relative"`, "--without=etcd: must be of csi-provisioner, "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q: %v", want, err)
		}
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
	o.Dir, o.Drivers = "here", []Driver{{}, {Path: "driver", StorageClass: "class.yaml"}}
	if err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	if o.ControlPlane != pins || o.Dir != filepath.Join(deep, "here") {
		t.Errorf("got %+v", o)
	}
	if diff := cmp.Diff([]Driver{{}, {Path: filepath.Join(deep, "driver"), StorageClass: filepath.Join(deep, "class.yaml")}}, o.Drivers); diff != "" {
		t.Error(diff)
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

func TestHost(t *testing.T) {
	found := func(string) (string, error) { return "/usr/bin/go", nil }
	lost := func(string) (string, error) { return "", errors.New("not on PATH") }
	tests := map[string]struct {
		reason string
		host   host
		want   []string
	}{
		"Complete": {reason: "root, and a Go to build with", host: host{user: 0, lookPath: found}},
		"NotRoot":  {reason: "mounts need root, and the user is told how to get it", host: host{user: 1000, lookPath: found}, want: []string{"user 1000", "needs root", "sudo"}},
		"NoGo":     {reason: "the control plane is built", host: host{user: 0, lookPath: lost}, want: []string{"not on PATH", "install Go"}},
		"Neither":  {reason: "everything is told at once", host: host{user: 1, lookPath: lost}, want: []string{"needs root", "install Go"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.host.check()
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: lacks %q: %v", tc.reason, want, err)
				}
			}
		})
	}
}

func TestValidateLooksAtOptionsAndHost(t *testing.T) {
	o := validOptions(t)
	o.Nodes = maxNodes + 1
	t.Setenv("PATH", t.TempDir())
	err := o.Validate()
	for _, want := range []string{"--nodes=101: must be between 1 and 100: each node is four processes", "install Go"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q: %v", want, err)
		}
	}
}

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(*Options)
		ok     bool
	}{
		"OneNode":    {reason: "the smallest cluster", change: func(o *Options) { o.Nodes = 1 }, ok: true},
		"MostNodes":  {reason: "the largest cluster", change: func(o *Options) { o.Nodes = maxNodes }, ok: true},
		"MostShared": {reason: "the largest cluster of one process for all nodes", change: func(o *Options) { o.Nodes, o.NodesPerAgent = maxSharedNodes, maxSharedNodes }, ok: true},
		"TooShared":  {reason: "a larger cluster was not tried", change: func(o *Options) { o.Nodes, o.NodesPerAgent = maxSharedNodes+1, 2 }},
		"NotShared": {
			reason: "the drivers of the nodes are processes", change: func(o *Options) {
				o.Nodes, o.NodesPerAgent, o.Drivers = maxNodes+1, 2, []Driver{{Path: "/bin/true"}}
			},
		},
		"NoShare":   {reason: "no such number of nodes", change: func(o *Options) { o.NodesPerAgent = -1 }},
		"NoPods":    {reason: "no such number of pods", change: func(o *Options) { o.MaxPods = -1 }},
		"NoNode":    {reason: "a cluster without nodes runs no pod", change: func(o *Options) { o.Nodes = 0 }},
		"Negative":  {reason: "no such number of nodes", change: func(o *Options) { o.Nodes = -3 }},
		"Quiet":     {reason: "the lowest log level", change: func(o *Options) { o.Verbosity = 0 }, ok: true},
		"LongDir":   {reason: "a socket needs a short path", change: func(o *Options) { o.Dir = "/" + strings.Repeat("d", 100) }},
		"DriverDir": {reason: "a directory is no program", change: func(o *Options) { o.Drivers = []Driver{{Path: "/"}} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := validOptions(t)
			tc.change(&o)
			if err := o.check(); (err == nil) != tc.ok {
				t.Errorf("%s: got %v", tc.reason, err)
			}
		})
	}
}

func TestDefaultsNeedAHome(t *testing.T) {
	for _, name := range []string{"XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME"} {
		t.Setenv(name, "")
	}
	if _, err := NewOptions(); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("no home: got %v", err)
	}
	t.Setenv("XDG_STATE_HOME", "/state")
	if _, err := NewOptions(); err == nil || !strings.Contains(err.Error(), "cache") {
		t.Errorf("no home for the cache: got %v", err)
	}
}
