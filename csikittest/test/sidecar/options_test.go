package sidecar_test

import (
	"flag"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/component"
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
		"termination-grace-period": "30s",
	})
	if o := newOptions(); !o.Features.Enabled("Own") || o.Features.Enabled(component.GateReleaseLeader) {
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
		"GracePeriod": {
			Reason: "operations in progress need some time", Args: []string{"--termination-grace-period=9s"},
			Errors: []string{"--termination-grace-period=9s: must be at least 10s"}, Warnings: []string{"--timeout=15s"},
		},
		"Driver": {Reason: "the flags of the driver are the component's", Args: []string{"--timeout=1s"}, Usage: []string{"-timeout"}},
	})
}

// withCSI are options with the flags of a driver, whose calls are longer than a pod usually lives.
type withCSI struct{ sidecar.Options }

func (o *withCSI) AddFlags(fs *flag.FlagSet) { flagset.AddFlags(fs, &o.CSI, &o.Options) }

// TestLongCalls warns of calls that the end of the pod cuts off, if the user has chosen these times.
func TestLongCalls(t *testing.T) {
	long := func() withCSI {
		o := withCSI{newOptions()}
		o.CSI.Timeout = time.Minute
		return o
	}
	const warning = "--timeout=1m30s: at shutdown, calls to the driver are cancelled after 25s; to let them end, set terminationGracePeriodSeconds of the pod to 95 and --termination-grace-period=1m35s"
	commandtest.Validate(t, long, map[string]commandtest.Case{
		"Default": {Reason: "a default of the component is no mistake of the user"},
		"Longer":  {Reason: "the text says what to set", Args: []string{"--timeout=90s"}, Warnings: []string{warning}},
		"Enough":  {Reason: "calls may end", Args: []string{"--timeout=90s", "--termination-grace-period=95s"}},
	})
	if o := commandtest.Accepts(t, long, "--termination-grace-period=2m"); o.Drain() != 115*time.Second {
		t.Errorf("operations in progress get %v of 2m", o.Drain())
	}
}
