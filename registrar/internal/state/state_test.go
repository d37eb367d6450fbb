package state

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMachine(t *testing.T) {
	cases := map[string]struct {
		reason  string
		now     Snapshot
		text    string
		healthy bool
		ready   bool
	}{
		"WaitingForDriver":  {reason: "without a driver there is no socket", now: Snapshot{Phase: WaitingForDriver}, text: "waiting for driver"},
		"WaitingForKubelet": {reason: "all is done that can be done", now: Snapshot{Phase: WaitingForKubelet}, text: "waiting for kubelet", healthy: true},
		"Registered":        {reason: "the aim", now: Snapshot{Phase: Registered}, text: "registered", healthy: true, ready: true},
		"Rejected":          {reason: "the text has the reason", now: Snapshot{Phase: Rejected, Reason: "node is gone"}, text: "rejected: node is gone"},
		"Failed":            {reason: "the text has the reason", now: Snapshot{Phase: Failed, Reason: "no directory"}, text: "failed: no directory"},
		"Replaced":          {reason: "another one does it", now: Snapshot{Phase: Replaced, Reason: "by x"}, text: "replaced: by x"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m := New(reg)
			m.Set(tc.now)
			if m.Set(tc.now) {
				t.Errorf("%s: the same state was taken for a change", tc.reason)
			}
			if m.Get() != tc.now || tc.now.String() != tc.text {
				t.Errorf("%s: state %+v %q", tc.reason, m.Get(), tc.now)
			}
			verify(t, "health", m.Health(), tc.healthy, tc.text)
			verify(t, "readiness", m.Ready(), tc.ready, tc.text)
			for _, p := range phases() {
				want := 0.0
				if p == tc.now.Phase {
					want = 1
				}
				if got := testutil.ToFloat64(m.status.WithLabelValues(string(p))); got != want {
					t.Errorf("%s: csi_registration_status{state=%q} is %v, want %v", tc.reason, p, got, want)
				}
			}
		})
	}
}

func verify(t *testing.T, what string, err error, ok bool, text string) {
	t.Helper()
	if (err == nil) != ok || err != nil && err.Error() != text {
		t.Errorf("%s: %v, want good: %v, else %q", what, err, ok, text)
	}
}

func TestChangesAreNoticed(t *testing.T) {
	m := New(prometheus.NewRegistry())
	if m.Set(Snapshot{Phase: WaitingForDriver}) {
		t.Error("the state at the start is to wait for the driver")
	}
	if !m.Set(Snapshot{Phase: Rejected, Reason: "a"}) || !m.Set(Snapshot{Phase: Rejected, Reason: "b"}) {
		t.Error("another phase and another reason are changes")
	}
}

func TestWaitingReasonIsPartOfHealth(t *testing.T) {
	m := New(prometheus.NewRegistry())
	m.Waiting("no socket")
	if err := m.Health(); err == nil || err.Error() != "waiting for driver: no socket" {
		t.Errorf("health: %v", err)
	}
	m.Set(Snapshot{Phase: Registered})
	m.Waiting("connection refused") // the driver restarts; the registration stays
	if err := m.Health(); err != nil {
		t.Errorf("health once registered: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Count(ResultRejected)
	m.Count(ResultRejected)
	m.Count(ResultRegistered)
	want := `# HELP csi_registration_attempts_total Attempts to register the driver with the kubelet, by result.
# TYPE csi_registration_attempts_total counter
csi_registration_attempts_total{result="failed"} 0
csi_registration_attempts_total{result="registered"} 1
csi_registration_attempts_total{result="rejected"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "csi_registration_attempts_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
