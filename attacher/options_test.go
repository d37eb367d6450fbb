package attacher

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-attacher", NewOptions, "--worker-threads=-1")
}

// TestUpstreamFlags keeps a manifest that was written for the external-attacher working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--automaxprocs=true", "--csi-address=/csi/csi.sock", "--default-fstype=xfs",
		"--feature-gates=MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true", "--http-endpoint=:8080",
		"--kube-api-burst=10", "--kube-api-qps=5", "--kubeconfig=/k", "--leader-election=true", "--leader-election-labels=a:b",
		"--leader-election-lease-duration=15s", "--leader-election-namespace=ns", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=5s", "--log-flush-frequency=5s", "--log-json-info-buffer-size=0",
		"--log-json-split-stream=false", "--log-text-info-buffer-size=0", "--log-text-split-stream=false", "--logging-format=json",
		"--max-entries=100", "--max-grpc-log-length=200", "--metrics-path=/m", "--reconcile-sync=2m", "--resync=5m",
		"--retry-interval-max=1m", "--retry-interval-start=2s", "--timeout=20s", "--v=5", "--vmodule=a=1", "--worker-threads=20",
	)
	if o.Workers != 20 || o.MaxEntries != 100 || o.CSI.Timeout != 20*time.Second || o.ReconcileSync != 2*time.Minute || o.DefaultFSType != "xfs" {
		t.Errorf("values did not arrive: %+v", o)
	}
	if o.Features.Enabled(GateErrorCode) {
		t.Error("the gate was not turned off")
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"resync": "10m0s", "timeout": "15s", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "worker-threads": "10",
		"max-entries": "0", "reconcile-sync": "1m0s", "max-grpc-log-length": "-1", "leader-election": "false",
		"leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
		"leader-election-namespace": "", "leader-election-labels": "", "kubeconfig": "", "master": "",
		"csi-address": "/run/csi/socket", "default-fstype": "", "feature-gates": "", "automaxprocs": "", "version": "false",
		"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics", "enable-pprof": "false",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10",
		// Only here.
		"kube-api-timeout": "30s", "secret-namespaces": "", "node-retry-interval": "15s", "exit-on-connection-loss": "false",
	})
	o := NewOptions()
	if !o.Features.Enabled(GateErrorCode) {
		t.Errorf("the gate %s is off", GateErrorCode)
	}
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   []string{"--worker-threads=0", "--max-entries=-1", "--resync=-1s", "--reconcile-sync=-1s", "--kube-api-timeout=0", "--node-retry-interval=0", "--timeout=0", "--csi-address=", "--secret-namespaces=A"},
			Errors: []string{"--worker-threads=0: must be at least 1", "--max-entries=-1", "--resync=-1s", "--reconcile-sync=-1s", "--kube-api-timeout=0", "--node-retry-interval=0", "--timeout=0", "--csi-address", `--secret-namespaces="A"`},
		},
		"Page":      {Reason: "the CSI field has 32 bits", Args: []string{"--max-entries=2147483648"}, Errors: []string{"--max-entries=2147483648: must be from 0 to 2147483647"}},
		"Longest":   {Reason: "the longest page", Args: []string{"--max-entries=2147483647"}},
		"OneWorker": {Reason: "the fewest", Args: []string{"--worker-threads=1"}},
		"Never":     {Reason: "0 turns the loops off", Args: []string{"--resync=0", "--reconcile-sync=0"}},
		"Retry":     {Reason: "pauses grow", Args: []string{"--retry-interval-start=2s", "--retry-interval-max=1s"}, Errors: []string{"--retry-interval-max=1s"}},
		"Lease":     {Reason: "a leader stops before another starts", Args: []string{"--leader-election", "--leader-election-lease-duration=5s"}, Errors: []string{"--leader-election-lease-duration=5s"}},
		"Addresses": {
			Reason: "as upstream, one address only", Args: []string{"--http-endpoint=:1", "--metrics-address=:2"},
			Errors: []string{"--metrics-address"}, Warnings: []string{"--metrics-address"},
		},
		"OldAddress": {Reason: "the old name of the address works", Args: []string{"--metrics-address=:8080"}, Warnings: []string{"--metrics-address"}},
		"Deprecated": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--automaxprocs", "--metrics-address=:1", "--feature-gates=ReleaseLeaderElectionOnExit=true,MutableCSINodeAllocatableCount=true"},
			Warnings: []string{"--metrics-address", "MutableCSINodeAllocatableCount", "--automaxprocs", "ReleaseLeaderElectionOnExit"},
		},
		"UnknownFlag": {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
		"UnknownGate": {Reason: "nor would a misspelt gate", Args: []string{"--feature-gates=NoSuchGate=true"}, Usage: []string{"NoSuchGate", "-feature-gates"}},
		"NoDuration":  {Reason: "usage errors name flag and value", Args: []string{"--resync=ten"}, Usage: []string{`"ten"`, "-resync"}},
	})
}
