package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

const metricsIntro = `# Metrics and events of csi-node-agent

This file is written by ` + "`REWRITE=1 go test -run TestMetricsDocument .`" + `.

## Metrics

They are served by ` + "`--http-endpoint`, at `--metrics-path`" + `, in the format of Prometheus. A metric whose last column says yes is one of a
kubelet's too, and has its name, type and labels. With ` + "`Options.Registerer`, each metric has the label `node`" + ` as well. The process has
the usual metrics ` + "`go_*` and `process_*`" + ` besides.

| Metric | Type | Labels | Meaning | In a kubelet |
|---|---|---|---|---|
`

const metricsNotes = `
| Label | Values |
|---|---|
| ` + "`driver_name`" + ` | the name of the CSI driver |
| ` + "`method_name`" + ` | the full gRPC method: ` + "`/csi.v1.Node/NodePublishVolume`" + ` |
| ` + "`grpc_status_code`" + ` | the gRPC code by name: ` + "`OK`, `DeadlineExceeded`; `unknown-non-grpc`" + ` if the call failed without one |
| ` + "`migrated`" + ` | ` + "`false`" + `: volumes of in-tree plugins are not supported |
| ` + "`namespace`, `persistentvolumeclaim`" + ` | the claim of the volume |
| ` + "`volume_plugin`, `plugin_name`" + ` | ` + "`kubernetes.io/csi:` and the name of the CSI driver" + ` |
| ` + "`operation_name`" + ` | ` + "`verify_controller_attached_volume`, `volume_mount`, `volume_apply_access_control`, `volume_fs_resize`, `volume_unmount`, `unmount_device`; `map_volume`, `unmap_volume`, `unmap_device` for raw block volumes; `overall_volume_mount` in `volume_operation_total_seconds`" + ` |
| ` + "`status`, `reason`" + ` | of ` + "`csi_node_storage_health_status`, `StorageUnreachable` or `StorageDegraded`" + `, and the reason that the driver gives; else ` + "`success`, `fail-unknown`" + ` |
| ` + "`state`" + ` | ` + "`actual_state_of_world`, `desired_state_of_world`" + ` |
| ` + "`socket_path`" + ` | the registration socket |
| ` + "`feature`" + ` | see [differences.md](differences.md), "Not supported" |
| ` + "`name`" + ` | the queue: ` + "`pods`" + ` |

With the feature gate ` + "`CSIVolumeHealth`, `csi_node_storage_health_status`" + ` replaces ` + "`kubelet_volume_stats_health_status_abnormal`" + `, which a kubelet has until 1.36.

An operation ` + "`volume_mount`" + ` is NodeStageVolume, if it is needed, and NodePublishVolume; a kubelet adds the change of the group and the expansion.
The kubelet's metrics ` + "`force_cleaned_failed_volume_operations_total` and `force_cleaned_failed_volume_operation_errors_total`" + ` do not exist: what cannot be
recovered is not removed by force. ` + "`/debug/state`" + ` lists the volumes of the node with their last errors, and the registrations of drivers.

## Events

An event whose last column says yes has the reason of a kubelet's. Events about attaching and detaching (` + "`FailedAttachVolume`," + `
` + "`SuccessfulAttachVolume`" + `) are kube-controller-manager's.

| Reason | Type | On | When | In a kubelet |
|---|---|---|---|---|
`

// kubeletLabels has the labels that the metrics of a kubelet of 1.37 have.
func kubeletLabels() map[string][]string {
	queue, claim := []string{"name"}, []string{"namespace", "persistentvolumeclaim"}
	return map[string][]string{
		"kubelet_volume_stats_available_bytes":        claim,
		"kubelet_volume_stats_capacity_bytes":         claim,
		"kubelet_volume_stats_inodes":                 claim,
		"kubelet_volume_stats_inodes_free":            claim,
		"kubelet_volume_stats_inodes_used":            claim,
		"kubelet_volume_stats_used_bytes":             claim,
		"csi_node_storage_health_status":              {"driver_name", "reason", "status"},
		"csi_operations_seconds":                      {"driver_name", "grpc_status_code", "method_name", "migrated"},
		"storage_operation_duration_seconds":          {"migrated", "operation_name", "status", "volume_plugin"},
		"volume_operation_total_seconds":              {"operation_name", "plugin_name"},
		"volume_manager_total_volumes":                {"plugin_name", "state"},
		"plugin_manager_total_plugins":                {"socket_path", "state"},
		"reconstruct_volume_operations_total":         nil,
		"reconstruct_volume_operations_errors_total":  nil,
		"kubelet_orphan_pod_cleaned_volumes":          nil,
		"kubelet_orphan_pod_cleaned_volumes_errors":   nil,
		"rest_client_requests_total":                  {"code", "host", "method"},
		"rest_client_request_duration_seconds":        {"host", "verb"},
		"workqueue_adds_total":                        queue,
		"workqueue_depth":                             queue,
		"workqueue_longest_running_processor_seconds": queue,
		"workqueue_queue_duration_seconds":            queue,
		"workqueue_retries_total":                     queue,
		"workqueue_unfinished_work_seconds":           queue,
		"workqueue_work_duration_seconds":             queue,
	}
}

// eventRow is a row of the table of events.
type eventRow struct {
	reason, kind, on, when string
	kubelet                bool
}

func eventRows() []eventRow {
	return []eventRow{
		{"FailedMount", "Warning", "Pod", "a volume cannot be attached, staged or published, or its files cannot be given to the fsGroup: at once, after eight failures in a row, in about 3 seconds, if the cause usually goes away by itself (a driver that is not registered, a right that the pod has just got), and every 2 minutes and 3 seconds with all volumes that the pod waits for; also if NodePublishVolume fails when it is repeated", true},
		{"FailedMapVolume", "Warning", "Pod", "a volume cannot be given to a container as a block device (`volumeDevices`)", true},
		{"SuccessfulMountVolume", "Normal", "Pod", "the pod has got a raw block volume; a kubelet sends it twice, for two paths", true},
		{"FailedUnMount", "Warning", "Pod", "NodeUnpublishVolume fails, or the directory of the pod cannot be removed", false},
		{"VolumeAttachmentLimitExceeded", "Warning", "Pod", "the pod is rejected: it has waited for 2 minutes and 3 seconds for a volume whose VolumeAttachment has the error code 8 (RESOURCE_EXHAUSTED), and the CSIDriver object has `nodeAllocatableUpdatePeriodSeconds`", true},
		{"InvalidExitAfter", "Warning", "Pod", "the annotation `csi.longshore.dev/exit-after` of a running pod is no duration, or its restartPolicy is Always; it has no effect", false},
		{"FileSystemResizeSuccessful", "Normal", "Pod, PersistentVolumeClaim", "NodeExpandVolume has succeeded", true},
		{"VolumeResizeFailed", "Warning", "Pod, PersistentVolumeClaim", "NodeExpandVolume has failed", true},
		{"FileSystemResizeFailed", "Warning", "Pod, PersistentVolumeClaim", "an expansion waits because the pod mounts the volume read-only", true},
		{"VolumePermissionChangeInProgress", "Warning", "Pod", "giving the files of a volume to the fsGroup takes longer than 30 seconds, then every minute, with the number of files", true},
		{"VolumePermissionChangeRefused", "Warning", "Pod", "the file system does not let the group of some files be changed; the pod runs", false},
		{"VolumeConditionAbnormal", "Warning", "Pod", "the driver reports a problem of a volume, or another one than before; not with the feature gate `CSIVolumeHealth`. A kubelet has it until 1.36", false},
		{"VolumeConditionNormal", "Normal", "Pod", "the driver reports no problem of a volume any more; not with the feature gate `CSIVolumeHealth`", false},
		{"StaleVolumeMount", "Warning", "Pod", "a volume was detached and attached again while the pod may use it; delete the pod", false},
		{"CSIDriverNotAllowed", "Warning", "Pod", "an inline volume names a driver that `--allowed-csi-drivers` does not", false},
		{"UnsupportedVolumeFeature", "Warning", "Pod", "a volume asks for a feature that the agent does not support, and the pod runs without it; see [differences.md](differences.md)", false},
		{"UnknownVolumeMount", "Warning", "Node", "a path below the root directory may belong to a volume that is not known; it is left unchanged, and earlier `volumesInUse` stay", false},
		{"CSIDriverRegistrationLost", "Warning", "Node", "a driver that was registered is not registered any more, its registration socket has gone", false},
		{"CSIDriverRegistered", "Normal", "Node", "that driver is registered again", false},
		{"CSIDriverNotRegistered", "Warning", "Node", "a driver cannot be registered by a registration socket, with the reason", false},
		{"CSIDriverNameTaken", "Warning", "Node", "two drivers of one name run on the node, and the second has taken over the registration", false},
	}
}

// collecting is a registerer that keeps what is registered.
type collecting struct {
	prometheus.Registerer
	all []prometheus.Collector
}

func (c *collecting) Register(m prometheus.Collector) error {
	c.all = append(c.all, m)
	return c.Registerer.Register(m)
}

func (c *collecting) MustRegister(all ...prometheus.Collector) {
	c.all = append(c.all, all...)
	c.Registerer.MustRegister(all...)
}

// family is a metric with what a description of it says.
type family struct {
	name, kind, help string
	constant, labels []string
}

var description = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: ("(?:[^"\\]|\\.)*"),(?: unit: "[^"]*",)? constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}\}$`)

// families describes all metrics of an agent, with any feature gates, those without a value yet too.
func families(t *testing.T) []family {
	t.Helper()
	var all []family
	for _, gates := range []string{"AllAlpha=false", "AllAlpha=true"} {
		o := NewOptions()
		o.NodeName, o.RootDir, o.NodeIP = "node-1", t.TempDir(), "10.0.0.1"
		o.Kube.Master = "http://127.0.0.1:1"
		reg := &collecting{Registerer: prometheus.NewRegistry()}
		if err := o.Features.Set(gates); err != nil {
			t.Fatal(err)
		}
		if _, err := newAgent(&o, reg, nil); err != nil {
			t.Fatal(err)
		}
		for _, c := range reg.all {
			all = append(all, describe(t, c)...)
		}
	}
	slices.SortFunc(all, func(a, b family) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b family) bool { return a.name == b.name })
}

func describe(t *testing.T, c prometheus.Collector) []family {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	var all []family
	for d := range descs {
		parts := description.FindStringSubmatch(d.String())
		if parts == nil {
			t.Errorf("description %s is not understood", d)
			continue
		}
		help := strings.NewReplacer("<", "&lt;", "|", `\|`).Replace(strings.Trim(parts[2], `"`))
		all = append(all, family{name: parts[1], kind: kind(c), help: help, constant: fields(parts[3]), labels: fields(parts[4])})
	}
	return all
}

func kind(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	case *prometheus.GaugeVec, prometheus.Gauge:
		return "gauge"
	case *prometheus.CounterVec, prometheus.Counter:
		return "counter"
	default: // a collector of this module, which has only gauges
		return "gauge"
	}
}

func fields(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// names returns the names of all labels, sorted.
func (f family) names() []string {
	all := slices.Clone(f.labels)
	for _, c := range f.constant {
		name, _, _ := strings.Cut(c, "=")
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// TestMetricsDocument: docs/metrics.md has all metrics of the agent and all events.
func TestMetricsDocument(t *testing.T) {
	b := &strings.Builder{}
	b.WriteString(metricsIntro)
	kubelet := kubeletLabels()
	for _, f := range families(t) {
		labels := make([]string, 0, len(f.names()))
		for _, name := range f.names() {
			labels = append(labels, "`"+name+"`")
		}
		_, shared := kubelet[f.name]
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", f.name, f.kind, strings.Join(labels, ", "), f.help, word(shared))
	}
	b.WriteString(metricsNotes)
	for _, e := range eventRows() {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", e.reason, e.kind, e.on, e.when, word(e.kubelet))
	}
	commandtest.Golden(t, "docs/metrics.md", b.String())
}

func word(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// TestKubeletLabels: dashboards for a kubelet work with the agent.
func TestKubeletLabels(t *testing.T) {
	want, got := kubeletLabels(), map[string][]string{}
	for _, f := range families(t) {
		if _, shared := want[f.name]; shared {
			got[f.name] = f.names()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels of the kubelet's metrics, -want +got:\n%s", diff)
	}
}

var reasonConstant = regexp.MustCompile(`(?m)\b[rR]eason[A-Za-z]* *= *"([A-Z][A-Za-z]*)"`)

// TestEventReasons: each reason of an event in the source has its row, and the other way round.
func TestEventReasons(t *testing.T) {
	// These are reasons in the status of a container, not of events.
	found := map[string]bool{"ContainerStatusUnknown": false, "Error": false, "Completed": false}
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range reasonConstant.FindAllStringSubmatch(string(text), -1) {
			if _, known := found[m[1]]; !known {
				found[m[1]] = true
			}
		}
		return err
	}
	// The library's are found in the repository only.
	if err := errors.Join(filepath.WalkDir(".", look), filepath.WalkDir("../kubeletplugin", look)); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for reason, event := range found {
		if event {
			want = append(want, reason)
		}
	}
	for _, e := range eventRows() {
		got = append(got, e.reason)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("documented reasons, -in the source +in the table:\n%s", diff)
	}
}
