package kubeletplugin

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/csikit/flagset"
)

func TestMain(m *testing.M) {
	flag.Bool("rewrite", false, "write the golden files instead of comparing with them")
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) {
	o := NewOptions()
	o.NodeName = "machine" // independent of where the test runs
	fs := flag.NewFlagSet("csi-node-agent", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	return o, fs.Parse(args)
}

// golden compares got with the file, or writes the file if the flag -rewrite is given.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is out of date, run the tests with -rewrite (-file +now):\n%s", path, diff)
	}
}

// defaults are those of a machine called "machine".
func defaults() Options {
	o := NewOptions()
	o.NodeName = "machine"
	return o
}

func TestHelp(t *testing.T) {
	var help bytes.Buffer
	err := command.New("csi-node-agent", defaults, Run).Execute(t.Context(), []string{"--help"}, io.Discard, &help)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("--help ended in %v", err)
	}
	golden(t, "testdata/help.golden", help.String())
}

func TestFlagsDoc(t *testing.T) {
	golden(t, "docs/flags.md", "# Flags of csi-node-agent\n\n"+
		"Each flag is accepted with one dash and with two. This table is generated from the code by\n"+
		"`go test -run TestFlagsDoc . -rewrite`, on a machine whose host name is `machine`.\n\n"+
		flagset.Markdown(command.New("csi-node-agent", defaults, Run).Flags()))
}

// TestKubeletFlags keeps the kubelet's names for what both have.
func TestKubeletFlags(t *testing.T) {
	o, err := parse(
		"--kubeconfig=/k", "--hostname-override=n1", "--root-dir=/r", "--node-ip=10.0.0.1", "--node-labels=a=b,c=",
		"--register-with-taints=x=y:NoSchedule,z:NoExecute", "--max-pods=7", "--kube-api-qps=5", "--kube-api-burst=9",
		"--node-status-update-frequency=3s", "--node-lease-duration-seconds=20", "--sync-frequency=2m",
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	if o.NodeName != "n1" || o.RootDir != "/r" || o.MaxPods != 7 || o.leaseDuration() != 20*time.Second {
		t.Errorf("options are %+v", o)
	}
	if got := o.NodeLabels.String(); got != "a=b,c=" {
		t.Errorf("labels are %q", got)
	}
	if got := o.Taints.String(); got != "x=y:NoSchedule,z:NoExecute" {
		t.Errorf("taints are %q", got)
	}
}

func TestBadFlags(t *testing.T) {
	cases := map[string]struct{ reason, arg, text string }{
		"LabelForm":     {reason: "no value", arg: "--node-labels=a", text: "key=value"},
		"LabelKey":      {reason: "not a label key", arg: "--node-labels=-=b", text: `"-=b"`},
		"TaintForm":     {reason: "no effect", arg: "--register-with-taints=a=b", text: "key=value:effect"},
		"TaintEffect":   {reason: "unknown effect", arg: "--register-with-taints=a=b:Maybe", text: "NoExecute"},
		"Quantity":      {reason: "no number", arg: "--node-cpu=many", text: `"many"`},
		"QuantityBelow": {reason: "nothing fits", arg: "--node-memory=-1", text: "greater than 0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(tc.arg); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s: got %v, want an error with %q", tc.reason, err, tc.text)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	if o, err := parse(); err != nil || o.Validate() != nil {
		t.Errorf("the defaults are not valid: %v, %v", err, o.Validate())
	}
	o, err := parse("--node-name=Not_A_Name", "--node-ip=here", "--root-dir=rel", "--max-pods=0", "--node-lease-duration-seconds=0",
		"--pod-workers=0", "--csi-timeout=0s", "--node-status-update-frequency=0s", "--sync-frequency=-1s",
		"--topology-collision=maybe", "--extra-registry-dirs=rel", "--http-endpoint=nowhere")
	if err != nil {
		t.Fatal(err)
	}
	err = o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"node-name", "node-ip", "root-dir", "max-pods", "node-lease-duration-seconds", "pod-workers", "csi-timeout",
		"node-status-update-frequency", "sync-frequency", "topology-collision", "extra-registry-dirs", "http-endpoint",
	} {
		if !strings.Contains(err.Error(), "--"+name+"=") {
			t.Errorf("error does not name --%s:\n%v", name, err)
		}
	}
}

// TestAllowedDriversFlag: not given, given empty, and given with names are three things.
func TestAllowedDriversFlag(t *testing.T) {
	cases := map[string]struct {
		reason     string
		args       []string
		restricted bool
		names      int
	}{
		"NotSet": {reason: "any driver"},
		"Empty":  {reason: "no driver", args: []string{"--allowed-csi-drivers="}, restricted: true},
		"List":   {reason: "these drivers", args: []string{"--allowed-csi-drivers=a,b"}, restricted: true, names: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if o.AllowedDrivers.Restricted != tc.restricted || len(o.AllowedDrivers.Names) != tc.names {
				t.Errorf("%s: got %+v", tc.reason, o.AllowedDrivers)
			}
		})
	}
}

func TestLockRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	release, err := lockRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockRoot(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second agent in the same directory: got %v, want an error that names it", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, err := lockRoot(dir)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

func TestTemplate(t *testing.T) {
	o, err := parse("--node-cpu=3", "--root-dir="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := o.template()
	if err != nil {
		t.Fatal(err)
	}
	if tpl.CPU.Value() != 3 || tpl.Memory.IsZero() || tpl.Storage.IsZero() || !isIP(tpl.IP) {
		t.Errorf("template is %+v, want 3 CPUs, the machine's memory and storage, and an address", tpl)
	}
	o.CPU = Quantity{}
	if tpl, err = o.template(); err != nil || tpl.CPU.Value() != int64(runtime.NumCPU()) {
		t.Errorf("template has %v CPUs (%v), want the machine's", tpl.CPU, err)
	}
}

func TestRunRefuses(t *testing.T) {
	bad := defaults()
	bad.MaxPods = 0
	if err := Run(t.Context(), bad); err == nil {
		t.Error("options that are not valid: no error")
	}
	o := defaults()
	o.RootDir, o.Kube.Kubeconfig = t.TempDir(), filepath.Join(t.TempDir(), "absent")
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Kube.Kubeconfig) {
		t.Errorf("a kubeconfig that does not exist: got %v, want an error that names it", err)
	}
}

// TestRunWithoutServer: an API server that is away ends nothing; the end of the context does.
func TestRunWithoutServer(t *testing.T) {
	o := defaults()
	o.RootDir, o.HTTP.Endpoint = t.TempDir(), "127.0.0.1:0"
	o.Kube.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	config := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n" +
		"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
	if err := os.WriteFile(o.Kube.Kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := Run(ctx, o); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}
