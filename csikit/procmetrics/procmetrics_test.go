package procmetrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/longshore-csi/longshore/csikit/procmetrics"
)

func TestNewRegistry(t *testing.T) {
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		n, err := testutil.GatherAndCount(procmetrics.NewRegistry(), name)
		if err != nil || n != 1 {
			t.Errorf("%d series of %s, %v; want 1", n, name, err)
		}
	}
	if one, other := procmetrics.NewRegistry(), procmetrics.NewRegistry(); one == other {
		t.Error("two components share one registry")
	}
}
