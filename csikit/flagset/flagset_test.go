package flagset_test

import (
	"flag"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// parse registers groups and parses args.
func parse(args []string, groups ...flagset.Group) error {
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	flagset.AddFlags(fs, groups...)
	return fs.Parse(args)
}

// check compares an error with the parts that it must have.
func check(t *testing.T, reason string, err error, want []string) {
	t.Helper()
	if len(want) == 0 && err != nil {
		t.Errorf("%s: unexpected error: %v", reason, err)
	}
	for _, part := range want {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: want an error with %q, got: %v", reason, part, err)
		}
	}
}

func TestDefaultsAreThoseOfUpstream(t *testing.T) {
	t.Parallel()
	csi, kube, election, http, retry := flagset.NewCSI(), flagset.NewKube(), flagset.NewLeaderElection(), flagset.NewHTTP(), flagset.NewRetry()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	flagset.AddFlags(fs, &csi, &kube, &election, &http, &retry)
	got := map[string]string{}
	fs.VisitAll(func(f *flag.Flag) {
		got[f.Name] = f.DefValue
		if f.Usage == "" {
			t.Errorf("--%s has no help", f.Name)
		}
	})
	want := map[string]string{
		"csi-address": "/run/csi/socket", "timeout": "15s",
		"kubeconfig": "", "master": "", "kube-api-qps": "0", "kube-api-burst": "10",
		"leader-election": "false", "leader-election-namespace": "", "leader-election-lease-duration": "15s",
		"leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s", "leader-election-labels": "",
		"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics", "enable-pprof": "false",
		"retry-interval-start": "1s", "retry-interval-max": "5m0s",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags (-want +got):\n%s", d)
	}
	if err := flagset.Validate(&csi, &kube, &election, &http, &retry); err != nil {
		t.Errorf("defaults are valid, got %v", err)
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	csi, kube, election, http, retry := flagset.NewCSI(), flagset.NewKube(), flagset.NewLeaderElection(), flagset.NewHTTP(), flagset.NewRetry()
	err := parse([]string{
		"--csi-address=run/socket", "-timeout=0s", "--kube-api-qps=5", "--kube-api-burst=0", "--leader-election", "--leader-election-retry-period=9s",
		"--leader-election-lease-duration=10s", "--http-endpoint=8080", "--metrics-address=:x", "--metrics-path=metrics",
		"--retry-interval-start=-1s", "--retry-interval-max=-2s",
	}, &csi, &kube, &election, &http, &retry)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "all flags are named with value and rule", flagset.Validate(&csi, &kube, &election, &http, &retry), []string{
		`--csi-address="run/socket": must be an absolute path`, "--timeout=0s: must be greater than 0",
		"--kube-api-burst=0: must be at least 1", "--leader-election-renew-deadline=10s: must be greater than 1.2 times --leader-election-retry-period (9s)",
		"--leader-election-lease-duration=10s: must be greater than --leader-election-renew-deadline (10s)",
		`--http-endpoint="8080": must be host:port`, `--metrics-address=":x": must be host:port`,
		`--metrics-address=":x": must not be set together with --http-endpoint`, `--metrics-path="metrics": must begin with /`,
		"--retry-interval-start=-1s: must be greater than 0", "--retry-interval-max=-2s: must not be smaller",
	})
}

func TestCSI(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason, address string
		want            []string
	}{
		"Path":     {reason: "A path is the usual form.", address: "/run/csi/socket"},
		"UnixURL":  {reason: "So is a URL.", address: "unix:///run/csi/socket"},
		"TCP":      {reason: "Tests may use TCP.", address: "tcp://127.0.0.1:1"},
		"Empty":    {reason: "There must be one.", address: "", want: []string{"must not be empty"}},
		"Relative": {reason: "A relative path depends on where we are.", address: "csi.sock", want: []string{"must be an absolute path"}},
		"UnixRel":  {reason: "Also in a URL.", address: "unix://csi.sock", want: []string{`"unix://csi.sock"`, "must be an absolute path"}},
		"Scheme":   {reason: "Other schemes mean nothing.", address: "http://x", want: []string{"must be a path, unix:///path or tcp://host:port"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := flagset.NewCSI()
			c.Address = tc.address
			check(t, tc.reason, c.Validate(), tc.want)
		})
	}
}

// A component's own default is what --help shows.
func TestFieldsAreTheDefaults(t *testing.T) {
	t.Parallel()
	c := flagset.NewCSI()
	c.Timeout = 10 * time.Second
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	c.AddFlags(fs)
	if got := fs.Lookup("timeout").DefValue; got != "10s" {
		t.Errorf("want 10s, got %s", got)
	}
	only := flag.NewFlagSet("test", flag.ContinueOnError)
	c.AddAddressFlag(only)
	if only.Lookup("timeout") != nil || only.Lookup("csi-address") == nil {
		t.Error("the address can be had without the timeout")
	}
}

func TestKube(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		kube   flagset.Kube
		want   []string
	}{
		"Off":       {reason: "No limit needs no burst.", kube: flagset.Kube{}},
		"Negative":  {reason: "A negative rate is no limit, as upstream.", kube: flagset.Kube{QPS: -1, Burst: 5}},
		"On":        {reason: "A rate with a burst.", kube: flagset.Kube{QPS: 5, Burst: 10}},
		"NaN":       {reason: "A rate is a number.", kube: flagset.Kube{QPS: math.NaN()}, want: []string{"--kube-api-qps=NaN", "finite"}},
		"Infinite":  {reason: "0 is the way to say no limit.", kube: flagset.Kube{QPS: math.Inf(1), Burst: 1}, want: []string{"finite"}},
		"Huge":      {reason: "It must fit the client.", kube: flagset.Kube{QPS: math.MaxFloat64, Burst: 1}, want: []string{"finite"}},
		"BadBurst":  {reason: "A burst is not negative.", kube: flagset.Kube{Burst: -1}, want: []string{"--kube-api-burst=-1: must not be negative"}},
		"ZeroBurst": {reason: "Nothing would pass.", kube: flagset.Kube{QPS: 1}, want: []string{"must be at least 1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, tc.reason, tc.kube.Validate(), tc.want)
		})
	}
}

func TestLeaderElectionLabels(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	cases := map[string]struct {
		reason, text string
		want         map[string]string
		parse, rule  []string
	}{
		"Empty":        {reason: "No labels.", text: "", want: map[string]string{}},
		"Two":          {reason: "Pairs are separated by commas, spaces do not matter.", text: "a:b, example.com/c : d,", want: map[string]string{"a": "b", "example.com/c": "d"}},
		"EmptyValue":   {reason: "A value may be empty.", text: "a:", want: map[string]string{"a": ""}},
		"NoPair":       {reason: "A pair has a colon.", text: "a=b", parse: []string{`"a=b" must be key:value`}},
		"Twice":        {reason: "A key has one value.", text: "a:b,a:c", parse: []string{`key "a" is given twice`}},
		"EmptyKey":     {reason: "A key has a name.", text: ":b", rule: []string{`--leader-election-labels=":b": the key must be`}},
		"LongKey":      {reason: "A name has a limit.", text: long + ":b", rule: []string{"the key must be 1 to 63"}},
		"BadPrefix":    {reason: "A prefix is a DNS name.", text: "A_b/c:d", rule: []string{"the prefix of the key"}},
		"LongPrefix":   {reason: "A prefix has a limit.", text: strings.Repeat("a", 254) + "/c:d", rule: []string{"the prefix of the key"}},
		"LongValue":    {reason: "A value has a limit.", text: "a:" + long, rule: []string{"the value must be at most 63"}},
		"BadValue":     {reason: "A value has an alphabet.", text: "a:b c", rule: []string{"the value must be"}},
		"TrailingDash": {reason: "It ends in a letter or digit.", text: "a:b-", rule: []string{"the value must be"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := flagset.NewLeaderElection()
			err := parse([]string{"--leader-election", "--leader-election-labels=" + tc.text}, &l)
			check(t, tc.reason, err, tc.parse)
			if err != nil {
				return
			}
			check(t, tc.reason, l.Validate(), tc.rule)
			if d := cmp.Diff(tc.want, l.Labels); tc.rule == nil && d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestLeaderElectionThatIsOffIsNotChecked(t *testing.T) {
	t.Parallel()
	l := flagset.LeaderElection{}
	if err := l.Validate(); err != nil {
		t.Errorf("upstream does not either, got %v", err)
	}
	l.Enabled = true
	check(t, "zero durations", l.Validate(), []string{"retry-period=0s", "must be at least 1s"})
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		args    []string
		address string
		want    []string
		warn    []string
	}{
		"Off":        {reason: "No listener."},
		"Endpoint":   {reason: "Any interface.", args: []string{"--http-endpoint=:8080"}, address: ":8080"},
		"IPv6":       {reason: "One interface.", args: []string{"--http-endpoint=[::1]:0", "--enable-pprof"}, address: "[::1]:0"},
		"Deprecated": {reason: "The old name works, with a warning.", args: []string{"--metrics-address=localhost:80"}, address: "localhost:80", warn: []string{"--metrics-address is deprecated, use --http-endpoint"}},
		"BigPort":    {reason: "Ports end at 65535.", args: []string{"--http-endpoint=:65536"}, address: ":65536", want: []string{"a port from 0 to 65535"}},
		"NamedPort":  {reason: "Ports are numbers.", args: []string{"--http-endpoint=:http"}, address: ":http", want: []string{"a port from 0 to 65535"}},
		"PprofAlone": {reason: "Profiles need a listener.", args: []string{"--enable-pprof"}, want: []string{"--enable-pprof=true: needs --http-endpoint"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := flagset.NewHTTP()
			if err := parse(tc.args, &h); err != nil {
				t.Fatal(err)
			}
			check(t, tc.reason, h.Validate(), tc.want)
			if h.Address() != tc.address {
				t.Errorf("%s: want address %q, got %q", tc.reason, tc.address, h.Address())
			}
			if d := cmp.Diff(tc.warn, flagset.Warnings(&h)); d != "" {
				t.Errorf("%s: warnings (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func gates() flagset.FeatureGates {
	return flagset.NewFeatureGates(map[string]flagset.Gate{
		"New": {Stage: flagset.Alpha}, "Mid": {Stage: flagset.Beta, Default: true},
		"Done": {Stage: flagset.GA, Default: true, Locked: true}, "Old": {Stage: flagset.Deprecated},
	})
}

func TestFeatureGates(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		args   []string
		want   map[string]bool
		err    []string
		warn   []string
	}{
		"Defaults": {reason: "Nothing is set.", want: map[string]bool{"New": false, "Mid": true, "Done": true, "Old": false}},
		"Several": {
			reason: "Several at once, and the last one wins.", args: []string{"--feature-gates=New=true, Mid=false,", "--feature-gates", "New=false,Old=1,Done=true"},
			want: map[string]bool{"New": false, "Mid": false, "Done": true, "Old": true},
			warn: []string{"--feature-gates: Done is generally available and will be removed", "--feature-gates: Old is deprecated and will be removed"},
		},
		"Retired": {
			reason: "Gates of upstream's manifests that switch nothing here are no reason not to start.",
			args:   []string{"--feature-gates=HonorPVReclaimPolicy=true,StorageVersionAPI=false"}, want: map[string]bool{"Mid": true},
			warn: []string{
				"--feature-gates: HonorPVReclaimPolicy has no effect: the feature is always on",
				"--feature-gates: StorageVersionAPI has no effect: it concerns API servers only",
			},
		},
		"RetiredNonsense": {
			reason: "A value must be one.", args: []string{"--feature-gates=HonorPVReclaimPolicy=maybe"}, err: []string{`HonorPVReclaimPolicy="maybe" must be true or false`},
		},
		"Stages": {
			reason: "All gates of a stage are set, but not those that are set by name, whatever the order.",
			args:   []string{"--feature-gates=AllAlpha=true,AllBeta=false,Mid=true"}, want: map[string]bool{"New": true, "Mid": true, "Done": true, "Old": false},
		},
		"StageOff": {
			reason: "A stage can be switched off.", args: []string{"--feature-gates=AllBeta=false,New=true"}, want: map[string]bool{"New": true, "Mid": false},
		},
		"Unknown": {
			reason: "An unknown gate is reported with the known ones, and all errors at once.", args: []string{"--feature-gates=Nwe=true,Mid,New=maybe,Done=false"},
			err: []string{`unknown feature gate "Nwe", known are: Done, Mid, New, Old`, `"Mid" must be name=true or name=false`, `New="maybe" must be true or false`, "Done is locked to true"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gates()
			err := parse(tc.args, &g)
			check(t, tc.reason, err, tc.err)
			if err != nil {
				return
			}
			got := map[string]bool{}
			for gate := range tc.want {
				got[gate] = g.Enabled(gate)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if d := cmp.Diff(tc.warn, g.Warnings()); d != "" {
				t.Errorf("%s: warnings (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestFeatureGatesKnowWhatWasSet(t *testing.T) {
	t.Parallel()
	g := gates()
	if err := g.Set("Mid=true"); err != nil {
		t.Fatal(err)
	}
	if !g.Explicit("Mid") || g.Explicit("New") {
		t.Error("Mid was set, to its default, and New was not")
	}
	var zero flagset.FeatureGates
	if err := zero.Set(" "); err != nil || zero.Explicit("x") {
		t.Errorf("nothing can be set to nothing, got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("asking for an undeclared gate is a mistake in the program")
		}
	}()
	g.Enabled("Undeclared")
}

func TestIgnoredFlags(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		args   []string
		err    []string
		warn   []string
	}{
		"NotGiven": {reason: "What is not given is not mentioned."},
		"Given": {
			reason: "What is given is accepted and mentioned, in the order of registration.",
			args:   []string{"-automaxprocs", "--connection-timeout=30s", "--threads", "5", "--provisioner=x"},
			warn: []string{
				"--automaxprocs has no effect: the process uses one processor, unless the environment variable GOMAXPROCS has another number",
				"--connection-timeout has no effect: why", "--threads has no effect: why", "--provisioner has no effect: why",
			},
		},
		"BadBool":     {reason: "Types are checked.", args: []string{"--automaxprocs=x"}, err: []string{"automaxprocs"}},
		"BadDuration": {reason: "Types are checked.", args: []string{"--connection-timeout=x"}, err: []string{"connection-timeout"}},
		"BadInt":      {reason: "Types are checked.", args: []string{"--threads=x"}, err: []string{"threads"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := flag.NewFlagSet("test", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			var i flagset.Ignored
			i.AutoMaxProcs(fs)
			i.Duration(fs, "connection-timeout", "why")
			i.Int(fs, "threads", "why")
			i.String(fs, "provisioner", "why")
			check(t, tc.reason, fs.Parse(tc.args), tc.err)
			if d := cmp.Diff(tc.warn, i.Warnings()); tc.err == nil && d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.Bool("on", false, "turn it on")
	fs.String("path", "a|b", "`path` of a | b\nthat is long")
	fs.Duration("after", time.Second, "pause")
	var l flagset.LeaderElection
	l.AddFlags(flag.NewFlagSet("unused", flag.ContinueOnError))
	want := "| Flag | Value | Default | Meaning |\n|---|---|---|---|\n" +
		"| `--after` | duration | `1s` | pause |\n" +
		"| `--on` | bool | `false` | turn it on |\n" +
		"| `--path` | path | `a\\|b` | path of a \\| b that is long |\n"
	if d := cmp.Diff(want, flagset.Markdown(fs)); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

// --help prints all groups without panicking on zero values of flag.Value.
func TestHelp(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(&out)
	l, g := flagset.NewLeaderElection(), gates()
	l.Labels = map[string]string{"b": "2", "a": "1"}
	var i flagset.Ignored
	i.String(fs, "old", "gone")
	flagset.AddFlags(fs, &l, &g)
	fs.PrintDefaults()
	for _, part := range []string{"ignored: gone", "(default a:1,b:2)", "Mid (BETA, default true)"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("want %q in\n%s", part, out.String())
		}
	}
}

func FuzzLabels(f *testing.F) {
	f.Add("a:b,c:d")
	f.Add("example.com/x:")
	f.Fuzz(func(t *testing.T, text string) {
		l := flagset.NewLeaderElection()
		if parse([]string{"--leader-election", "--leader-election-labels=" + text}, &l) != nil {
			return
		}
		if l.Validate() != nil {
			return
		}
		again := flagset.NewLeaderElection()
		fs := flag.NewFlagSet("test", flag.ContinueOnError)
		l.AddFlags(fs)
		if err := parse([]string{"--leader-election-labels=" + fs.Lookup("leader-election-labels").DefValue}, &again); err != nil {
			t.Fatalf("labels %q do not survive printing: %v", text, err)
		}
		if d := cmp.Diff(l.Labels, again.Labels); d != "" {
			t.Errorf("labels %q (-once +twice):\n%s", text, d)
		}
	})
}

func FuzzFeatureGates(f *testing.F) {
	f.Add("New=true,Mid=false")
	f.Fuzz(func(t *testing.T, text string) {
		g := gates()
		if err := g.Set(text); err != nil && (g.Explicit("New") || g.Explicit("Mid") || g.Explicit("Old")) {
			t.Errorf("%q: nothing is changed by an error (%v)", text, err)
		}
	})
}
