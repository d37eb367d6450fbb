package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaults are those of a machine called "machine", wherever the test runs.
func defaults() Options {
	o := NewOptions()
	o.NodeName = "machine"
	return o
}

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(defaults, args...) }

// TestKubeletFlags keeps the kubelet's names for what both have.
func TestKubeletFlags(t *testing.T) {
	o := commandtest.Accepts(t, defaults,
		"--kubeconfig=/k", "--root-dir=/r", "--node-ip=10.0.0.1", "--max-pods=7", "--kube-api-qps=5", "--kube-api-burst=9", "--sync-frequency=2m",
	)
	if o.NodeIP != "10.0.0.1" || o.RootDir != "/r" || o.MaxPods != 7 || o.SyncFrequency != 2*time.Minute {
		t.Errorf("options are %+v", o)
	}
}

// TestDefaults states the defaults that the kubelet has as well.
func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, defaults, map[string]string{
		"root-dir": "/var/lib/kubelet", "max-pods": "110", "sync-frequency": "1m0s", "node-name": "machine", "node-ip": "", "kubeconfig": "", "v": "0",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, defaults, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid"},
		"AllAtOnce": {
			Reason: "one look shows all that is to be mended",
			Args: []string{
				"--node-name=Not_A_Name", "--node-ip=here", "--root-dir=rel", "--max-pods=0", "--sync-frequency=-1s", "--topology-collision=maybe",
				"--self-attach=maybe", "--http-endpoint=nowhere",
			},
			Errors: []string{
				"--node-name=", "--node-ip=", "--root-dir=", "--max-pods=", "--sync-frequency=", "--topology-collision=", "--self-attach=", "--http-endpoint=",
			},
		},
		"ManyNodes": {Reason: "several nodes have names of their own", Args: []string{"--nodes=3", "--node-prefix=load"}},
		"NoPrefix": {
			Reason: "several nodes need names", Args: []string{"--nodes=3"}, Errors: []string{"--node-prefix="},
		},
		"NoNodes":    {Reason: "a process is a node", Args: []string{"--nodes=0", "--node-prefix=load"}, Errors: []string{"--nodes=", "--node-prefix="}},
		"OnePod":     {Reason: "the fewest", Args: []string{"--max-pods=1"}},
		"IPv6":       {Reason: "any family", Args: []string{"--node-ip=fd00::1"}},
		"Overwrite":  {Reason: "the other answer to a collision", Args: []string{"--topology-collision=overwrite"}},
		"NoDuration": {Reason: "a unit is needed", Args: []string{"--sync-frequency=5"}, Usage: []string{"-sync-frequency", `"5"`}},
		"SelfAttach": {Reason: "the names of the seeds", Args: []string{"--self-attach=pv"}},
		"Unknown":    {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
	})
}

// TestFeatureGates: a kubelet's gate is off as in a kubelet, until it is given.
func TestFeatureGates(t *testing.T) {
	if o := NewOptions(); o.Features.Enabled(GateVolumeHealth) {
		t.Error("the gate is on by default")
	}
	if o := commandtest.Accepts(t, defaults, "--feature-gates=CSIVolumeHealth=true"); !o.Features.Enabled(GateVolumeHealth) {
		t.Error("the gate is off although it is given")
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

func TestTemplate(t *testing.T) {
	o, err := parse("--node-name=n", "--max-pods=7", "--root-dir="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := o.template()
	if err != nil {
		t.Fatal(err)
	}
	if tpl.Name != "n" || tpl.MaxPods != 7 || tpl.CPU != int64(runtime.NumCPU()) || tpl.Memory == 0 || tpl.Storage == 0 || !isIP(tpl.IP) {
		t.Errorf("template is %+v, want the machine's capacity and an address", tpl)
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
