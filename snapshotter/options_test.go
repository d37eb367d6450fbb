package snapshotter

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-snapshotter", NewOptions, "--worker-threads=-1")
}

// TestUpstreamFlags keeps a manifest that was written for the external-snapshotter's sidecar working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--automaxprocs=true", "--csi-address=/csi/csi.sock", "--extra-create-metadata=true",
		"--feature-gates=CSIVolumeGroupSnapshot=false,ReleaseLeaderElectionOnExit=true", "--http-endpoint=:8080",
		"--groupsnapshot-name-prefix=g", "--groupsnapshot-name-uuid-length=32",
		"--kube-api-burst=10", "--kube-api-qps=5", "--kubeconfig=/k", "--leader-election=true", "--leader-election-labels=a:b",
		"--leader-election-lease-duration=15s", "--leader-election-namespace=ns", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=5s", "--log-flush-frequency=5s", "--log-json-info-buffer-size=0",
		"--log-json-split-stream=false", "--log-text-info-buffer-size=0", "--log-text-split-stream=false", "--logging-format=json",
		"--metrics-path=/m", "--node-deployment=false", "--resync-period=5m", "--retry-interval-max=1m", "--retry-interval-start=2s",
		"--snapshot-name-prefix=s", "--snapshot-name-uuid-length=8", "--timeout=30s", "--v=5", "--vmodule=a=1", "--worker-threads=20",
	)
	if o.Workers != 20 || o.CSI.Timeout != 30*time.Second || !o.ExtraCreateMetadata || o.Features.Enabled(GateGroups) ||
		o.SnapshotNamePrefix != "s" || o.SnapshotNameUUIDLength != 8 || o.GroupSnapshotNamePrefix != "g" || o.GroupSnapshotNameUUIDLength != 32 {
		t.Errorf("values did not arrive: %+v", o)
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"timeout": "1m0s", "resync-period": "15m0s", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "worker-threads": "10",
		"snapshot-name-prefix": "snapshot", "snapshot-name-uuid-length": "-1",
		"groupsnapshot-name-prefix": "groupsnapshot", "groupsnapshot-name-uuid-length": "-1",
		"extra-create-metadata": "false", "node-deployment": "false",
		"leader-election":                "false",
		"leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
		"leader-election-namespace": "", "leader-election-labels": "", "kubeconfig": "",
		"csi-address": "/run/csi/socket", "feature-gates": "", "automaxprocs": "", "version": "false",
		"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics", "enable-pprof": "false",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10",
		// Only here.
		"master": "", "kube-api-timeout": "30s", "secret-namespaces": "", "orphan-report-interval": "0s", "exit-on-connection-loss": "false",
	})
	if o := NewOptions(); !o.Features.Enabled(GateGroups) {
		t.Error("the gate of group snapshots is off")
	}
}

func TestValidate(t *testing.T) {
	t.Setenv(EnvNodeName, "")
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args: []string{
				"--worker-threads=0", "--resync-period=-1s", "--kube-api-timeout=0", "--timeout=0", "--csi-address=",
				"--snapshot-name-prefix=", "--groupsnapshot-name-prefix=", "--node-deployment", "--leader-election", "--orphan-report-interval=-1s",
			},
			Errors: []string{
				"--worker-threads=0: must be at least 1", "--resync-period=-1s", "--kube-api-timeout=0", "--timeout=0s", "--csi-address",
				"--snapshot-name-prefix=", "--groupsnapshot-name-prefix=", EnvNodeName, "--leader-election", "--orphan-report-interval=-1s",
			},
		},
		"NoUUID":       {Reason: "S7: all snapshots would have one name", Args: []string{"--snapshot-name-uuid-length=0"}, Errors: []string{"--snapshot-name-uuid-length=0: must be -1 or from 8 to 32"}},
		"LongUUID":     {Reason: "S7: a UID has no more characters", Args: []string{"--groupsnapshot-name-uuid-length=33"}, Errors: []string{"--groupsnapshot-name-uuid-length=33"}},
		"ShortestUUID": {Reason: "the shortest that is unique enough", Args: []string{"--snapshot-name-uuid-length=8", "--groupsnapshot-name-uuid-length=32"}},
		"Never":        {Reason: "0 turns the resync off", Args: []string{"--resync-period=0"}},
		"Deprecated": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--automaxprocs", "--metrics-address=:1", "--feature-gates=ReleaseLeaderElectionOnExit=true"},
			Warnings: []string{"--metrics-address", "--automaxprocs", "ReleaseLeaderElectionOnExit"},
		},
		"UnknownFlag": {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
		"UnknownGate": {Reason: "nor would a misspelt gate", Args: []string{"--feature-gates=NoSuchGate=true"}, Usage: []string{"NoSuchGate", "-feature-gates"}},
	})
}
