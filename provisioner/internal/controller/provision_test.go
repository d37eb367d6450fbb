package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

func TestBlockedError(t *testing.T) {
	err := errors.New("no")
	blocked := blockedError{err}
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

func TestCapabilities(t *testing.T) {
	all := &csiclient.Info{
		Plugin: map[csi.PluginCapability_Service_Type]bool{
			csi.PluginCapability_Service_CONTROLLER_SERVICE:               true,
			csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS: true,
		},
		Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:     true,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: true,
			csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:            true,
			csi.ControllerServiceCapability_RPC_GET_CAPACITY:             true,
			csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true,
			csi.ControllerServiceCapability_RPC_CLONE_VOLUME:             true,
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:   true,
		},
	}
	on := Features{Topology: true, AttributesClass: true}
	cases := map[string]struct {
		reason   string
		info     *csiclient.Info
		features Features
		want     capabilities
		shape    view.Shape
	}{
		"All":      {reason: "What the driver can do is used.", info: all, features: on, want: capabilities{true, true, true, true, true, true, true, true, true}, shape: view.Shape{Topology: true, Attachments: true, Snapshots: true}},
		"Features": {reason: "Features that are off are not.", info: all, want: capabilities{create: true, publish: true, capacity: true, clone: true, snapshot: true, singleNode: true}, shape: view.Shape{Attachments: true, Snapshots: true}},
		"Unknown":  {reason: "A driver that was not heard of can do nothing.", features: on, want: capabilities{}},
		"NoController": {
			reason: "Without the controller service its capabilities are void.", features: on,
			info: &csiclient.Info{Plugin: map[csi.PluginCapability_Service_Type]bool{}, Controller: all.Controller}, want: capabilities{attributes: true},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := capabilitiesOf(tc.info, tc.features); got != tc.want {
				t.Errorf("%s\ncapabilities %+v, want %+v", tc.reason, got, tc.want)
			}
			if got := ShapeOf(tc.info, tc.features); got != tc.shape {
				t.Errorf("%s\nshape %+v, want %+v", tc.reason, got, tc.shape)
			}
		})
	}
}

func TestUnderWay(t *testing.T) {
	store := journal.New()
	gather := func() map[string]float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(NewUnderWay(store))
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
