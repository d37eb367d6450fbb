package snapshotter

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// running is a snapshotter with a real socket and a real HTTP listener.
type running struct {
	*sidecartest.Running
	cluster *kubetest.Cluster
}

// start runs a snapshotter for the driver at the socket; the flags are added to that of the socket.
func start(t *testing.T, socket string, args ...string) *running {
	t.Helper()
	o, err := parse(append([]string{"--csi-address=" + socket}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	cluster := newCluster(t)
	return &running{Running: sidecartest.Start(t, inMemory(o, cluster.Client(), snapshotapitest.New(cluster), "host-1")), cluster: cluster}
}

// newCluster returns an API server with the kinds and classes.
func newCluster(t *testing.T) *kubetest.Cluster {
	t.Helper()
	cluster := kubetest.New()
	snapshotapitest.Install(cluster)
	if err := cluster.Apply(testClass(), testGroupClass(), testSecret()); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// withVolumes adds vol-1 and vol-2 to a driver.
func withVolumes(d *csitest.Driver) *csitest.Driver {
	d.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 1 << 30})
	d.AddVolume(csitest.Volume{ID: "vol-2", Capacity: 2 << 30})
	return d
}

// isReady returns a condition: the content of that UID has a snapshot.
func (r *running) isReady(t *testing.T, uid string) func() bool {
	t.Helper()
	return func() bool {
		content, err := snapshotapitest.New(r.cluster).VolumeSnapshotContents().Get(t.Context(), "snapcontent-"+uid, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return content.Status != nil && content.Status.ReadyToUse != nil && *content.Status.ReadyToUse
	}
}

// TestHTTP takes and deletes a snapshot, takes a group snapshot, and compares what is served with docs/metrics.md.
func TestHTTP(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	driver := withVolumes(newDriver(csitest.Options{}))
	driver.ServeAt(t, s)
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns")
	if err := r.cluster.Apply(testContent("u1", "vol-1"), testGroupContent("g1", "vol-1", "vol-2")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("take a snapshot", r.isReady(t, "u1"))
	r.Eventually("take a group snapshot", func() bool { return len(driver.Snapshots()) == 3 })
	mark := []byte(`{"metadata":{"annotations":{"` + snapshotapi.AnnBeingDeleted + `":"yes"}}}`)
	if err := r.cluster.Merge("volumesnapshotcontents", "", "snapcontent-u1", mark); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.Remove("volumesnapshotcontents", "", "snapcontent-u1"); err != nil {
		t.Fatal(err)
	}
	r.Eventually("delete the snapshot", func() bool { return len(driver.Snapshots()) == 2 })

	r.Serves(
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/CreateSnapshot"} 1`,
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/DeleteSnapshot"} 1`,
		`method_name="/csi.v1.GroupController/CreateVolumeGroupSnapshot"} 1`,
		`workqueue_adds_total{name="csi-snapshotter-content"}`,
		`workqueue_oldest_item_age_seconds{name="csi-snapshotter-groupsnapshotcontent"}`,
		`leader_election_master_status{name="external-snapshotter-leader-test-csi-longshore-example"} 1`,
	)
	var state struct {
		Leading  bool
		Contents struct {
			Driver   string
			Features struct{ Create, List, Get, Groups bool }
			Groups   struct{ Version string }
		}
	}
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil || !state.Leading || state.Contents.Driver != driverName ||
		!state.Contents.Features.Create || !state.Contents.Features.Get || state.Contents.Groups.Version != "v1" {
		t.Errorf("/debug/state: %s", body)
	}
	r.CheckMetrics("docs/metrics.md")
	r.Stop()
}

// TestReport counts contents that wait, an uncertain one among them, and a snapshot of the driver that no content names.
func TestReport(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	driver := withVolumes(newDriver(csitest.Options{}))
	driver.AddSnapshot(csitest.Snapshot{ID: "lost", SourceVolume: "vol-1"})
	driver.Inject(csitest.Fault{Method: "CreateSnapshot", Code: codes.DeadlineExceeded, Message: "slow"})
	driver.Inject(csitest.Fault{Method: "CreateVolumeGroupSnapshot", Code: codes.Internal, Message: "broken"})
	driver.ServeAt(t, s)
	r := start(t, s, "--orphan-report-interval=20ms")
	if err := r.cluster.Apply(testContent("u1", "vol-1"), testGroupContent("g1", "vol-1", "vol-2")); err != nil {
		t.Fatal(err)
	}
	const driverLabel = `driver_name="test.csi.longshore.example"`
	r.Serves(
		`csi_snapshotter_waiting_contents{`+driverLabel+`,kind="snapshot",step="create"} 1`, `csi_snapshotter_uncertain_contents{`+driverLabel+`,kind="snapshot"} 1`,
		`csi_snapshotter_waiting_contents{`+driverLabel+`,kind="group_snapshot",step="create"} 1`, `csi_snapshotter_uncertain_contents{`+driverLabel+`,kind="group_snapshot"} 0`,
		`csi_snapshotter_orphaned_snapshots{`+driverLabel+`} 1`,
	)
	r.Eventually("name the snapshot in the log", func() bool { return strings.Contains(r.Log(), `number=1 snapshots=["lost"]`) })
	driver.Heal()
	lost := testContent("lost", "")
	lost.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("lost")}
	if err := r.cluster.Apply(lost); err != nil {
		t.Fatal(err)
	}
	r.Serves(
		`csi_snapshotter_orphaned_snapshots{`+driverLabel+`} 0`,
		`csi_snapshotter_waiting_contents{`+driverLabel+`,kind="snapshot",step="create"} 0`, `csi_snapshotter_uncertain_contents{`+driverLabel+`,kind="snapshot"} 0`,
		`csi_snapshotter_waiting_contents{`+driverLabel+`,kind="group_snapshot",step="create"} 0`,
	)
	r.Stop()
}

// TestDriverComesBack upgrades a driver that has no snapshots to one that has: users learn why nothing happens, and the content that waits
// gets its snapshot.
func TestDriverComesBack(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}).ServeAt(t, s)
	r := start(t, s)
	if err := r.cluster.Apply(testContent("u1", "vol-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("report the missing capability", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "[-]capabilities failed") && strings.Contains(body, "CREATE_DELETE_SNAPSHOT")
	})
	r.Eventually("report it on the content", func() bool {
		content := contentOf(r.cluster, func(*snapshotv1.VolumeSnapshotContent) bool { return true })
		return content.Status != nil && content.Status.Error != nil && strings.Contains(*content.Status.Error.Message, "CREATE_DELETE_SNAPSHOT")
	})
	stopDriver()

	withVolumes(newDriver(csitest.Options{})).ServeAt(t, s)
	r.Eventually("take the snapshot", r.isReady(t, "u1"))
	r.Stop()
}

// TestDriverWakes ends the pause after a failure when the driver comes back.
func TestDriverWakes(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	broken := withVolumes(newDriver(csitest.Options{}))
	broken.Inject(csitest.Fault{Method: "CreateSnapshot", Code: 13, Message: "broken"})
	stopDriver := broken.ServeAt(t, s)
	r := start(t, s, "--retry-interval-start=1h", "--retry-interval-max=1h")
	if err := r.cluster.Apply(testContent("u1", "vol-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("show the error in the state", func() bool {
		_, body := r.Get("/debug/state")
		return strings.Contains(body, `"error": "Internal: broken"`) && strings.Contains(body, `"step": "create"`)
	})
	stopDriver()
	withVolumes(newDriver(csitest.Options{})).ServeAt(t, s)
	r.Eventually("take the snapshot", r.isReady(t, "u1"))
	r.Stop()
}

// TestOptionsAreChecked runs with options that are not valid.
func TestOptionsAreChecked(t *testing.T) {
	o, err := parse("--worker-threads=0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--worker-threads=0") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
}
