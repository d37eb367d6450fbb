package hostpathdriver

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// parse reads a command line as the program does.
func parse(args ...string) (Options, error) {
	o := NewOptions()
	fs := flag.NewFlagSet("hostpathplugin", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	return o, fs.Parse(args)
}

func TestFlags(t *testing.T) {
	o, err := parse("--endpoint=unix:///csi/csi.sock", "-drivername", "d.example.com", "--statedir=/data", "--nodeid=n1", "--mode=node",
		"--enable-topology=false", "--enable-attach", "--attach-limit=-1", "--maxvolumespernode=10", "--check-volume-lifecycle=false",
		"--enable-list-snapshots=false", "--enable-snapshot-metadata", "--snapshot-metadata-block-type=VARIABLE_LENGTH", "--volume-expansion-type=OFFLINE",
		"--max-volume-size=2Gi", "--capacity", "slow=10Gi", "--capacity=fast=1.5Gi", "--pool=fast=/mnt/nvme", "--pool", "big=/mnt/a=b", "--http-endpoint=:8080")
	if err != nil {
		t.Fatal(err)
	}
	want := NewOptions()
	want.Endpoint, want.DriverName, want.StateDir, want.NodeID, want.Mode = "unix:///csi/csi.sock", "d.example.com", "/data", "n1", ModeNode
	want.Topology, want.Attach, want.AttachLimit, want.MaxVolumesPerNode, want.ProtectUsed = false, true, -1, 10, false
	want.MaxVolumeSize, want.Capacity, want.HTTP.Endpoint = 2<<30, map[string]int64{"slow": 10 << 30, "fast": 3 << 29}, ":8080"
	want.PoolDirs = map[string]string{"fast": "/mnt/nvme", "big": "/mnt/a=b"}
	want.ListSnapshots, want.SnapshotMetadata, want.MetadataExtents, want.OfflineExpansion = false, true, true, true
	ignoreIgnored := cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "ignored" || p.String() == "step" || p.String() == "interceptors" || p.String() == "reconcilePeriod"
	}, cmp.Ignore())
	if diff := cmp.Diff(want, o, ignoreIgnored); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if err := o.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
	if got := o.Warnings(); len(got) != 0 {
		t.Errorf("warnings: %v", got)
	}
}

// TestCommandLinesOfOthers are the command lines that manifests and test
// suites use today; the program must start with them.
func TestCommandLinesOfOthers(t *testing.T) {
	cases := map[string]struct {
		reason   string
		args     string
		warnings int
	}{
		"Deployment":  {reason: "the manifest of the hostpath driver", args: "--drivername=hostpath.csi.k8s.io --v=5 --endpoint=unix:///csi/csi.sock --nodeid=n1"},
		"Distributed": {reason: "the manifest with capacity", args: "--drivername=hostpath.csi.k8s.io --endpoint=unix:///csi/csi.sock --nodeid=n1 --capacity=slow=10Gi --capacity=fast=100Gi"},
		"InTreeSuite": {reason: "the suite in the tree of Kubernetes", args: "--nodeid=n1 --drivername=d --maxvolumespernode=10 --check-volume-lifecycle=true --enable-controller-modify-volume=true --accepted-mutable-parameter-names=e2eVacTest --enable-snapshot-metadata"},
		"MockSuite":   {reason: "the csimock suite of Kubernetes", args: "-v=5 -nodeid=n1 -endpoint=/csi/csi.sock -proxy-endpoint=tcp://:9000"},
		"ProxyNoID":   {reason: "a proxy is on no node", args: "-endpoint=/csi/csi.sock -proxy-endpoint=tcp://:9000"},
		"Expansion":   {reason: "a manifest that tunes expansion", args: "--nodeid=n1 --node-expand-required --enable-volume-expansion=true --disable-controller-expansion --disable-node-expansion=false --max-volume-size=1099511627776 --max-volume-size-node=1024"},
		"Everything":  {reason: "all flags without a function here", args: "--nodeid=n1 --ephemeral --automaxprocs --enable-list-snapshots=false --snapshot-metadata-block-type=FIXED_LENGTH --logtostderr --stderrthreshold=2", warnings: 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			logs := logging.NewOptions()
			fs := flag.NewFlagSet("hostpathplugin", flag.ContinueOnError)
			flagset.AddFlags(fs, &o, &logs)
			if err := fs.Parse(strings.Fields(c.args)); err != nil {
				t.Fatalf("%s: %v", c.reason, err)
			}
			if err := o.Validate(); err != nil {
				t.Errorf("%s: %v", c.reason, err)
			}
			if got := o.Warnings(); len(got) != c.warnings {
				t.Errorf("%s: warnings %q, want %d", c.reason, got, c.warnings)
			}
		})
	}
}

func TestBadFlags(t *testing.T) {
	for _, arg := range []string{
		"--mode=both", "--capacity=fast", "--capacity==1Gi", "--capacity=fast=big", "--max-volume-size=-1", "--max-volume-size=1X",
		"--pool=fast", "--pool==/mnt", "--pool=fast=", "--attach-limit=many", "--volume-expansion-type=offline", "--ephemeral=perhaps", "--no-such-flag",
	} {
		if _, err := parse(arg); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
	if _, err := parse("--capacity=fast=1Gi", "--capacity=fast=2Gi"); err == nil {
		t.Error("a pool is accepted twice")
	}
	if _, err := parse("--pool=fast=/a", "--pool=fast=/b"); err == nil {
		t.Error("a pool is accepted in two directories")
	}
}

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Options)
		want   []string
	}{
		"Good":           {reason: "nothing wrong", change: func(*Options) {}},
		"ControllerNoID": {reason: "a controller has no node", change: func(o *Options) { o.Mode, o.NodeID = ModeController, "" }},
		"LongIDNoLabel":  {reason: "without topology the id is no label", change: func(o *Options) { o.Topology, o.NodeID = false, strings.Repeat("n", 100) }},
		"NoID":           {reason: "a node needs one", change: func(o *Options) { o.NodeID = "" }, want: []string{"--nodeid"}},
		"PathID":         {reason: "the node has a directory", change: func(o *Options) { o.NodeID = "../x" }, want: []string{"--nodeid", "../x"}},
		"LongID":         {reason: "64 characters are no label value", change: func(o *Options) { o.NodeID = strings.Repeat("n", 64) }, want: []string{"--nodeid", "63"}},
		"DashID":         {reason: "a label value ends with a letter or digit", change: func(o *Options) { o.NodeID = "n-" }, want: []string{"--nodeid"}},
		"Mode":           {reason: "no such mode", change: func(o *Options) { o.Mode = "both" }, want: []string{"--mode", "both"}},
		"Name":           {reason: "no domain name", change: func(o *Options) { o.DriverName = "my driver" }, want: []string{"--drivername", "my driver"}},
		"EmptyLabel":     {reason: "every sidecar refuses the name", change: func(o *Options) { o.DriverName = "a..b" }, want: []string{"--drivername", "a..b"}},
		"DashBeforeDot":  {reason: "every sidecar refuses the name", change: func(o *Options) { o.DriverName = "a-.b" }, want: []string{"--drivername", "a-.b"}},
		"LongName":       {reason: "64 characters", change: func(o *Options) { o.DriverName = strings.Repeat("d", 64) }, want: []string{"--drivername", "63"}},
		"RelativeState":  {reason: "relative to what?", change: func(o *Options) { o.StateDir = "state" }, want: []string{"--statedir", "state"}},
		"RootState":      {reason: "never the root", change: func(o *Options) { o.StateDir = "//" }, want: []string{"--statedir"}},
		"Pools":          {reason: "apart from each other", change: func(o *Options) { o.PoolDirs = map[string]string{"a": "/mnt/a", "b": "/mnt/ab"} }},
		"RelativePool":   {reason: "relative to what?", change: func(o *Options) { o.PoolDirs = map[string]string{"a": "x"} }, want: []string{"--pool=a=x", "absolute"}},
		"RootPool":       {reason: "never the root", change: func(o *Options) { o.PoolDirs = map[string]string{"a": "/x/.."} }, want: []string{"--pool=a=/x/.."}},
		"PoolInState":    {reason: "whose file is it?", change: func(o *Options) { o.PoolDirs = map[string]string{"a": o.StateDir + "/volumes"} }, want: []string{"--pool=a=", "--statedir"}},
		"StateInPool":    {reason: "the other way round", change: func(o *Options) { o.StateDir, o.PoolDirs = "/data/state", map[string]string{"a": "/data"} }, want: []string{"--pool=a=/data", "--statedir"}},
		"PoolInPool":     {reason: "the same", change: func(o *Options) { o.PoolDirs = map[string]string{"a": "/mnt", "b": "/mnt/"} }, want: []string{"--pool=b=/mnt/", "--pool=a=/mnt"}},
		"NodeExpansion":  {reason: "the node opens the controller's records", change: func(o *Options) { o.Mode, o.NoControllerExpansion = ModeNode, true }},
		"OfflineOnNode":  {reason: "a node expands what is in use", change: func(o *Options) { o.OfflineExpansion, o.NoControllerExpansion = true, true }, want: []string{"--volume-expansion-type=OFFLINE", "--disable-controller-expansion"}},
		"OfflineBoth":    {reason: "the node completes it when the volume is in use again", change: func(o *Options) { o.OfflineExpansion = true }},
		"OfflineNone":    {reason: "no expansion of any type", change: func(o *Options) { o.OfflineExpansion, o.NoControllerExpansion, o.NoNodeExpansion = true, true, true }},
		"NoExpansion":    {reason: "nobody expands", change: func(o *Options) { o.Mode, o.NoControllerExpansion, o.NoNodeExpansion = ModeNode, true, true }},
		"Proxy":          {reason: "no driver, so that all else has no effect", change: func(o *Options) { o.ProxyEndpoint, o.NodeID, o.StateDir = "tcp://:9000", "", "" }},
		"ProxyNowhere":   {reason: "nothing to join", change: func(o *Options) { o.ProxyEndpoint, o.Endpoint = "tcp://:9000", "" }, want: []string{"--endpoint"}},
		"ProxyToItself":  {reason: "one endpoint cannot be both", change: func(o *Options) { o.ProxyEndpoint = o.Endpoint }, want: []string{"--proxy-endpoint", "--endpoint"}},
		"All": {reason: "everything at once", change: func(o *Options) {
			o.Endpoint, o.AttachLimit, o.MaxVolumesPerNode, o.MaxVolumeSize, o.MaxVolumeSizeNode = "", -2, -1, 0, -1
			o.CallTimeout, o.StopTimeout, o.HTTP.Endpoint = 0, -1, "x"
			o.Capacity, o.MaxInlineSize, o.InlinePools = map[string]int64{"": 1}, -1, []string{"none"}
		}, want: []string{"--endpoint", "--attach-limit=-2", "--max-inline-volume-size=-1", `--inline-volume-pools: "none" is no pool`, "--maxvolumespernode=-1", "--max-volume-size=0", "--max-volume-size-node=-1", "--call-timeout", "--stop-timeout", "--http-endpoint", "--capacity"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			o.NodeID = "n1"
			c.change(&o)
			err := o.Validate()
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("%s: error %v", c.reason, err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: error %q must name %q", c.reason, err, part)
				}
			}
		})
	}
}

func TestEnforcedLimit(t *testing.T) {
	for name, c := range map[string]struct{ attach, perNode, enforced, lowest, highest int64 }{
		"None":      {},
		"PerNode":   {perNode: 5, enforced: 5, lowest: 5, highest: 5},
		"AttachWin": {attach: 3, perNode: 5, enforced: 3, lowest: 3, highest: 3},
		"Random":    {attach: -1, perNode: 5, lowest: 1, highest: 10},
	} {
		o := Options{AttachLimit: c.attach, MaxVolumesPerNode: c.perNode}
		if got := o.enforcedLimit(); got != c.enforced {
			t.Errorf("%s: enforced %d, want %d", name, got, c.enforced)
		}
		d := driver{options: o}
		seen := map[int64]bool{}
		for range 200 {
			got := d.maxVolumes()
			if got < c.lowest || got > c.highest {
				t.Fatalf("%s: reported %d, want %d to %d", name, got, c.lowest, c.highest)
			}
			seen[got] = true
		}
		if (len(seen) > 1) != (c.attach == -1) {
			t.Errorf("%s: %d different answers", name, len(seen))
		}
	}
}

// TestFlagsDocument compares docs/flags.md with the flags. Run it with
// UPDATE_DOCS=1 to write the file.
func TestFlagsDocument(t *testing.T) {
	const path = "docs/flags.md"
	o, logs := NewOptions(), logging.NewOptions()
	fs := flag.NewFlagSet("hostpathplugin", flag.ContinueOnError)
	flagset.AddFlags(fs, &o, &logs)
	fs.Bool("version", false, "print the version and exit")
	want := "# Flags of hostpathplugin\n\n" +
		"Generated from the program by `UPDATE_DOCS=1 go test -run TestFlagsDocument .`; a test compares.\n\n" +
		flagset.Markdown(fs)
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { // documentation is readable
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not what the flags say (-want +got):\n%s", path, diff)
	}
}
