package sidecar_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

func newOptions() sidecar.Options {
	return sidecar.NewOptions(map[string]flagset.Gate{"Own": {Default: true, Stage: flagset.Beta}})
}

func parse(t *testing.T, args ...string) sidecar.Options {
	t.Helper()
	return commandtest.Accepts(t, newOptions, args...)
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, newOptions, map[string]string{
		"kube-api-timeout": "30s", "exit-on-connection-loss": "false", "automaxprocs": "", "http-endpoint": "", "leader-election": "false",
		"kubeconfig": "", "retry-interval-max": "5m0s", "secret-namespaces": "", "feature-gates": "",
	})
	if o := newOptions(); !o.Features.Enabled("Own") || o.Features.Enabled(sidecar.GateReleaseLeader) {
		t.Error("gates do not have their defaults")
	}
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, newOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   []string{"--kube-api-timeout=0", "--secret-namespaces=A"},
			Errors: []string{"--kube-api-timeout=0s: must be greater than 0", `--secret-namespaces="A"`},
		},
		"Deprecated": {
			Reason:   "what has no effect is mentioned",
			Args:     []string{"--automaxprocs", "--metrics-address=:1", "--feature-gates=ReleaseLeaderElectionOnExit=true"},
			Warnings: []string{"--metrics-address", "--automaxprocs", "ReleaseLeaderElectionOnExit has no effect"},
		},
		"Driver": {Reason: "the flags of the driver are the component's", Args: []string{"--timeout=1s"}, Usage: []string{"-timeout"}},
	})
}
