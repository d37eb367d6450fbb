package commandtest

import "testing"

func TestLinks(t *testing.T) {
	const own = "github.com/longshore-csi/longshore/csikit"
	cases := map[string]struct {
		reason  string
		pattern string
		rules   map[string]string
		want    []string
	}{
		"Good": {
			reason: "nothing of it is linked", pattern: own + "/csiserver",
			rules: map[string]string{"k8s.io/client-go": "no client", "testing": "flags", "k8s.io/klog/v": "a part of a name is no path"},
		},
		"Exact": {
			reason: "the package itself", pattern: own + "/csiserver",
			rules: map[string]string{own + "/redact": "secrets may be printed"}, want: []string{own + "/redact: secrets may be printed"},
		},
		"Below": {
			reason: "what is below a path, with exceptions", pattern: own + "/csiserver",
			rules: map[string]string{own: "none of ours", own + "/csiserver": Allowed, own + "/logging": Allowed},
			want:  []string{own + "/metrics, but not " + own, own + "/redact, but not " + own},
		},
		"Small":  {reason: "that is not the binary", pattern: own + "/version", want: []string{"not looking at a binary"}},
		"Absent": {reason: "there is no such package", pattern: "../absent", want: []string{"../absent"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := failuresOf(t, func(t testing.TB) { Links(t, tc.pattern, tc.rules) })
			wantFailures(t, tc.reason, got, tc.want...)
		})
	}
}

func TestDecide(t *testing.T) {
	rules := map[string]string{"a": "short", "a/b/c": Allowed, "a/b/c/d": "long"}
	for name, want := range map[string]struct{ path, reason string }{
		"a":         {"a", "short"},
		"a/b":       {"a", "short"},
		"a/bc":      {"a", "short"},
		"ab":        {},
		"b/a":       {},
		"a/b/c":     {"a/b/c", Allowed},
		"a/b/c/e":   {"a/b/c", Allowed},
		"a/b/c/d/e": {"a/b/c/d", "long"},
	} {
		if path, reason := decide(rules, name); path != want.path || reason != want.reason {
			t.Errorf("%s: %q says %q, want %q saying %q", name, path, reason, want.path, want.reason)
		}
	}
}
