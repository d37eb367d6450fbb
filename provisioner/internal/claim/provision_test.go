package claim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

func TestBlockedError(t *testing.T) {
	err := errors.New("no")
	blocked := volume.BlockedError{Err: err}
	if !errors.Is(blocked, err) || blocked.Error() != err.Error() {
		t.Errorf("blocked error %v hides its reason", blocked)
	}
	if got := backend.Describe(errors.Join(errors.New("a"), errors.New("b"))); strings.Contains(got, "\n") {
		t.Errorf("description %q, want one line", got)
	}
}

func TestNewNeedsADriver(t *testing.T) {
	if _, err := New(Config{Info: func() *csiclient.Info { return nil }}); err == nil {
		t.Error("a controller was made for a driver that is not ready")
	}
}

func TestUnderWay(t *testing.T) {
	store := journal.New()
	gather := func() map[string]float64 {
		registry := prometheus.NewRegistry()
		RegisterUnderWay(registry, store)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := strings.TrimPrefix(family.GetName(), "provisioner_volumes_")
				for _, label := range metric.GetLabel() {
					name += " " + label.GetValue()
				}
				got[name] = metric.GetGauge().GetValue()
			}
		}
		return got
	}
	want := map[string]float64{"provisioner_journal_durable": 0, "under_way creating": 0, "under_way saving": 0, "under_way undoing": 0, "under_way reported": 0, "outcome_unknown": 0, "outcome_unknown_since_timestamp_seconds": 0}
	if diff := cmp.Diff(want, gather()); diff != "" {
		t.Errorf("without a volume (-want +got):\n%s", diff)
	}
	for i, since := range []int64{0, 200, 100} {
		intent := *newIntent(journal.Creating)
		intent.Spec.Claim.UID = types.UID(fmt.Sprint(i))
		if since > 0 {
			intent.Uncertain = time.Unix(since, 0)
		}
		if err := store.Open(t.Context(), intent); err != nil {
			t.Fatal(err)
		}
	}
	undoing := *newIntent(journal.Undoing)
	undoing.Uncertain = time.Unix(50, 0)
	if err := store.Open(t.Context(), undoing); err != nil {
		t.Fatal(err)
	}
	want = map[string]float64{"provisioner_journal_durable": 0, "under_way creating": 3, "under_way saving": 0, "under_way undoing": 1, "under_way reported": 0, "outcome_unknown": 2, "outcome_unknown_since_timestamp_seconds": 100}
	if diff := cmp.Diff(want, gather()); diff != "" {
		t.Errorf("with volumes (-want +got):\n%s", diff)
	}
}
