package snapshotcontroller

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "snapshot-controller", NewOptions, "--worker-threads=-1")
}

// TestUpstreamFlags keeps a manifest that was written for the external-snapshotter working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--automaxprocs=true", "--enable-distributed-snapshotting=true", "--feature-gates=CSIVolumeGroupSnapshot=false,ReleaseLeaderElectionOnExit=true",
		"--http-endpoint=:8080", "--kube-api-burst=10", "--kube-api-qps=5", "--kubeconfig=/k", "--leader-election=true",
		"--leader-election-lease-duration=15s", "--leader-election-namespace=ns", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=5s", "--log-flush-frequency=5s", "--logging-format=json", "--metrics-path=/m",
		"--prevent-volume-mode-conversion=false", "--resync-period=5m", "--retry-crd-interval-max=5s", "--retry-interval-max=1m",
		"--retry-interval-start=2s", "--v=5", "--vmodule=a=1", "--worker-threads=20",
	)
	if o.Workers != 20 || o.Resync != 5*time.Minute || o.CRDInterval != 5*time.Second || !o.Distributed || o.PreventModeConversion {
		t.Errorf("values did not arrive: %+v", o)
	}
	if o.Features.Enabled(GateGroups) {
		t.Error("the gate was not turned off")
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"resync-period": "15m0s", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "worker-threads": "10",
		"retry-crd-interval-max": "30s", "enable-distributed-snapshotting": "false", "prevent-volume-mode-conversion": "true",
		"leader-election": "false", "leader-election-namespace": "",
		"leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
		"kubeconfig": "", "feature-gates": "", "automaxprocs": "", "version": "false", "http-endpoint": "", "metrics-path": "/metrics",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10",
		// Only here.
		"kube-api-timeout": "30s", "enable-pprof": "false",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   []string{"--worker-threads=0", "--resync-period=-1s", "--kube-api-timeout=0", "--retry-crd-interval-max=999ms"},
			Errors: []string{"--worker-threads=0: must be at least 1", "--resync-period=-1s", "--kube-api-timeout=0", "--retry-crd-interval-max=999ms"},
		},
		"Never": {Reason: "0 turns the resync off", Args: []string{"--resync-period=0"}},
		"Retry": {Reason: "pauses grow", Args: []string{"--retry-interval-start=2s", "--retry-interval-max=1s"}, Errors: []string{"--retry-interval-max=1s"}},
		"Deprecated": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--automaxprocs", "--feature-gates=ReleaseLeaderElectionOnExit=true"},
			Warnings: []string{"--automaxprocs", "ReleaseLeaderElectionOnExit"},
		},
		"UnknownGate": {Reason: "a misspelt gate would have no effect", Args: []string{"--feature-gates=NoSuchGate=true"}, Usage: []string{"NoSuchGate", "-feature-gates"}},
	})
}
