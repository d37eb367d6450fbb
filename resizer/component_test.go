package resizer

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

const (
	driverName = "test.csi.longshore.example"

	oneGi = "1Gi"
	twoGi = "2Gi"
)

// running is a resizer with a real socket and a real HTTP listener.
type running struct {
	*sidecartest.Running
	cluster *kubetest.Cluster
}

// start runs a resizer for the driver at the socket; the flags are added to that of the socket.
func start(t *testing.T, socket string, args ...string) *running {
	t.Helper()
	o, err := parse(append([]string{"--csi-address=" + socket}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubetest.New(testClass())
	return &running{Running: sidecartest.Start(t, inMemory(o, cluster.Client(), "host-1")), cluster: cluster}
}

// inMemory configures a resizer for an API server in memory.
func inMemory(o Options, client kube.Client, host string) sidecar.Config {
	config := o.sidecar()
	config.Client, config.Host = client, host
	return config
}

// size returns a list with an amount of storage.
func size(amount string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(amount)}
}

// testPV returns the volume of 1Gi that claim name is bound to.
func testPV(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    size(oneGi),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-" + name},
			},
		},
	}
}

// testClaim returns a claim of 1Gi that asks for another amount now.
func testClaim(name, requested string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeName:  "pv-" + name, Resources: corev1.VolumeResourceRequirements{Requests: size(requested)},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size(oneGi)},
	}
}

func testClass() *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driverName, Parameters: map[string]string{"iops": "1000"},
	}
}

// newDriver returns a driver that has the volumes of some claims and completes expansions without the node.
func newDriver(o csitest.Options, claims ...string) *csitest.Driver {
	if o.Name == "" {
		o.Name = driverName
	}
	o.Node = []csi.NodeServiceCapability_RPC_Type{}
	d := csitest.New(o)
	for _, name := range claims {
		d.AddVolume(csitest.Volume{ID: "vol-" + name, Capacity: 1 << 30})
	}
	return d
}

// ask applies claims that ask for 2Gi, with their volumes.
func (r *running) ask(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := r.cluster.Apply(testPV(name), testClaim(name, twoGi)); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *running) claim(t *testing.T, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := r.cluster.Client().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// expanded returns a condition: the claim has 2Gi.
func (r *running) expanded(t *testing.T, name string) func() bool {
	t.Helper()
	want := resource.MustParse(twoGi)
	return func() bool {
		return want.Cmp(r.claim(t, name).Status.Capacity[corev1.ResourceStorage]) == 0
	}
}

// TestHTTP expands and modifies a volume, and compares what is served with docs/metrics.md.
func TestHTTP(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	newDriver(csitest.Options{}, "data").ServeAt(t, s)
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns")
	claim := testClaim("data", twoGi)
	claim.Spec.VolumeAttributesClassName = new("gold")
	if err := r.cluster.Apply(testPV("data"), claim); err != nil {
		t.Fatal(err)
	}
	r.Eventually("expand", r.expanded(t, "data"))
	r.Eventually("modify", func() bool {
		current := r.claim(t, "data").Status.CurrentVolumeAttributesClassName
		return current != nil && *current == "gold"
	})

	r.Serves(
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerExpandVolume"} 1`,
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerModifyVolume"} 1`,
		`workqueue_adds_total{name="test.csi.longshore.example-pvc"}`,
		`workqueue_oldest_item_age_seconds{name="test.csi.longshore.example-pvc"}`,
		`leader_election_master_status{name="external-resizer-test-csi-longshore-example"} 1`,
	)
	var state struct {
		Leading bool
		Claims  struct {
			Driver   string
			Features struct{ Expand, Modify bool }
		}
	}
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil || !state.Leading || state.Claims.Driver != driverName ||
		!state.Claims.Features.Expand || !state.Claims.Features.Modify {
		t.Errorf("/debug/state: %s", body)
	}
	r.CheckMetrics("docs/metrics.md")
	r.Stop()
}

// TestMigratedLabel expands a volume of the in-tree plugin that the driver replaces, and one of the driver's own: the metric
// separates them.
func TestMigratedLabel(t *testing.T) {
	const ebs = "ebs.csi.aws.com"
	s := filepath.Join(t.TempDir(), "s")
	newDriver(csitest.Options{Name: ebs}, "own", "plugin").ServeAt(t, s)
	r := start(t, s)
	own, plugin, migrated := testPV("own"), testPV("plugin"), testClaim("plugin", twoGi)
	own.Spec.CSI.Driver = ebs
	plugin.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-plugin"},
	}
	migrated.Annotations = map[string]string{"volume.kubernetes.io/storage-resizer": ebs}
	if err := r.cluster.Apply(own, plugin, testClaim("own", twoGi), migrated); err != nil {
		t.Fatal(err)
	}
	r.Eventually("expand the driver's own volume", r.expanded(t, "own"))
	r.Eventually("expand the plugin's volume", r.expanded(t, "plugin"))
	_, body := r.Get("/metrics")
	for _, migrated := range []bool{true, false} {
		line := fmt.Sprintf("csi_sidecar_operations_seconds_count{driver_name=%q,grpc_status_code=\"OK\","+
			"method_name=\"/csi.v1.Controller/ControllerExpandVolume\",migrated=\"%t\"} 1\n", ebs, migrated)
		if !strings.Contains(body, line) {
			t.Errorf("/metrics lacks %s in:\n%s", line, body)
		}
	}
	r.Stop()
}

// TestDriverComesBack upgrades a driver that cannot expand to one that can: users learn why nothing happens, and the claim
// that waits is expanded.
func TestDriverComesBack(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}).ServeAt(t, s)
	r := start(t, s)
	r.ask(t, "data")
	r.Eventually("report the missing capabilities", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "[-]capabilities failed") && strings.Contains(body, "EXPAND_VOLUME")
	})
	r.Eventually("report it on the claim", func() bool {
		return slices.ContainsFunc(r.claim(t, "data").Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimControllerResizeError && strings.Contains(c.Message, "EXPAND_VOLUME")
		})
	})
	stopDriver()

	upgraded := newDriver(csitest.Options{}, "data")
	upgraded.ServeAt(t, s)
	r.Eventually("read the capabilities again", func() bool {
		_, body := r.Get("/debug/state")
		var state struct {
			Claims struct{ Features struct{ Expand bool } }
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		return state.Claims.Features.Expand
	})
	r.Eventually("expand", r.expanded(t, "data"))
	if volumes := upgraded.Volumes(); len(volumes) != 1 || volumes[0].Capacity != 2<<30 {
		t.Errorf("the upgraded driver was not asked: %+v", volumes)
	}
	r.Stop()
}

// TestDriverWakes ends the pause after a failure when the driver comes back.
func TestDriverWakes(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	broken := newDriver(csitest.Options{}, "data")
	broken.Inject(csitest.Fault{Method: "ControllerExpandVolume", Code: 13, Message: "broken"})
	stopDriver := broken.ServeAt(t, s)
	r := start(t, s, "--retry-interval-start=1h", "--retry-interval-max=1h")
	r.ask(t, "data")
	r.Eventually("show the error in the state", func() bool {
		_, body := r.Get("/debug/state")
		return strings.Contains(body, `"error": "Internal: broken"`)
	})
	stopDriver()
	newDriver(csitest.Options{}, "data").ServeAt(t, s)
	r.Eventually("expand", r.expanded(t, "data"))
	r.Stop()
}

// TestOptionsAreChecked runs with options that are not valid.
func TestOptionsAreChecked(t *testing.T) {
	o, err := parse("--workers=0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--workers=0") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
}

// A driver that has expanded volumes by its controller, and announces that of its node alone after a restart, has no size recorded that the volume does not have.
func TestExpandLost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	with := func() *csitest.Driver {
		d := csitest.New(csitest.Options{Name: driverName})
		d.AddVolume(csitest.Volume{ID: "vol-data", Capacity: 1 << 30})
		return d
	}
	stop := with().ServeAt(t, socket)
	r := start(t, socket)
	r.Eventually("read the capabilities", func() bool { return strings.Contains(r.Log(), `"expand":true`) })
	stop()
	lesser := with()
	lesser.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	lesser.SetNode(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	lesser.ServeAt(t, socket)
	r.ask(t, "data")
	r.Eventually("be unready", func() bool {
		_, body := r.Get("/readyz?verbose")
		return strings.Contains(body, "does not announce EXPAND_VOLUME of its controller, but did before")
	})
	r.Eventually("say so on the claim", func() bool {
		return slices.ContainsFunc(r.claim(t, "data").Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return strings.Contains(c.Message, "but did before")
		})
	})
	pv, err := r.cluster.Client().PersistentVolumes().Get(t.Context(), "pv-data", metav1.GetOptions{})
	if got := pv.Spec.Capacity[corev1.ResourceStorage]; err != nil || got.Cmp(resource.MustParse(oneGi)) != 0 {
		t.Errorf("the PersistentVolume has %s, the volume 1Gi (%v)", got.String(), err)
	}
	lesser.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	r.Eventually("expand", func() bool { return lesser.Volumes()[0].Capacity == 2<<30 })
	r.Stop()
}
