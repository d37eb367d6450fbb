package healthmonitor

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-external-health-monitor-controller", NewOptions, "--worker-threads=0")
}

// TestUpstreamFlags keeps a manifest that was written for the external-health-monitor 0.18 working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--automaxprocs=true", "--csi-address=/csi/csi.sock", "--enable-node-watcher=true", "--http-endpoint=:8080",
		"--kube-api-burst=10", "--kube-api-qps=5", "--kubeconfig=/k", "--leader-election=true", "--leader-election-labels=a:b",
		"--leader-election-lease-duration=15s", "--leader-election-namespace=ns", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=5s", "--list-volumes-interval=7m", "--log-flush-frequency=5s", "--log-json-info-buffer-size=0",
		"--log-json-split-stream=false", "--log-text-info-buffer-size=0", "--log-text-split-stream=false", "--logging-format=json",
		"--metrics-path=/m", "--monitor-interval=2m", "--node-list-add-interval=5m", "--resync=10m",
		"--timeout=20s", "--v=5", "--vmodule=a=1", "--volume-list-add-interval=5m", "--worker-threads=20",
	)
	if o.Workers != 20 || o.MonitorInterval != 2*time.Minute || o.ListInterval != 7*time.Minute || !o.WatchNodes || o.CSI.Timeout != 20*time.Second {
		t.Errorf("values did not arrive: %+v", o)
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"monitor-interval": "1m0s", "list-volumes-interval": "5m0s", "worker-threads": "10", "enable-node-watcher": "false", "timeout": "15s",
		"leader-election":                "false",
		"leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
		"leader-election-namespace": "", "leader-election-labels": "", "kubeconfig": "",
		"csi-address": "/run/csi/socket", "automaxprocs": "", "version": "false",
		"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
		// Without effect.
		"resync": "", "volume-list-add-interval": "", "node-list-add-interval": "",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0", "kube-api-burst": "10",
		// Only here.
		"max-calls-per-second": "10", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "feature-gates": "",
		"kube-api-timeout": "30s", "secret-namespaces": "", "exit-on-connection-loss": "false", "master": "", "enable-pprof": "false",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   []string{"--worker-threads=0", "--monitor-interval=0", "--list-volumes-interval=-1s", "--max-calls-per-second=0", "--timeout=-1s", "--csi-address="},
			Errors: []string{"--worker-threads=0: must be at least 1", "--monitor-interval=0", "--list-volumes-interval=-1s", "--max-calls-per-second=0", "--timeout=-1s", "--csi-address"},
		},
		"Slow": {Reason: "one call a minute", Args: []string{"--max-calls-per-second=0.0167"}},
		"Addresses": {
			Reason: "as upstream, one address only", Args: []string{"--http-endpoint=:1", "--metrics-address=:2"},
			Errors: []string{"--metrics-address"}, Warnings: []string{"--metrics-address"},
		},
		"WithoutEffect": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--resync=10m", "--volume-list-add-interval=5m", "--node-list-add-interval=5m"},
			Warnings: []string{"--volume-list-add-interval", "--node-list-add-interval", "--resync"},
		},
		"NoDuration":  {Reason: "a typing error stays an error", Args: []string{"--resync=10"}, Usage: []string{"-resync"}},
		"UnknownFlag": {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
	})
}
