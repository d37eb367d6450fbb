package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const driver = "test.csi.longshore.example"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newClass returns a class of our driver.
func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "class-1", ResourceVersion: "3"}, Provisioner: driver}
}

// newPV returns a bound PersistentVolume of our driver.
func newPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-uid-1", UID: "pv-1", Annotations: map[string]string{volume.AnnProvisionedBy: driver}, Finalizers: []string{"kubernetes.io/pv-protection", volume.Finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "vol-1"}},
			ClaimRef:                      &corev1.ObjectReference{Namespace: "team", Name: "data", UID: "uid-1"},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

// eventLog keeps events as lines of text.
type eventLog struct {
	mu    sync.Mutex
	lines []string
}

// Normal implements events.Recorder.
func (l *eventLog) Normal(obj runtime.Object, reason, message string) {
	l.add("Normal", obj, reason, message)
}

// Warning implements events.Recorder.
func (l *eventLog) Warning(obj runtime.Object, reason, message string) {
	l.add("Warning", obj, reason, message)
}

func (l *eventLog) add(kind string, obj runtime.Object, reason, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := "?"
	if accessor, err := meta.Accessor(obj); err == nil {
		name = accessor.GetName()
	}
	l.lines = append(l.lines, fmt.Sprintf("%s %s %s: %s", kind, reason, name, message))
}

// take returns the events so far and forgets them.
func (l *eventLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// rig is a controller whose caches are filled and whose queue stands still: a test takes the steps itself.
type rig struct {
	*Controller
	t        *testing.T
	cluster  *kubetest.Cluster
	driver   *csitest.Driver
	events   *eventLog
	registry *prometheus.Registry
	// changed has the classes of volumes that are gone.
	changed []string
}

// onRig runs a test on a rig, in virtual time, with these objects in the cluster.
func onRig(t *testing.T, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	onRigWith(t, csitest.Options{}, test, objs...)
}

// onRigWith is onRig with another driver.
func onRigWith(t *testing.T, options csitest.Options, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, cluster: kubeapitest.NewCluster(objs...), driver: csitest.New(options), events: &eventLog{}, registry: prometheus.NewRegistry()}
		client, err := csiclient.New(csiclient.Config{Conn: r.driver.Conn()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Wait(quiet(t)); err != nil {
			t.Fatal(err)
		}
		api, all := kubeapitest.New(r.cluster.Client()), func() capabilities.Set { return capabilities.Of(client.Info(), capabilities.Features{}) }
		known := view.New(view.Config{Kube: api, Driver: driver, Shape: view.Shape{Attachments: true}, KeepAffinity: true, Timeout: time.Minute})
		r.Controller, err = New(Config{
			Driver: driver, Capabilities: all, Backend: backend.New(client.Controller(), 10, 10*time.Second), Kube: api, View: known, Secrets: kube.NewSecretCache(api, nil),
			VolumeChanged: func(class string, _ *corev1.VolumeNodeAffinity) { r.changed = append(r.changed, class) },
			Events:        r.events, Metrics: NewMetrics(r.registry), Workers: 10, Retry: flagset.NewRetry(), KubeTimeout: time.Minute, Drain: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		known.Volumes.OnChange(r.Changed)
		known.Attachments.OnChange(r.AttachmentChanged)
		defer known.Start(quiet(t))()
		if err := known.WaitSynced(quiet(t)); err != nil {
			t.Fatal(err)
		}
		r.driver.ResetCalls()
		test(t, r)
	})
}

// quiet returns a context for a test that does not want to see a log.
func quiet(t *testing.T) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), klog.Logger{})
}

// step takes one step for a volume.
func (r *rig) step(pv string) {
	r.t.Helper()
	if _, err := r.reconcile(quiet(r.t), pv); err != nil {
		r.t.Fatal(err)
	}
}

// watchesCatchUp lets the watches bring what was written.
func (r *rig) watchesCatchUp() { synctest.Wait() }

// deaf lets the watches of PersistentVolumes bring nothing until hear is called.
func (r *rig) deaf() {
	r.watchesCatchUp()
	r.cluster.Inject(kubetest.Fault{Verb: "watch", Resource: "persistentvolumes", Hang: true})
	r.cluster.BreakWatches()
	r.watchesCatchUp()
}

// hear ends all faults of the API, and lets the watches bring what they have missed.
func (r *rig) hear() {
	r.cluster.Heal()
	r.cluster.BreakWatches()
	time.Sleep(time.Hour) // virtual: a watch that hangs ends by its own deadline
	r.watchesCatchUp()
}

// calls returns the short names of the calls of the driver.
func (r *rig) calls() []string {
	var names []string
	for _, call := range r.driver.Calls() {
		names = append(names, call.Method)
	}
	return names
}

// deleteRequest returns the only request of DeleteVolume.
func (r *rig) deleteRequest() *csi.DeleteVolumeRequest {
	r.t.Helper()
	calls := r.driver.Calls()
	if len(calls) != 1 || calls[0].Method != "DeleteVolume" {
		r.t.Fatalf("calls %v, want one of DeleteVolume", calls)
	}
	request, _ := calls[0].Request.(*csi.DeleteVolumeRequest)
	return request
}

// writes returns what was written, as lines of text.
func (r *rig) writes() []string {
	var lines []string
	for _, w := range r.cluster.Writes() {
		line := w.Verb + " " + w.Resource + " " + w.Name
		if w.Err != nil {
			line += " failed"
		}
		lines = append(lines, line)
	}
	return lines
}

// volume returns the test PersistentVolume as the API has it, nil when there is none.
func (r *rig) volume() *corev1.PersistentVolume {
	for _, obj := range r.cluster.Objects("persistentvolumes") {
		if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Name == "pvc-uid-1" {
			return pv
		}
	}
	return nil
}

// contains fails the test unless one of the lines has all the words.
func contains(t *testing.T, reason string, lines []string, words ...string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	}) {
		t.Errorf("%s\nno line with %q in:\n%s", reason, words, strings.Join(lines, "\n"))
	}
}
