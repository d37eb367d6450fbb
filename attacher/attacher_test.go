package attacher

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

const driverName = "test.csi.longshore.example"

// running is an attacher with a real socket and a real HTTP listener.
type running struct {
	*sidecartest.Running
	cluster *kubetest.Cluster
}

// start runs an attacher for the driver at the socket; the flags are added to that of the socket.
func start(t *testing.T, socket string, args ...string) *running {
	t.Helper()
	o, err := parse(append([]string{"--csi-address=" + socket}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubetest.New(testCSINode(), testPV())
	return &running{Running: sidecartest.Start(t, inMemory(o, cluster.Client(), "host-1")), cluster: cluster}
}

// inMemory configures an attacher for an API server in memory.
func inMemory(o Options, client kube.Client, host string) sidecar.Config {
	config := o.sidecar()
	config.Client, config.Host = client, host
	return config
}

func testCSINode() *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: "id-a"}}},
	}
}

func testPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-1"},
			},
		},
	}
}

func testVA(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "node-a",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-1")},
		},
	}
}

// newDriver returns a driver that has vol-1.
func newDriver(o csitest.Options) *csitest.Driver {
	o.Name = driverName
	d := csitest.New(o)
	d.AddVolume(csitest.Volume{ID: "vol-1"})
	return d
}

func (r *running) attached(t *testing.T, name string) func() bool {
	t.Helper()
	return func() bool {
		va, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && va.Status.Attached
	}
}

// TestHTTP attaches a volume and looks at what is served about it.
func TestHTTP(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	newDriver(csitest.Options{}).ServeAt(t, s)
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("attach", r.attached(t, "va-1"))

	_, metrics := r.Get("/metrics")
	for _, part := range []string{
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume"} 1`,
		`workqueue_adds_total{name="csi-attacher-va"}`, `workqueue_adds_total{name="csi-attacher-pv"}`,
		`workqueue_oldest_item_age_seconds{name="csi-attacher-va"}`,
		`leader_election_master_status{name="external-attacher-leader-test-csi-longshore-example"} 1`,
	} {
		if !strings.Contains(metrics, part) {
			t.Errorf("/metrics lacks %s in:\n%s", part, metrics)
		}
	}
	if code, body := r.Get("/readyz?verbose"); code != http.StatusOK || !strings.Contains(body, "[+]publish-capability ok") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	var state struct {
		Leading     bool
		Attachments struct{ Driver string }
	}
	if _, body := r.Get("/debug/state"); json.Unmarshal([]byte(body), &state) != nil || !state.Leading || state.Attachments.Driver != driverName {
		t.Errorf("/debug/state: %s", body)
	}
	r.Stop()
}

// TestMigratedLabel attaches a volume of the in-tree plugin that the driver replaces, one that the VolumeAttachment describes,
// and one of the driver's own: the metric separates them.
func TestMigratedLabel(t *testing.T) {
	const ebs = "ebs.csi.aws.com"
	driver := csitest.New(csitest.Options{Name: ebs})
	node := testCSINode()
	node.Spec.Drivers[0].Name = ebs
	own, plugin := testPV(), testPV()
	own.Name, own.Spec.CSI.Driver, own.Spec.CSI.VolumeHandle = "own", ebs, "vol-own"
	plugin.Name, plugin.Spec.CSI = "plugin", nil
	plugin.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-plugin"}
	sources := map[string]storagev1.VolumeAttachmentSource{
		"own":    {PersistentVolumeName: &own.Name},
		"plugin": {PersistentVolumeName: &plugin.Name},
		"inline": {InlineVolumeSpec: &corev1.PersistentVolumeSpec{
			AccessModes: own.Spec.AccessModes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: ebs, VolumeHandle: "vol-inline"},
			},
		}},
	}
	s := filepath.Join(t.TempDir(), "s")
	driver.ServeAt(t, s)
	r := start(t, s)
	if err := r.cluster.Apply(node, own, plugin); err != nil {
		t.Fatal(err)
	}
	for name, source := range sources {
		driver.AddVolume(csitest.Volume{ID: "vol-" + name})
		va := testVA(name)
		va.Spec.Attacher, va.Spec.Source = ebs, source
		if err := r.cluster.Apply(va); err != nil {
			t.Fatal(err)
		}
		r.Eventually("attach "+name, r.attached(t, name))
		if err := r.cluster.Remove("volumeattachments", "", name); err != nil {
			t.Fatal(err)
		}
		r.Eventually("detach "+name, func() bool {
			_, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	_, body := r.Get("/metrics")
	for _, call := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
		for migrated, want := range map[bool]int{true: 2, false: 1} {
			line := fmt.Sprintf("csi_sidecar_operations_seconds_count{driver_name=%q,grpc_status_code=\"OK\",method_name=\"/csi.v1.Controller/%s\",migrated=\"%t\"} %d\n",
				ebs, call, migrated, want)
			if !strings.Contains(body, line) {
				t.Errorf("/metrics lacks %s in:\n%s", line, body)
			}
		}
	}
	r.Stop()
}

// TestDriverComesBack upgrades a driver that cannot attach to one that can.
func TestDriverComesBack(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}).ServeAt(t, s)
	r := start(t, s)
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("mark attached", r.attached(t, "va-1"))
	stopDriver()

	upgraded := newDriver(csitest.Options{})
	upgraded.ServeAt(t, s)
	r.Eventually("read the capabilities again", func() bool {
		_, body := r.Get("/debug/state")
		var state struct {
			Attachments struct {
				Features struct{ Publish, Readonly, SingleNodeMultiWriter, ListPublished bool }
			}
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		return state.Attachments.Features.Publish
	})
	if err := r.cluster.Apply(testVA("va-2")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("attach", r.attached(t, "va-2"))
	if volumes := upgraded.Volumes(); len(volumes) != 1 || len(volumes[0].Nodes) != 1 {
		t.Errorf("the upgraded driver was not asked: %+v", volumes)
	}
	r.Stop()
}

// TestLostCapabilityIsReported replaces a driver that has attached a volume by one that announces nothing yet: nothing is
// written, users learn of it, and the capabilities are read again although the connection stays.
func TestLostCapabilityIsReported(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := newDriver(csitest.Options{}).ServeAt(t, s)
	r := start(t, s)
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("attach", r.attached(t, "va-1"))
	r.cluster.ResetWrites()
	stopDriver()
	starting := newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}})
	starting.ServeAt(t, s)
	r.Eventually("notice the loss", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "publish-capability failed") && strings.Contains(body, "PUBLISH_UNPUBLISH_VOLUME")
	})
	const lost = `csi_attacher_publish_capability_lost{driver_name="test.csi.longshore.example"} `
	if _, body := r.Get("/metrics"); !strings.Contains(body, lost+"1") {
		t.Errorf("metrics lack %s1", lost)
	}
	if writes := r.cluster.Writes(); len(writes) > 0 {
		t.Errorf("%d writes, first: %+v", len(writes), writes[0])
	}
	starting.SetController(csitest.AllController()...)
	r.Eventually("notice the return", func() bool {
		code, _ := r.Get("/readyz")
		return code == http.StatusOK
	})
	if _, body := r.Get("/metrics"); !strings.Contains(body, lost+"0") {
		t.Errorf("metrics lack %s0", lost)
	}
	r.Stop()
}

// TestDriverWakes ends the pause after a failure when the driver comes back.
func TestDriverWakes(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	broken := newDriver(csitest.Options{})
	broken.Inject(csitest.Fault{Method: "ControllerPublishVolume", Code: 13, Message: "broken"})
	stopDriver := broken.ServeAt(t, s)
	r := start(t, s, "--retry-interval-start=1h", "--retry-interval-max=1h")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("report the error", func() bool {
		va, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), "va-1", metav1.GetOptions{})
		return err == nil && va.Status.AttachError != nil
	})
	r.Eventually("say what is waited for", func() bool {
		_, body := r.Get("/debug/state")
		return strings.Contains(body, `"error": "Internal: broken"`) && strings.Contains(body, `"failures": `) && strings.Contains(body, `"next": "`)
	})
	stopDriver()
	newDriver(csitest.Options{}).ServeAt(t, s)
	r.Eventually("attach", r.attached(t, "va-1"))
	r.Stop()
}

// TestElectedAgain takes the Lease from the leader. The same process is elected again, with the same metrics.
func TestElectedAgain(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	newDriver(csitest.Options{}).ServeAt(t, s)
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns",
		"--leader-election-lease-duration=2s", "--leader-election-renew-deadline=1s", "--leader-election-retry-period=100ms")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.Eventually("attach", r.attached(t, "va-1"))
	const lease = "external-attacher-leader-test-csi-longshore-example"
	if err := r.cluster.Merge("leases", "ns", lease, []byte(`{"spec":{"holderIdentity":"thief","leaseDurationSeconds":3600}}`)); err != nil {
		t.Fatal(err)
	}
	r.Serves(`leader_election_master_status{name="` + lease + `"} 0`)
	if err := errors.Join(r.cluster.Apply(testVA("va-2")), r.cluster.Merge("leases", "ns", lease, []byte(`{"spec":{"holderIdentity":""}}`))); err != nil {
		t.Fatal(err)
	}
	r.Eventually("attach in the second term", r.attached(t, "va-2"))
	r.Serves(`workqueue_oldest_item_age_seconds{name="csi-attacher-va"}`)
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
