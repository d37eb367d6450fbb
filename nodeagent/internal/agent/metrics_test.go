package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// gathered returns the values of the metrics with a prefix, those of histograms by their number of values, as name{label="value"}.
func gathered(t *testing.T, reg prometheus.Gatherer, prefixes ...string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, prefix := range prefixes {
			if !strings.HasPrefix(f.GetName(), prefix) {
				continue
			}
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value
			}
		}
	}
	return all
}

// TestVolumeMetrics: the kubelet's metrics about volumes follow a pod with a volume, and what was found on disk.
func TestVolumeMetrics(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	reg := prometheus.NewRegistry()
	c.cfg.Registerer = reg
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(csiDriver(false), claim(), persistentVolume())
	unknown := filepath.Join(c.root.Drivers(), "other", "pv") // a staging directory of an old kubelet
	if err := os.MkdirAll(unknown, 0o750); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.eventually("the driver to be registered", func() bool { return len(c.agent.plugin.State().Drivers) == 1 })
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	plugin := "kubernetes.io/csi:" + driverName
	operation := func(name string) string {
		return fmt.Sprintf(`storage_operation_duration_seconds{migrated="false",operation_name=%q,status="success",volume_plugin=%q}`, name, plugin)
	}
	total := func(state string) string {
		return fmt.Sprintf(`volume_manager_total_volumes{plugin_name=%q,state=%q}`, plugin, state)
	}
	socket := filepath.Join(c.root.Registry(), "test-reg.sock")
	prefixes := []string{"storage_", "volume_", "reconstruct_", "plugin_manager_"}
	want := map[string]float64{
		operation("volume_mount"): 1,
		`volume_operation_total_seconds{operation_name="overall_volume_mount",plugin_name="` + plugin + `"}`: 1,
		total("actual_state_of_world"): 1, total("desired_state_of_world"): 1,
		`plugin_manager_total_plugins{socket_path="` + socket + `",state="actual_state_of_world"}`:  1,
		`plugin_manager_total_plugins{socket_path="` + socket + `",state="desired_state_of_world"}`: 1,
		"reconstruct_volume_operations_total{}":                                                     1, "reconstruct_volume_operations_errors_total{}": 1,
	}
	c.eventually("the metrics", reads(t, reg, want, prefixes...))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	delete(want, total("actual_state_of_world"))
	delete(want, total("desired_state_of_world"))
	want[operation("volume_unmount")], want[operation("unmount_device")] = 1, 1
	c.eventually("the metrics", reads(t, reg, want, prefixes...))
	reg = prometheus.NewRegistry()
	c.cfg.Registerer = reg
	c.apply(podWith("b", claimSource()))
	c.eventually("pod b to run", c.running("b"))
	c.halt()
	c.start()
	c.eventually("the volume to be found", func() bool {
		return gathered(t, reg, "reconstruct_")["reconstruct_volume_operations_total{}"] == 2
	})
}

// TestOrphanMetrics: the directory of a pod that is gone is found by each sweep until it can be removed.
func TestOrphanMetrics(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	reg := prometheus.NewRegistry()
	c.cfg.Registerer, c.cfg.SweepInterval = reg, 10*time.Millisecond
	c.start()
	c.eventually("the node to be ready", c.ready)
	c.leave("uid-x", func(root layout.Root) error {
		return os.MkdirAll(filepath.Join(root.PodVolumes("uid-x"), "pv", "mount", "data"), 0o750)
	})
	orphans := func(found, failed float64) func() bool {
		want := map[string]float64{"kubelet_orphan_pod_cleaned_volumes{}": found, "kubelet_orphan_pod_cleaned_volumes_errors{}": failed}
		return reads(t, reg, want, "kubelet_orphan")
	}
	c.eventually("the orphan to be counted", orphans(1, 1))
	if err := os.Remove(filepath.Join(c.root.PodVolumes("uid-x"), "pv", "mount", "data")); err != nil {
		t.Fatal(err)
	}
	c.eventually("no orphan to be left", orphans(0, 0))
}

// reads reports whether the metrics have certain values.
func reads(t *testing.T, reg prometheus.Gatherer, want map[string]float64, prefixes ...string) func() bool {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the metrics are %v, want %v", gathered(t, reg, prefixes...), want)
		}
	})
	return func() bool { return maps.Equal(gathered(t, reg, prefixes...), want) }
}
