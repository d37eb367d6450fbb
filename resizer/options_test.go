package resizer

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-resizer", NewOptions, "--workers=-1")
}

// TestUpstreamFlags keeps a manifest that was written for the external-resizer working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--automaxprocs=true", "--csi-address=/csi/csi.sock", "--extra-modify-metadata=true",
		"--feature-gates=AnnotateFsResize=false,RecoverVolumeExpansionFailure=true,VolumeAttributesClass=false,ReleaseLeaderElectionOnExit=true",
		"--handle-volume-inuse-error=false", "--http-endpoint=:8080",
		"--kube-api-burst=10", "--kube-api-qps=5", "--kubeconfig=/k", "--leader-election=true", "--leader-election-labels=a:b",
		"--leader-election-lease-duration=15s", "--leader-election-namespace=ns", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=5s", "--log-flush-frequency=5s", "--log-json-info-buffer-size=0",
		"--log-json-split-stream=false", "--log-text-info-buffer-size=0", "--log-text-split-stream=false", "--logging-format=json",
		"--master=https://h", "--metrics-path=/m", "--modify-timeout=30s", "--resize-timeout=40s", "--resync-period=5m",
		"--retry-interval-max=1m", "--retry-interval-start=2s", "--v=5", "--vmodule=a=1", "--workers=20",
	)
	if o.Workers != 20 || o.resizeTimeout() != 40*time.Second || o.modifyTimeout() != 30*time.Second || o.WaitUntilUnused || !o.ExtraModifyMetadata {
		t.Errorf("values did not arrive: %+v", o)
	}
	if o.Features.Enabled(GateAttributesClass) || o.Features.Enabled(GateAnnotate) {
		t.Error("the gates were not turned off")
	}
	if o := commandtest.Accepts(t, NewOptions, "--timeout=20s", "--resize-timeout=40s"); o.resizeTimeout() != 20*time.Second || o.modifyTimeout() != 20*time.Second {
		t.Error("--timeout does not override the timeouts of single calls")
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"resync-period": "10m0s", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "workers": "10",
		"resize-timeout": "10s", "modify-timeout": "10s", "handle-volume-inuse-error": "true", "extra-modify-metadata": "false",
		"leader-election":                "false",
		"leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
		"leader-election-namespace": "", "leader-election-labels": "", "kubeconfig": "", "master": "",
		"csi-address": "/run/csi/socket", "feature-gates": "", "automaxprocs": "", "version": "false",
		"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics", "enable-pprof": "false",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
		// 10s here and in upstream's: the two flags above hold unless this one is given.
		"timeout": "0s",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10",
		// Only here.
		"kube-api-timeout": "30s", "secret-namespaces": "", "exit-on-connection-loss": "false",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   []string{"--workers=0", "--resync-period=-1s", "--kube-api-timeout=0", "--timeout=-1s", "--resize-timeout=0", "--modify-timeout=0", "--csi-address="},
			Errors: []string{"--workers=0: must be at least 1", "--resync-period=-1s", "--kube-api-timeout=0", "--timeout=-1s", "--resize-timeout=0", "--modify-timeout=0", "--csi-address"},
		},
		"OneWorker": {Reason: "the fewest", Args: []string{"--workers=1"}},
		"Never":     {Reason: "0 turns the resync off", Args: []string{"--resync-period=0"}},
		"Retry":     {Reason: "pauses grow", Args: []string{"--retry-interval-start=2s", "--retry-interval-max=1s"}, Errors: []string{"--retry-interval-max=1s"}},
		"Addresses": {
			Reason: "as upstream, one address only", Args: []string{"--http-endpoint=:1", "--metrics-address=:2"},
			Errors: []string{"--metrics-address"}, Warnings: []string{"--metrics-address"},
		},
		"Deprecated": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--automaxprocs", "--metrics-address=:1", "--feature-gates=ReleaseLeaderElectionOnExit=true,RecoverVolumeExpansionFailure=false"},
			Warnings: []string{"--metrics-address", "RecoverVolumeExpansionFailure is generally", "--automaxprocs", "ReleaseLeaderElectionOnExit", "RecoverVolumeExpansionFailure=false has no effect"},
		},
		"UnknownFlag": {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
		"UnknownGate": {Reason: "nor would a misspelt gate", Args: []string{"--feature-gates=NoSuchGate=true"}, Usage: []string{"NoSuchGate", "-feature-gates"}},
	})
}
