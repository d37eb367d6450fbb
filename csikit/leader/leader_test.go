package leader_test

import (
	"strings"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/leader"
)

func TestRunReportsEverything(t *testing.T) {
	t.Parallel()
	err := leader.Run(t.Context(), leader.Config{RetryPeriod: time.Hour, Labels: map[string]string{"": ""}}, nil)
	for _, part := range []string{"client and the leader's function", "name of the Lease", "--leader-election-renew-deadline=10s", "--leader-election-labels"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in %v", part, err)
		}
	}
}

func TestSanitizeName(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ reason, in, want string }{
		"Plain":    {reason: "Letters, digits and dashes stay.", in: "csi-1A", want: "csi-1A"},
		"Dots":     {reason: "Other characters become dashes.", in: "hostpath.csi.k8s.io/x_y", want: "hostpath-csi-k8s-io-x-y"},
		"Trailing": {reason: "A name does not end in a dash.", in: "a.", want: "a-X"},
		"Unicode":  {reason: "One dash per character.", in: "ä", want: "-X"},
		"Empty":    {reason: "Nothing stays nothing.", in: "", want: ""},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			if got := leader.SanitizeName(tc.in); got != tc.want {
				t.Errorf("%s: want %q, got %q", tc.reason, tc.want, got)
			}
		})
	}
}
