package provisioner

import (
	"flag"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/topology"
)

// newFlags returns options bound to a set of flags.
func newFlags() (*Options, *flag.FlagSet) {
	o := NewOptions()
	fs := flag.NewFlagSet("csi-provisioner", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	return &o, fs
}

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-provisioner", NewOptions, "--worker-threads=0")
}

// TestUpstreamFlags states the flags that manifests of the replaced helper may have, and the defaults that
// its users rely on.
func TestUpstreamFlags(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"timeout": "10s", "worker-threads": "100", "volume-name-prefix": "pvc", "volume-name-uuid-length": "-1",
		"retry-interval-start": "1s", "retry-interval-max": "5m0s", "immediate-topology": "true", "strict-topology": "false",
		"csi-address": "/run/csi/socket", "capacity-poll-interval": "1m0s", "capacity-ownerref-level": "1", "capacity-threads": "1",
		"kube-api-capacity-burst": "5", "cloning-protection-threads": "1",
		"snapshot-orphan-sweep-interval": "5m0s", "node-deployment-base-delay": "20s", "node-deployment-max-delay": "1m0s",
		"node-deployment-immediate-binding": "true", "prevent-volume-mode-conversion": "true", "extra-create-metadata": "false",
		"leader-election": "false", "leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s",
		"leader-election-retry-period": "5s", "leader-election-namespace": "", "leader-election-labels": "",
		"metrics-path": "/metrics", "metrics-address": "", "http-endpoint": "", "enable-pprof": "false", "default-fstype": "",
		"enable-capacity": "false", "capacity-for-immediate-binding": "false", "node-deployment": "false",
		"controller-publish-readonly": "false", "feature-gates": "", "master": "", "kubeconfig": "", "automaxprocs": "",
		"version": "false", "v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10", "kube-api-capacity-qps": "0",
	})
}

// TestOwnDefaults states the defaults of flags that only this one has.
func TestOwnDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"topology-spread": "any-name", "termination-grace-period": "30s", "topology-max-segments": "0", "topology-filter-allowed": "false",
	})
}

// TestNodeOptions checks the options of an instance for one node.
func TestNodeOptions(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Good":     {Reason: "The name of the node comes from the environment.", Args: []string{"--node-deployment"}},
		"SameTime": {Reason: "Pauses need not grow.", Args: []string{"--node-deployment", "--node-deployment-base-delay=1m"}},
		"Election": {
			Reason: "A leader would provision for its own node only.",
			Args:   []string{"--node-deployment", "--leader-election"}, Errors: []string{"--node-deployment=true", "--leader-election=true"},
		},
		"NoTopology": {
			Reason: "The segment of a volume would be unknown.",
			Args:   []string{"--node-deployment", "--feature-gates=Topology=false"}, Errors: []string{"--feature-gates=Topology=false"},
			Warnings: []string{"Topology is generally available"},
		},
		"Delays": {
			Reason: "Pauses are positive, and the longest is not the shortest.",
			Args:   []string{"--node-deployment", "--node-deployment-base-delay=0s", "--node-deployment-max-delay=-1s"},
			Errors: []string{"--node-deployment-base-delay=0s", "--node-deployment-max-delay=-1s"},
		},
	})
}

func TestFlagForms(t *testing.T) {
	o, fs := newFlags()
	err := fs.Parse([]string{
		"-csi-address=/a", "--timeout", "1m", "--extra-create-metadata", "-strict-topology=true", "--feature-gates=Topology=false",
		"--topology-spread=statefulsets", "--automaxprocs", "--leader-election-labels=a:b,c:d", "--topology-max-segments=3",
		"--topology-filter-allowed",
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.CSI.Address != "/a" || o.CSI.Timeout != time.Minute || !o.ExtraCreateMetadata || o.Features.Enabled(GateTopology) {
		t.Errorf("options are %+v", o)
	}
	want := topology.Policy{Strict: true, Immediate: true, Spread: topology.SpreadStatefulSets, FilterAllowed: true, MaxSegments: 3}
	if diff := cmp.Diff(want, o.Topology); diff != "" {
		t.Errorf("topology policy (-want +got):\n%s", diff)
	}
	if warnings := o.Warnings(); len(warnings) != 3 {
		t.Errorf("warnings %q, want one each about the gate, --automaxprocs and --timeout", warnings)
	}
}

func TestValidate(t *testing.T) {
	t.Setenv(EnvNodeName, "")
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "The defaults are good."},
		"Harmless": {Reason: "Flags about what is off have no effect and do no harm.", Args: []string{"--capacity-threads=0", "--capacity-for-immediate-binding", "--node-deployment-base-delay=0s", "--node-deployment-max-delay=-1s"}},
		"NoNode":   {Reason: "An instance must know which node is its own.", Args: []string{"--node-deployment"}, Errors: []string{"--node-deployment=true", EnvNodeName}},
		"AllAtOnce": {
			Reason: "One look shows all that is to be mended.",
			Args: []string{
				"--volume-name-prefix=", "--volume-name-uuid-length=40", "--worker-threads=0", "--timeout=0s", "--retry-interval-max=1ms",
				"--snapshot-orphan-sweep-interval=-1s", "--cloning-protection-threads=0", "--http-endpoint=:1", "--metrics-address=:2", "--topology-max-segments=-1", "--termination-grace-period=9s",
			},
			Errors: []string{
				"--volume-name-prefix", "--volume-name-uuid-length=40", "--worker-threads=0", "--timeout=0s", "--retry-interval-max=1ms",
				"--snapshot-orphan-sweep-interval=-1s", "--cloning-protection-threads=0", "--metrics-address", "--topology-max-segments=-1", "--termination-grace-period=9s",
			},
			Warnings: []string{"--metrics-address is deprecated"},
		},
		"GracePeriod": {
			Reason: "A call that may take longer than the grace period leaves it is worth a warning.",
			Args:   []string{"--timeout=60s"}, Warnings: []string{"terminationGracePeriodSeconds of the pod to 65 and --termination-grace-period=1m5s"},
		},
		"NoDuration": {Reason: "Usage errors name flag and value.", Args: []string{"--timeout=fast"}, Usage: []string{`"fast"`, "-timeout"}},
		"NoGate":     {Reason: "Usage errors name flag and value.", Args: []string{"--feature-gates=Nonsense=true"}, Usage: []string{"Nonsense", "-feature-gates"}},
		"NoSpread":   {Reason: "Usage errors name flag and value.", Args: []string{"--topology-spread=all"}, Usage: []string{`"all"`, "-topology-spread"}},
		"NoNumber":   {Reason: "Usage errors name flag and value.", Args: []string{"--worker-threads=many"}, Usage: []string{`"many"`, "-worker-threads"}},
		"Unknown":    {Reason: "A misspelt flag would have no effect.", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
	})
}
