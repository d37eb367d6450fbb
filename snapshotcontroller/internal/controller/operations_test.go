package controller

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// seen is what has become of a snapshot when it is looked at, after so many seconds.
type seen struct {
	after                    int
	created, ready, deleting bool
	failed, gone             bool
	content                  bool   // the content, and with it the driver, is known
	uid                      string // "u" if empty
}

// TestOperations follows snapshots, and looks at the samples: operation, status, driver, type and seconds.
func TestOperations(t *testing.T) {
	tests := map[string]struct {
		reason         string
		preProvisioned bool
		steps          []seen
		want           []string
		inFlight       float64
	}{
		"Success": {reason: "created, then ready", steps: []seen{{}, {after: 2, content: true, created: true}, {after: 3, content: true, created: true, ready: true}}, want: []string{
			"CreateSnapshot success d dynamic 2", "CreateSnapshotAndReady success d dynamic 5",
		}},
		"AtOnce":         {reason: "both at once", steps: []seen{{}, {after: 1, content: true, created: true, ready: true}}, want: []string{"CreateSnapshot success d dynamic 1", "CreateSnapshotAndReady success d dynamic 1"}},
		"PreProvisioned": {reason: "the type is in a label", preProvisioned: true, steps: []seen{{}, {after: 1, content: true, ready: true}}, want: []string{"CreateSnapshot success d pre-provisioned 1", "CreateSnapshotAndReady success d pre-provisioned 1"}},
		"Failure": {reason: "a failure is counted once, and success ends it", steps: []seen{{}, {after: 1, content: true, failed: true}, {after: 1, content: true, failed: true}, {after: 1, content: true, ready: true}}, want: []string{
			"CreateSnapshot failure d dynamic 1", "CreateSnapshot success d dynamic 3", "CreateSnapshotAndReady failure d dynamic 1", "CreateSnapshotAndReady success d dynamic 3",
		}},
		"FailureTwice":  {reason: "it was well in between", steps: []seen{{}, {after: 1, failed: true}, {after: 1}, {after: 1, failed: true}}, want: []string{"CreateSnapshot failure unknown dynamic 1", "CreateSnapshot failure unknown dynamic 3", "CreateSnapshotAndReady failure unknown dynamic 1", "CreateSnapshotAndReady failure unknown dynamic 3"}, inFlight: 2},
		"FailureBefore": {reason: "another instance has counted it", steps: []seen{{failed: true}, {after: 1, failed: true}}, inFlight: 2},
		"NotReady":      {reason: "only what is in progress fails", steps: []seen{{}, {after: 1, content: true, created: true}, {after: 1, content: true, created: true, failed: true}}, want: []string{"CreateSnapshot success d dynamic 1", "CreateSnapshotAndReady failure d dynamic 2"}, inFlight: 1},
		"Cancel":        {reason: "deleted before it was complete", steps: []seen{{}, {after: 1, deleting: true, content: true}, {after: 2, gone: true}}, want: []string{"CreateSnapshot cancel d dynamic 1", "CreateSnapshotAndReady cancel d dynamic 1", "DeleteSnapshot success d dynamic 2"}},
		"Delete":        {reason: "the error of the creation is not one of the deletion", steps: []seen{{failed: true, content: true, deleting: true}, {after: 1, failed: true, content: true, deleting: true}, {after: 1, gone: true}}, want: []string{"DeleteSnapshot success d dynamic 2"}},
		"DeleteFails":   {reason: "the driver cannot delete it yet", steps: []seen{{ready: true, content: true}, {deleting: true, content: true}, {after: 2, deleting: true, content: true, failed: true}, {after: 1, gone: true}}, want: []string{"DeleteSnapshot failure d dynamic 2", "DeleteSnapshot success d dynamic 3"}},
		"Replaced":      {reason: "another snapshot of that name", steps: []seen{{}, {after: 1, uid: "v"}}, want: []string{"CreateSnapshot cancel unknown dynamic 1", "CreateSnapshotAndReady cancel unknown dynamic 1"}, inFlight: 2},
		"ReadyBefore":   {reason: "nothing was waited for", steps: []seen{{ready: true, content: true}, {after: 1, gone: true}}},
	}
	for name, tt := range tests {
		for _, k := range []*kind{snapshotKind(), groupKind()} {
			t.Run(name+k.group, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					registry := prometheus.NewRegistry()
					o := NewOperations(registry)
					for _, s := range tt.steps {
						<-time.After(time.Duration(s.after) * time.Second)
						s.observe(o, k, tt.preProvisioned)
					}
					want := slices.Clone(tt.want)
					for i := range want {
						want[i] = k.reason(want[i])
					}
					got, inFlight := samples(t, registry)
					if diff := cmp.Diff(want, got); diff != "" || inFlight != tt.inFlight {
						t.Errorf("%s: %v in flight, want %v (-want +got):\n%s", tt.reason, inFlight, tt.inFlight, diff)
					}
				})
			})
		}
	}
}

func (s seen) meta() metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"}
	if s.uid != "" {
		meta.UID = "v"
	}
	if s.deleting {
		meta.DeletionTimestamp = new(metav1.Now())
	}
	return meta
}

func (s seen) errorOf() *snapshotv1.VolumeSnapshotError {
	if s.failed {
		return &snapshotv1.VolumeSnapshotError{}
	}
	return nil
}

func (s seen) time() *metav1.Time {
	if s.created {
		return new(metav1.Now())
	}
	return nil
}

func (s seen) observe(o *Operations, k *kind, preProvisioned bool) {
	meta := s.meta()
	if s.gone {
		o.finish(k.group + keyOf(&meta))
		return
	}
	of := &owner{Object: &meta, status: &status{Ready: &s.ready, Error: s.errorOf(), Created: s.time()}}
	if preProvisioned {
		of.existing = new("c")
	}
	var c *content
	if s.content {
		c = &content{driver: "d"}
	}
	o.observe(k, of, c)
}

// samples returns the samples of the histogram, one line each, if the count of a label set is above 1 the seconds of all, and the gauge.
func samples(t *testing.T, registry *prometheus.Registry) (lines []string, inFlight float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "snapshot_controller_operations_in_flight" {
				inFlight = metric.GetGauge().GetValue()
				continue
			}
			labels := map[string]string{}
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			// The times of the tests are whole seconds, and those of a label set differ, so that the sum says which they are.
			h := metric.GetHistogram()
			for i := range h.GetSampleCount() {
				seconds := h.GetSampleSum()
				if h.GetSampleCount() == 2 {
					seconds = []float64{1, seconds - 1}[i]
				}
				lines = append(lines, fmt.Sprint(labels["operation_name"], " ", labels["operation_status"], " ", labels["driver_name"], " ", labels["snapshot_type"], " ", seconds))
			}
		}
	}
	slices.Sort(lines)
	return lines, inFlight
}
