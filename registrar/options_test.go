package registrar

import (
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-node-driver-registrar", NewOptions, "--timeout=0s")
}

// TestUpstreamFlags states the flags, with their defaults, that manifests of
// the replaced helper may have.
func TestUpstreamFlags(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"csi-address": "/run/csi/socket", "kubelet-registration-path": "", "plugin-registration-path": "/registration",
		"timeout": "1s", "http-endpoint": "", "enable-pprof": "false", "health-port": "0", "connection-timeout": "", "mode": "",
		"version": "false", "automaxprocs": "", "v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "all has a default, even the path that the replaced helper requires"},
		"Manifest": {
			Reason: "a usual manifest is accepted without a word",
			Args: []string{
				"--csi-address=/csi/csi.sock", "--kubelet-registration-path=/var/lib/kubelet/plugins/d/csi.sock", "--http-endpoint=:9809",
			},
		},
		"Deprecated": {
			Reason:   "deprecated flags work and are mentioned",
			Args:     []string{"-connection-timeout=15s", "--health-port=9809", "--mode=kubelet-registration-probe", "--automaxprocs"},
			Warnings: []string{"--health-port", "--mode", "--connection-timeout", "--automaxprocs"},
		},
		"UnknownMode": {
			Reason: "the replaced helper registers in any mode that it does not know; this one refused to start",
			Args:   []string{"--mode=registration-v2"}, Warnings: []string{`--mode="registration-v2" has no effect`},
		},
		"ProfilesWithoutListener": {
			Reason: "harmless, as it always was", Args: []string{"--enable-pprof"}, Warnings: []string{"--enable-pprof has no effect"},
		},
		"TwoAddresses": {
			Reason: "the old and the new name of one thing contradict each other",
			Args:   []string{"--health-port=1", "--http-endpoint=:2"}, Errors: []string{"--health-port=1: must not be set together with --http-endpoint"},
			Warnings: []string{"--health-port"},
		},
		"AllAtOnce": {
			Reason: "one look shows all that is to be mended",
			Args: []string{
				"--csi-address=csi.sock", "--timeout=0s", "--kubelet-registration-path=plugins/d", "--plugin-registration-path=",
				"--http-endpoint=9809", "--health-port=70000",
			},
			Errors: []string{
				"--csi-address", "--timeout=0s", `--kubelet-registration-path="plugins/d": must be an absolute path`,
				"--plugin-registration-path", "--http-endpoint", "--health-port=70000",
			},
			Warnings: []string{"--health-port"},
		},
		"NoDuration": {Reason: "a unit is needed", Args: []string{"--timeout=1"}, Usage: []string{`"1"`, "-timeout"}},
		"Unknown":    {Reason: "a misspelt flag would have no effect", Args: []string{"--time-out=1s"}, Usage: []string{"-time-out"}},
	})
}

func TestValidateFieldsWithoutFlags(t *testing.T) {
	o := NewOptions()
	o.Retry.Start, o.CheckInterval = -1, 0
	err := o.Validate()
	if err == nil || !strings.Contains(err.Error(), "check interval 0s") || !strings.Contains(err.Error(), "-1ns") {
		t.Errorf("got %v, want errors about both fields", err)
	}
}

func TestDerivedPaths(t *testing.T) {
	cases := map[string]struct {
		reason            string
		args              []string
		endpoint, address string
	}{
		"Defaults": {
			reason: "the driver's usual place on the host", endpoint: "/var/lib/kubelet/plugins/d.example/csi.sock",
		},
		"Given": {
			reason: "as given, without a scheme: kubelets dial the bare path",
			args:   []string{"--kubelet-registration-path=unix:///k/csi.sock", "--health-port=9809"}, endpoint: "/k/csi.sock", address: ":9809",
		},
		"Endpoint": {
			reason: "the address is passed on", args: []string{"--http-endpoint=127.0.0.1:1"},
			endpoint: "/var/lib/kubelet/plugins/d.example/csi.sock", address: "127.0.0.1:1",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := commandtest.Parse(NewOptions, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := o.endpoint("d.example"); got != tc.endpoint {
				t.Errorf("%s: endpoint %q, want %q", tc.reason, got, tc.endpoint)
			}
			if got := o.address(); got != tc.address {
				t.Errorf("%s: address %q, want %q", tc.reason, got, tc.address)
			}
			if got := o.socketPath("d.example"); got != "/registration/d.example-reg.sock" {
				t.Errorf("socket %q", got)
			}
		})
	}
}
