package attacher

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) {
	o := NewOptions()
	fs := flag.NewFlagSet("csi-attacher", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	logs := logging.NewOptions()
	logs.AddFlags(fs)
	return o, fs.Parse(args)
}

// golden compares got with the file, or writes the file if the flag -rewrite is given.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if f := flag.Lookup("rewrite"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is out of date, run the tests with -rewrite (-file +now):\n%s", path, diff)
	}
}

func TestHelp(t *testing.T) {
	var help bytes.Buffer
	err := command.New("csi-attacher", NewOptions, Run).Execute(t.Context(), []string{"--help"}, io.Discard, &help)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("--help ended in %v", err)
	}
	golden(t, "testdata/help.golden", help.String())
}

func TestFlagsDoc(t *testing.T) {
	golden(t, "docs/flags.md", "# Flags of csi-attacher\n\n"+
		"Each flag is accepted with one dash and with two. This table is generated from the code by\n"+
		"`go test -run TestFlagsDoc . -rewrite`.\n\n"+
		flagset.Markdown(command.New("csi-attacher", NewOptions, Run).Flags()))
}

// TestUpstreamFlags keeps a manifest that was written for the external-attacher working.
func TestUpstreamFlags(t *testing.T) {
	upstream := map[string]string{
		"automaxprocs": "true", "csi-address": "/csi/csi.sock", "default-fstype": "xfs",
		"feature-gates": "MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true", "http-endpoint": ":8080",
		"kube-api-burst": "10", "kube-api-qps": "5", "kubeconfig": "/k", "leader-election": "true", "leader-election-labels": "a:b",
		"leader-election-lease-duration": "15s", "leader-election-namespace": "ns", "leader-election-renew-deadline": "10s",
		"leader-election-retry-period": "5s", "log-flush-frequency": "5s", "log-json-info-buffer-size": "0",
		"log-json-split-stream": "false", "log-text-info-buffer-size": "0", "log-text-split-stream": "false", "logging-format": "json",
		"max-entries": "100", "max-grpc-log-length": "200", "metrics-path": "/m", "reconcile-sync": "2m", "resync": "5m",
		"retry-interval-max": "1m", "retry-interval-start": "2s", "timeout": "20s", "v": "5", "vmodule": "a=1", "worker-threads": "20",
	}
	var args []string
	for name, value := range upstream {
		args = append(args, "--"+name+"="+value)
	}
	o, err := parse(args...)
	if err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	if err := o.Validate(); err != nil {
		t.Errorf("validate %q: %v", args, err)
	}
	if o.Workers != 20 || o.MaxEntries != 100 || o.CSI.Timeout != 20*time.Second || o.ReconcileSync != 2*time.Minute || o.DefaultFSType != "xfs" {
		t.Errorf("values did not arrive: %+v", o)
	}
	if o.Features.Enabled(GateErrorCode) {
		t.Error("the gate was not turned off")
	}
	if _, err := parse("--metrics-address=:8080"); err != nil {
		t.Errorf("deprecated flag: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Errorf("defaults are not valid: %v", err)
	}
	if got := o.Warnings(); len(got) != 0 {
		t.Errorf("defaults warn: %q", got)
	}
	upstream := map[string]bool{
		"resync 10m":          o.Resync == 10*time.Minute,
		"timeout 15s":         o.CSI.Timeout == 15*time.Second,
		"retry 1s":            o.Retry.Start == time.Second,
		"retry 5m":            o.Retry.Max == 5*time.Minute,
		"workers 10":          o.Workers == 10,
		"max entries 0":       o.MaxEntries == 0,
		"reconcile-sync 1m":   o.ReconcileSync == time.Minute,
		"grpc log length -1":  o.MaxGRPCLogLength == -1,
		"error code":          o.Features.Enabled(GateErrorCode),
		"no leader election":  !o.LeaderElection.Enabled,
		"no client throttler": o.Kube.QPS == 0,
	}
	for what, ok := range upstream {
		if !ok {
			t.Errorf("default is not %s", what)
		}
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		want   []string // what the error must name
	}{
		"Everything": {
			reason: "all that is wrong is reported at once, by flag and rule",
			args:   []string{"--worker-threads=0", "--max-entries=-1", "--resync=-1s", "--reconcile-sync=-1s", "--kube-api-timeout=0", "--node-retry-interval=0", "--timeout=0", "--csi-address="},
			want:   []string{"--worker-threads=0: must be at least 1", "--max-entries=-1", "--resync=-1s", "--reconcile-sync=-1s", "--kube-api-timeout=0", "--node-retry-interval=0", "--timeout=0", "--csi-address"},
		},
		"Page":      {reason: "the CSI field has 32 bits", args: []string{"--max-entries=2147483648"}, want: []string{"--max-entries=2147483648: must be from 0 to 2147483647"}},
		"Never":     {reason: "0 turns the loops off", args: []string{"--resync=0", "--reconcile-sync=0"}},
		"Addresses": {reason: "as upstream, one address only", args: []string{"--http-endpoint=:1", "--metrics-address=:2"}, want: []string{"--metrics-address"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			err = o.Validate()
			if (err != nil) != (len(tt.want) > 0) {
				t.Fatalf("%s: got %v", tt.reason, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %q does not name %q", tt.reason, err, part)
				}
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for name, args := range map[string][]string{
		"UnknownFlag": {"--no-such-flag"},
		"UnknownGate": {"--feature-gates=NoSuchGate=true"},
		"NoDuration":  {"--resync=ten"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(args...); err == nil {
				t.Errorf("%q was accepted", args)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	o, err := parse("--automaxprocs", "--metrics-address=:1", "--feature-gates=ReleaseLeaderElectionOnExit=true,MutableCSINodeAllocatableCount=true")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(o.Warnings(), "\n")
	for _, want := range []string{"--automaxprocs", "--metrics-address", "ReleaseLeaderElectionOnExit", "MutableCSINodeAllocatableCount"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning about %s in:\n%s", want, all)
		}
	}
}

func TestCommand(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		stdout string
		code   int
	}{
		"Version":   {reason: "the version is printed and nothing is run", args: []string{"--version"}, stdout: "csi-attacher "},
		"Help":      {reason: "help was asked for", args: []string{"-h"}},
		"WrongFlag": {reason: "a wrong command line has a code of its own", args: []string{"--no-such-flag"}, code: 2},
		"Argument":  {reason: "arguments are a mistake", args: []string{"run"}, code: 2},
		"Invalid":   {reason: "options that are not valid", args: []string{"--worker-threads=-1"}, code: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout bytes.Buffer
			err := command.New("csi-attacher", NewOptions, Run).Execute(t.Context(), tt.args, &stdout, io.Discard)
			if code := command.ExitCode(err); code != tt.code {
				t.Errorf("%s: %v, exit code %d, want %d", tt.reason, err, code, tt.code)
			}
			if !strings.HasPrefix(stdout.String(), tt.stdout) {
				t.Errorf("%s: printed %q, want %q", tt.reason, stdout.String(), tt.stdout)
			}
		})
	}
}
