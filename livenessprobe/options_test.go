package livenessprobe

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "livenessprobe", NewOptions, "--probe-timeout=0s")
}

// TestUpstreamFlags states the flags, with their defaults, that manifests of
// the replaced helper may have.
func TestUpstreamFlags(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"csi-address": "/run/csi/socket", "probe-timeout": "3s", "health-port": "9808", "http-endpoint": "", "metrics-address": "",
		"metrics-path": "/metrics", "automaxprocs": "", "v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-text-split-stream": "false", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
	})
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "all has a default"},
		"Manifest": {
			Reason: "a usual manifest is accepted without a word",
			Args:   []string{"--csi-address=/csi/csi.sock", "--http-endpoint=:9808"},
		},
		"SamePort": {
			Reason: "the default port, said aloud, contradicts nothing",
			Args:   []string{"--health-port=9808", "--http-endpoint=[::1]:1"},
		},
		"Deprecated": {
			Reason:   "deprecated flags work and are mentioned",
			Args:     []string{"-health-port=1", "--metrics-address=:2", "--automaxprocs"},
			Warnings: []string{"--health-port", "--metrics-address", "--automaxprocs"},
		},
		"AllAtOnce": {
			Reason: "one look shows all that is to be mended",
			Args: []string{
				"--csi-address=", "--probe-timeout=0s", "--health-port=x", "--http-endpoint=:1", "--metrics-address=:2", "--metrics-path=m",
				"--result-max-age=-1s", "--startup-grace=-1s",
			},
			Errors: []string{
				"--csi-address", "--probe-timeout=0s", `--health-port="x": must be a port`, `--health-port="x": must not be set together`,
				"--metrics-address", "--metrics-path", "--result-max-age=-1s", "--startup-grace=-1s",
			},
			Warnings: []string{"--health-port", "--metrics-address"},
		},
		"TooSlow": {
			Reason: "an answer must come before the HTTP server hangs up", Args: []string{"--probe-timeout=2m"},
			Errors: []string{"--probe-timeout=2m0s: must be greater than 0 and at most 50s"},
		},
		"NoDuration": {Reason: "a unit is needed", Args: []string{"--probe-timeout=3"}, Usage: []string{`"3"`, "-probe-timeout"}},
		"Unknown":    {Reason: "a misspelt flag would have no effect", Args: []string{"--probe-timout=3s"}, Usage: []string{"-probe-timout"}},
	})
}

func TestAddress(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		want   string
	}{
		"Defaults": {reason: "both IP families are served", want: ":9808"},
		"Endpoint": {reason: "as given", args: []string{"--csi-address=/csi/csi.sock", "--http-endpoint=:9808"}, want: ":9808"},
		"SamePort": {reason: "the endpoint counts", args: []string{"--health-port=9808", "--http-endpoint=[::1]:1"}, want: "[::1]:1"},
		"Port":     {reason: "the old name of the address", args: []string{"-health-port=1", "--metrics-address=:2", "--automaxprocs"}, want: ":1"},
		"Both":     {reason: "also where Validate refuses both", args: []string{"--health-port=x", "--http-endpoint=:1"}, want: ":1"},
		"TooSlow":  {reason: "other flags make no difference", args: []string{"--probe-timeout=2m"}, want: ":9808"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := commandtest.Parse(NewOptions, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := o.address(); got != tc.want {
				t.Errorf("%s: address %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
