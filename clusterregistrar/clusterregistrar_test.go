package clusterregistrar

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/clusterregistrar/internal/driverobject"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

// running is a registrar with a real socket and a real HTTP listener.
type running struct {
	*sidecartest.Running
	cluster *kubetest.Cluster
}

// start runs a registrar for the driver at the socket; the flags are added to that of the socket.
func start(t *testing.T, socket string, args ...string) *running {
	t.Helper()
	return startWith(t, kubetest.New(), socket, args...)
}

// startWith is start with an API server of the test's.
func startWith(t *testing.T, cluster *kubetest.Cluster, socket string, args ...string) *running {
	t.Helper()
	o, err := parse(append([]string{"--csi-address=" + socket}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	o.HTTP.Endpoint = sidecartest.AnyPort
	return &running{cluster: cluster, Running: sidecartest.StartComponent(t, func(ctx context.Context) error {
		return o.run(ctx, func(config *sidecar.Config) {
			inMemory(cluster.Client(), "host-1")(config)
			config.CSI.Poll = 10 * time.Millisecond
		})
	})}
}

// object returns the object, or nil.
func object(cluster *kubetest.Cluster) *storagev1.CSIDriver {
	for _, obj := range cluster.Objects("csidrivers") {
		return obj.(*storagev1.CSIDriver)
	}
	return nil
}

func (r *running) attachRequired(want bool) func() bool {
	return func() bool {
		live := object(r.cluster)
		return live != nil && *live.Spec.AttachRequired == want
	}
}

// TestHTTP compares the metrics, readiness and state of a registrar with its object.
func TestHTTP(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	csitest.New(csitest.Options{}).ServeAt(t, s)
	cluster := kubetest.New(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}}) // with attachRequired: true, the default
	r := startWith(t, cluster, s, "--driver-requires-attachment=false", "--leader-election", "--leader-election-namespace=ns")
	r.Serves(`csi_cluster_driver_registrar_problems{driver_name="test.csi.longshore.example",reason="CSIDriverImmutable"} 1`)
	r.Serves(`csi_cluster_driver_registrar_problems{driver_name="test.csi.longshore.example",reason="CSIDriverConflict"} 0`)
	r.Serves(`csi_cluster_driver_registrar_restored_fields_total{driver_name="test.csi.longshore.example"} 0`)
	r.Serves(`workqueue_adds_total{name="csi-cluster-driver-registrar-csidriver"}`)
	r.Serves(`leader_election_master_status{name="cluster-driver-registrar-leader-test-csi-longshore-example"} 1`)
	if code, body := r.Get("/readyz?verbose"); code != http.StatusOK || !strings.Contains(body, "[+]csidriver ok") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	var state struct {
		Leading   bool
		CSIDriver driverobject.State `json:"csidriver"`
	}
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	got := state.CSIDriver
	if !state.Leading || got.Driver != csitest.DefaultName || !got.Features.Publish || got.Wanted["attachRequired"] != false || len(got.Problems) != 1 || got.Queue == nil || got.Error != "" {
		t.Errorf("/debug/state: %s", body)
	}
	r.Stop()
}

// TestUpgrade has the object follow a driver that comes back with other answers: what may change changes, and what may not is reported.
func TestUpgrade(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_GET_CAPACITY}}).ServeAt(t, s)
	r := start(t, s, "--storage-capacity")
	r.Eventually("create the object", r.attachRequired(false))
	stopDriver()
	csitest.New(csitest.Options{Version: "v2"}).ServeAt(t, s)
	r.Serves(`csi_cluster_driver_registrar_problems{driver_name="test.csi.longshore.example",reason="CSIDriverImmutable"} 1`)
	if err := r.cluster.Remove("csidrivers", "", csitest.DefaultName); err != nil {
		t.Fatal(err)
	}
	r.Eventually("create the object again", r.attachRequired(true))
	r.Serves(`csi_cluster_driver_registrar_problems{driver_name="test.csi.longshore.example",reason="CSIDriverImmutable"} 0`)
	r.Stop()
}

// TestNoController runs beside the node's half of a driver, whose answers do not say whether volumes are attached: nothing is written, and the instance is not ready,
// until the driver announces a controller service.
func TestNoController(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	stopDriver := csitest.New(csitest.Options{Plugin: []csi.PluginCapability_Service_Type{}}).ServeAt(t, s)
	r := start(t, s)
	r.Eventually("not be ready", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "CONTROLLER_SERVICE") && strings.Contains(body, "--driver-requires-attachment")
	})
	if writes := r.cluster.Writes(); len(writes) > 0 {
		t.Errorf("%d writes, first: %+v", len(writes), writes[0])
	}
	stopDriver()
	csitest.New(csitest.Options{}).ServeAt(t, s)
	r.Eventually("create the object", r.attachRequired(true))
	r.Eventually("be ready", func() bool {
		code, _ := r.Get("/readyz")
		return code == http.StatusOK
	})
	r.Stop()
}

// TestNoAPIServer is not ready while the object cannot be written.
func TestNoAPIServer(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	csitest.New(csitest.Options{}).ServeAt(t, s)
	cluster := kubetest.New()
	cluster.Fail("patch", "csidrivers", errors.New("no connection"), 0)
	r := startWith(t, cluster, s)
	r.Eventually("not be ready", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "no connection")
	})
	cluster.Heal()
	r.Eventually("create the object", r.attachRequired(true))
	r.Stop()
}

// TestTwoInstances runs two without leader election: the object is created once, an edit is restored once, and then nothing is written.
func TestTwoInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		first, second := launch(t, cluster, t.Context(), "host-1", "--pod-info-mount"), launch(t, cluster, t.Context(), "host-2", "--pod-info-mount")
		time.Sleep(time.Minute)
		created := object(cluster)
		if created == nil {
			t.Fatal("there is no object")
		}
		if err := cluster.Merge("csidrivers", "", csitest.DefaultName, []byte(`{"spec":{"podInfoOnMount":false}}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if live := object(cluster); live.UID != created.UID || !*live.Spec.PodInfoOnMount {
			t.Errorf("the object is %+v", live)
		}
		if got := changes(cluster); got != 2 {
			t.Errorf("%d writes have changed something, want 2", got)
		}
		if err := errors.Join(first(), second()); err != nil {
			t.Error(err)
		}
	})
}

// changes counts the writes that have changed the object.
func changes(cluster *kubetest.Cluster) (count int) {
	for _, w := range cluster.Writes() {
		if w.Resource == "csidrivers" && w.Err == nil && !w.Unchanged {
			count++
		}
	}
	return count
}

// TestInstancesDiffer runs two with different flags, as an upgrade without leader election does for a while: they do not write as fast as they can.
func TestInstancesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		first, second := launch(t, cluster, t.Context(), "host-1", "--pod-info-mount"), launch(t, cluster, t.Context(), "host-2", "--pod-info-mount=false")
		time.Sleep(10 * time.Minute)
		if got, most := changes(cluster), 2*(6*10+1); got < 10 || got > most {
			t.Errorf("%d writes have changed something in ten minutes, want at most %d", got, most)
		}
		if err := first(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if live := object(cluster); *live.Spec.PodInfoOnMount {
			t.Errorf("the instance that is left has not won: %+v", live.Spec)
		}
		if err := second(); err != nil {
			t.Error(err)
		}
	})
}

// apply is a server-side apply of others.
func apply(t *testing.T, cluster *kubetest.Cluster, manager, spec string) {
	t.Helper()
	configuration := `{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"` + csitest.DefaultName + `"},"spec":` + spec + `}`
	_, err := cluster.Client().CSIDrivers().Patch(t.Context(), csitest.DefaultName, types.ApplyPatchType, []byte(configuration), metav1.PatchOptions{FieldManager: manager, Force: new(true)})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTakenOver leaves a field to a manager that has applied it by force, and takes it back when an administrator writes it in the registrar's name, as the event says.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		stop := launch(t, cluster, t.Context(), "host-1", "--pod-info-mount", "--requires-republish")
		time.Sleep(time.Minute)
		apply(t, cluster, "argo", `{"podInfoOnMount":false}`)
		time.Sleep(time.Hour)
		if live := object(cluster); *live.Spec.PodInfoOnMount || !*live.Spec.RequiresRepublish {
			t.Errorf("the object is %+v", live.Spec)
		}
		if got := messages(cluster); !strings.Contains(got, `"argo" (Apply)`) {
			t.Errorf("events:\n%s", got)
		}
		apply(t, cluster, "argo", `{"requiresRepublish":true}`) // it drops the field, and shares another
		time.Sleep(time.Minute)
		if live := object(cluster); !*live.Spec.PodInfoOnMount {
			t.Errorf("a field that no manager has is not set: %+v", live.Spec)
		}

		apply(t, cluster, "argo", `{"podInfoOnMount":false}`)
		time.Sleep(time.Minute)
		_, err := cluster.Client().CSIDrivers().Patch(t.Context(), csitest.DefaultName, types.MergePatchType, []byte(`{"spec":{"podInfoOnMount":true}}`), metav1.PatchOptions{FieldManager: driverobject.Manager})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		stop = launch(t, cluster, t.Context(), "host-1", "--pod-info-mount=false")
		time.Sleep(time.Minute)
		if live := object(cluster); *live.Spec.PodInfoOnMount {
			t.Errorf("a field that was handed over does not follow the flag: %+v", live.Spec)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// messages returns those of all events, each on a line.
func messages(cluster *kubetest.Cluster) string {
	var b strings.Builder
	for _, obj := range cluster.Objects("events") {
		b.WriteString(obj.(*corev1.Event).Message + "\n")
	}
	return b.String()
}

// TestRace has others write a field after the object was read. What they have is not taken, and the event has no time in it, which differs each time.
func TestRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}})
		cluster.Inject(kubetest.Fault{Verb: "patch", Resource: "csidrivers", Times: 1, Do: func() {
			if err := cluster.Merge("csidrivers", "", csitest.DefaultName, []byte(`{"spec":{"nodeAllocatableUpdatePeriodSeconds":20}}`)); err != nil {
				t.Error(err)
			}
		}})
		stop := launch(t, cluster, t.Context(), "host-1", "--node-allocatable-update-period=1m")
		time.Sleep(time.Minute)
		if live := object(cluster); *live.Spec.NodeAllocatableUpdatePeriodSeconds != 20 {
			t.Errorf("the object is %+v", live.Spec)
		}
		for _, want := range []string{
			`apply CSIDriver "test.csi.longshore.example": other field managers have changed fields since the object was read` + "\n",
			"spec.nodeAllocatableUpdatePeriodSeconds is 20 and not 60",
		} {
			if got := messages(cluster); !strings.Contains(got, want) {
				t.Errorf("events lack %q:\n%s", want, got)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestOptionsAreChecked runs with options that are not valid.
func TestOptionsAreChecked(t *testing.T) {
	o, err := parse("--delete-on-exit", "--leader-election")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--delete-on-exit") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
}
