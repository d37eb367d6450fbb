package flagset_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// everything is a component that has all groups.
type everything struct {
	csi      flagset.CSI
	kube     flagset.Kube
	election flagset.LeaderElection
	http     flagset.HTTP
	retry    flagset.Retry
	gates    flagset.FeatureGates
	secrets  flagset.Secrets
}

func newEverything() *everything {
	return &everything{
		csi: flagset.NewCSI(), kube: flagset.NewKube(), election: flagset.NewLeaderElection(),
		http: flagset.NewHTTP(), retry: flagset.NewRetry(),
		gates: flagset.NewFeatureGates(map[string]flagset.Gate{
			"Topology": {Default: true, Stage: flagset.GA}, "Slow": {Stage: flagset.Alpha}, "Fixed": {Default: true, Stage: flagset.GA, Locked: true},
		}),
	}
}

func (e *everything) groups() []flagset.Group {
	return []flagset.Group{&e.csi, &e.kube, &e.election, &e.http, &e.retry, &e.gates, &e.secrets}
}

// given parses a command line, and validates it if it can be parsed.
func given(args ...string) (*everything, error) {
	e := newEverything()
	if err := parse(args, e.groups()...); err != nil {
		return e, err
	}
	return e, flagset.Validate(e.groups()...)
}

func TestEveryWrongValueIsNamed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"AddressEmpty": {
			reason: "A helper must know where its driver is.", args: []string{"--csi-address="},
			want: []string{`--csi-address=""`, "must not be empty"},
		},
		"SecretNamespaces": {
			reason: "Names of namespaces are DNS labels.", args: []string{"--secret-namespaces=ok, UPPER,," + strings.Repeat("x", 64)},
			want: []string{`--secret-namespaces="UPPER"`, `--secret-namespaces="xxx`, "1 to 63 lower-case letters"},
		},
		"AddressRelative": {
			reason: "A working directory is an accident.", args: []string{"--csi-address=csi.sock"},
			want: []string{`--csi-address="csi.sock"`, "absolute"},
		},
		"AddressRelativeURL": {
			reason: "The path in a URL is no better when relative.", args: []string{"--csi-address=unix://csi.sock"},
			want: []string{`--csi-address="unix://csi.sock"`, "absolute"},
		},
		"AddressScheme": {
			reason: "No other scheme can be dialled.", args: []string{"--csi-address=http://localhost"},
			want: []string{`--csi-address="http://localhost"`, "unix:///path"},
		},
		"TimeoutZero": {
			reason: "No deadline is not an option.", args: []string{"--timeout=0"},
			want: []string{"--timeout=0s", "greater than 0"},
		},
		"TimeoutNegative": {
			reason: "Time runs forward.", args: []string{"--timeout=-1s"}, want: []string{"--timeout=-1s"},
		},
		"TimeoutUnit": {
			reason: "A number without a unit is ambiguous.", args: []string{"--timeout=10"}, want: []string{"timeout", `"10"`},
		},
		"QPSText": {
			reason: "A rate is a number.", args: []string{"--kube-api-qps=fast"}, want: []string{"kube-api-qps", `"fast"`},
		},
		"QPSNotANumber": {
			reason: "NaN is not one.", args: []string{"--kube-api-qps=NaN"}, want: []string{"--kube-api-qps=NaN", "finite"},
		},
		"QPSInfinite": {
			reason: "No limit is 0.", args: []string{"--kube-api-qps=+Inf"}, want: []string{"--kube-api-qps=+Inf", "finite"},
		},
		"QPSHuge": {
			reason: "The client keeps it in 32 bits.", args: []string{"--kube-api-qps=1e39"}, want: []string{"--kube-api-qps=1e+39", "finite"},
		},
		"BurstNegative": {
			reason: "A burst is a count.", args: []string{"--kube-api-burst=-1"}, want: []string{"--kube-api-burst=-1", "negative"},
		},
		"BurstZero": {
			reason: "A limiter without burst lets nothing pass.", args: []string{"--kube-api-qps=5", "--kube-api-burst=0"},
			want: []string{"--kube-api-burst=0", "at least 1"},
		},
		"BurstFraction": {
			reason: "Half a request is none.", args: []string{"--kube-api-burst=1.5"}, want: []string{"kube-api-burst", `"1.5"`},
		},
		"ElectionNotABool": {
			reason: "On or off.", args: []string{"--leader-election=maybe"}, want: []string{"leader-election", `"maybe"`},
		},
		"RetryPeriodZero": {
			reason: "An election without pauses is a flood.", args: []string{"--leader-election", "--leader-election-retry-period=0s"},
			want: []string{"--leader-election-retry-period=0s", "greater than 0"},
		},
		"RenewDeadlineShort": {
			reason: "At least one retry must fit.", args: []string{"--leader-election", "--leader-election-renew-deadline=6s"},
			want: []string{"--leader-election-renew-deadline=6s", "1.2 times", "5s"},
		},
		"LeaseShort": {
			reason: "Otherwise there are two leaders.", args: []string{"--leader-election", "--leader-election-lease-duration=10s"},
			want: []string{"--leader-election-lease-duration=10s", "greater than --leader-election-renew-deadline (10s)"},
		},
		"LeaseFraction": {
			reason: "The Lease counts whole seconds.",
			args: []string{
				"--leader-election", "--leader-election-lease-duration=900ms",
				"--leader-election-renew-deadline=500ms", "--leader-election-retry-period=100ms",
			},
			want: []string{"--leader-election-lease-duration=900ms", "at least 1s"},
		},
		"LabelWithoutValue": {
			reason: "A label is a pair.", args: []string{"--leader-election-labels=app"}, want: []string{`"app"`, "key:value"},
		},
		"LabelTwice": {
			reason: "Which one?", args: []string{"--leader-election-labels=a:1,a:2"}, want: []string{`key "a" is given twice`},
		},
		"LabelKey": {
			reason: "The API would refuse the Lease.", args: []string{"--leader-election", "--leader-election-labels=-a:b"},
			want: []string{`--leader-election-labels="-a:b"`, "the key must be"},
		},
		"LabelValue": {
			reason: "The API would refuse the Lease.", args: []string{"--leader-election", "--leader-election-labels=a:b!"},
			want: []string{`"a:b!"`, "the value must be"},
		},
		"LabelPrefix": {
			reason: "The API would refuse the Lease.", args: []string{"--leader-election", "--leader-election-labels=Example.com/a:b"},
			want: []string{"the prefix of the key must be a DNS subdomain"},
		},
		"LabelLong": {
			reason: "63 characters are the most.", args: []string{"--leader-election", "--leader-election-labels=a:" + strings.Repeat("x", 64)},
			want: []string{"at most 63"},
		},
		"EndpointWithoutPort": {
			reason: "A listener needs a port.", args: []string{"--http-endpoint=localhost"}, want: []string{`--http-endpoint="localhost"`, "host:port"},
		},
		"EndpointPortName": {
			reason: "Names of ports differ from system to system.", args: []string{"--http-endpoint=:http"}, want: []string{`--http-endpoint=":http"`},
		},
		"EndpointPortLarge": {
			reason: "Ports have 16 bits.", args: []string{"--http-endpoint=:65536"}, want: []string{`--http-endpoint=":65536"`, "65535"},
		},
		"EndpointBareIPv6": {
			reason: "An IPv6 address needs brackets.", args: []string{"--http-endpoint=::1:80"}, want: []string{`--http-endpoint="::1:80"`},
		},
		"MetricsAddress": {
			reason: "The former flag is checked as well.", args: []string{"--metrics-address=8080"}, want: []string{`--metrics-address="8080"`},
		},
		"BothAddresses": {
			reason: "Which one?", args: []string{"--http-endpoint=:1", "--metrics-address=:2"},
			want: []string{`--metrics-address=":2"`, "together with --http-endpoint"},
		},
		"MetricsPath": {
			reason: "Paths of URLs begin with a slash.", args: []string{"--metrics-path=metrics"}, want: []string{`--metrics-path="metrics"`, "begin with /"},
		},
		"PprofAlone": {
			reason: "Profiles would be served nowhere.", args: []string{"--enable-pprof"}, want: []string{"--enable-pprof=true", "needs --http-endpoint"},
		},
		"RetryStartZero": {
			reason: "Without a pause a failure is a flood.", args: []string{"--retry-interval-start=0s"},
			want: []string{"--retry-interval-start=0s", "greater than 0"},
		},
		"RetryMaxSmall": {
			reason: "The longest pause is not shorter than the first.", args: []string{"--retry-interval-start=10s", "--retry-interval-max=9s"},
			want: []string{"--retry-interval-max=9s", "(10s)"},
		},
		"GateUnknown": {
			reason: "An unknown gate is reported with the known ones.", args: []string{"--feature-gates=Topologie=true"},
			want: []string{`"Topologie"`, "Fixed, Slow, Topology"},
		},
		"GateWithoutValue": {
			reason: "On or off?", args: []string{"--feature-gates=Slow"}, want: []string{`"Slow" must be name=true or name=false`},
		},
		"GateNotABool": {
			reason: "On or off.", args: []string{"--feature-gates=Slow=perhaps"}, want: []string{`Slow="perhaps" must be true or false`},
		},
		"GateLocked": {
			reason: "What cannot be switched off any more is not ignored.", args: []string{"--feature-gates=Fixed=false"},
			want: []string{"Fixed is locked to true"},
		},
		"UnknownFlag": {
			reason: "A typing error in a name is an error.", args: []string{"--csi-socket=/a"}, want: []string{"csi-socket"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := given(tc.args...)
			check(t, tc.reason, err, tc.want)
		})
	}
}

func TestEveryRightValueIsTaken(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 63)
	cases := map[string]struct {
		reason string
		args   []string
		read   func(*everything) any
		want   any
	}{
		"Path":        {reason: "A path is an address.", args: []string{"--csi-address=/a/b"}, read: func(e *everything) any { return e.csi.Address }, want: "/a/b"},
		"URL":         {reason: "So is a URL.", args: []string{"-csi-address", "unix:///a"}, read: func(e *everything) any { return e.csi.Address }, want: "unix:///a"},
		"TCP":         {reason: "TCP serves tests.", args: []string{"--csi-address=tcp://127.0.0.1:9"}, read: func(e *everything) any { return e.csi.Address }, want: "tcp://127.0.0.1:9"},
		"Timeout":     {reason: "Units may be mixed.", args: []string{"--timeout=1m30s"}, read: func(e *everything) any { return e.csi.Timeout }, want: 90 * time.Second},
		"QPSNegative": {reason: "Upstream's manner to switch throttling off.", args: []string{"--kube-api-qps=-1"}, read: func(e *everything) any { return e.kube.QPS }, want: -1.0},
		"QPSFraction": {reason: "A request in two seconds.", args: []string{"--kube-api-qps=0.5"}, read: func(e *everything) any { return e.kube.QPS }, want: 0.5},
		"BurstUnused": {reason: "A burst without a rate is never looked at.", args: []string{"--kube-api-burst=0"}, read: func(e *everything) any { return e.kube.Burst }, want: 0},
		"Kubeconfig":  {reason: "Whether the file is there is not a matter of flags.", args: []string{"--kubeconfig=/none", "--master=https://m"}, read: func(e *everything) any { return e.kube.Kubeconfig + " " + e.kube.Master }, want: "/none https://m"},
		"ElectionOn":  {reason: "A flag alone is true.", args: []string{"--leader-election"}, read: func(e *everything) any { return e.election.Enabled }, want: true},
		"Labels": {
			reason: "Spaces are trimmed, empty pairs and values allowed, prefixes too.",
			args:   []string{"--leader-election", "--leader-election-labels= a : b ,,example.com/c:,d:" + long},
			read:   func(e *everything) any { return e.election.Labels },
			want:   map[string]string{"a": "b", "example.com/c": "", "d": long},
		},
		"LabelsLast": {
			reason: "The last flag replaces those before.", args: []string{"--leader-election-labels=a:1", "--leader-election-labels=b:2"},
			read: func(e *everything) any { return e.election.Labels }, want: map[string]string{"b": "2"},
		},
		"LabelsEmpty": {
			reason: "No labels are labels, too.", args: []string{"--leader-election-labels=a:1", "--leader-election-labels="},
			read: func(e *everything) any { return e.election.Labels }, want: map[string]string{},
		},
		"ElectionOffUnchecked": {
			reason: "What is off cannot be wrong.", args: []string{"--leader-election-lease-duration=1ns"},
			read: func(e *everything) any { return e.election.LeaseDuration }, want: time.Nanosecond,
		},
		"Endpoint":     {reason: "All addresses.", args: []string{"--http-endpoint=:0"}, read: func(e *everything) any { return e.http.Address() }, want: ":0"},
		"EndpointIPv6": {reason: "One address of IPv6.", args: []string{"--http-endpoint=[::1]:65535"}, read: func(e *everything) any { return e.http.Address() }, want: "[::1]:65535"},
		"Metrics":      {reason: "The former flag does the same.", args: []string{"--metrics-address=h:1", "--enable-pprof"}, read: func(e *everything) any { return e.http.Address() }, want: "h:1"},
		"Path2":        {reason: "Any path will do.", args: []string{"--metrics-path=/a/b"}, read: func(e *everything) any { return e.http.MetricsPath }, want: "/a/b"},
		"RetryEqual":   {reason: "A constant pause.", args: []string{"--retry-interval-start=2s", "--retry-interval-max=2s"}, read: func(e *everything) any { return e.retry }, want: flagset.Retry{Start: 2 * time.Second, Max: 2 * time.Second}},
		"Gates": {
			reason: "The last value of a name wins, others stay.", args: []string{"--feature-gates=Slow=true,Topology=false", "--feature-gates=Topology=1"},
			read: func(e *everything) any {
				return map[string]bool{"Slow": e.gates.Enabled("Slow"), "Topology": e.gates.Enabled("Topology"), "Fixed": e.gates.Enabled("Fixed")}
			},
			want: map[string]bool{"Slow": true, "Topology": true, "Fixed": true},
		},
		"GateLockedSame": {reason: "A manifest that repeats the default goes on working.", args: []string{"--feature-gates=Fixed=true"}, read: func(e *everything) any { return e.gates.Enabled("Fixed") }, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := given(tc.args...)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, tc.read(e)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// A gate that is set to a wrong value together with a right one changes nothing.
func TestFeatureGatesAreSetTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	e := newEverything()
	err := e.gates.Set("Slow=true,Other=true,Fixed=false")
	check(t, "all errors are reported at once", err, []string{`"Other"`, "Fixed is locked"})
	if e.gates.Enabled("Slow") || e.gates.Explicit("Slow") {
		t.Error("the right part of a wrong value has taken effect")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"None":       {reason: "Defaults warn of nothing."},
		"Endpoint":   {reason: "The present flag is no reason.", args: []string{"--http-endpoint=:1"}},
		"Metrics":    {reason: "The former one is.", args: []string{"--metrics-address=:1"}, want: []string{"--metrics-address is deprecated, use --http-endpoint"}},
		"AlphaGate":  {reason: "An alpha gate is there to be switched.", args: []string{"--feature-gates=Slow=true"}},
		"StableGate": {reason: "A stable one will go.", args: []string{"--feature-gates=Topology=true"}, want: []string{"--feature-gates: Topology is generally available and will be removed"}},
		"All": {
			reason: "All of them are reported, in the order of the groups.", args: []string{"--metrics-address=:1", "--feature-gates=Topology=false,Fixed=true"},
			want: []string{
				"--metrics-address is deprecated, use --http-endpoint",
				"--feature-gates: Fixed is generally available and will be removed",
				"--feature-gates: Topology is generally available and will be removed",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := given(tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, flagset.Warnings(&e.http, &e.gates)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSecretNamespaces(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"Default": {reason: "no limit"},
		"Several": {reason: "names are separated by commas", args: []string{"--secret-namespaces=a, b,"}, want: []string{"a", "b"}},
		"Again":   {reason: "the last flag counts", args: []string{"--secret-namespaces=a", "--secret-namespaces="}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := given(tc.args...)
			if diff := cmp.Diff(tc.want, e.secrets.Namespaces); diff != "" || err != nil {
				t.Errorf("%s: error %v, namespaces (-want +got):\n%s", tc.reason, err, diff)
			}
		})
	}
}
