package controller

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
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/nodemode"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// rig is a controller whose caches are filled and whose queues stand still: a test takes the steps itself.
type rig struct {
	*Controller
	t        *testing.T
	cluster  *kubetest.Cluster
	driver   *csitest.Driver
	events   *eventLog
	registry *prometheus.Registry
}

// eventLog keeps events as lines of text.
type eventLog struct {
	// then, if it is set, is called with each event.
	then func(line string)

	mu    sync.Mutex
	lines []string
}

// Normal implements events.Recorder.
func (l *eventLog) Normal(obj runtime.Object, reason, message string) {
	l.add(corev1.EventTypeNormal, obj, reason, message)
}

// Warning implements events.Recorder.
func (l *eventLog) Warning(obj runtime.Object, reason, message string) {
	l.add(corev1.EventTypeWarning, obj, reason, message)
}

// add keeps one event.
func (l *eventLog) add(kind string, obj runtime.Object, reason, message string) {
	name := "?"
	if accessor, err := meta.Accessor(obj); err == nil {
		name = accessor.GetName()
	}
	line := fmt.Sprintf("%s %s %s: %s", kind, reason, name, message)
	if l.then != nil {
		l.then(line)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// take returns the events so far and forgets them.
func (l *eventLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// onRig runs a test on a rig, in virtual time, with these objects in the cluster.
func onRig(t *testing.T, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	onRigWith(t, csitest.Options{}, rigSettings(), test, objs...)
}

// onRigWith is onRig with another driver and other settings.
func onRigWith(t *testing.T, options csitest.Options, settings Settings, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, cluster: kubeapitest.NewCluster(objs...), driver: csitest.New(options),
			events: &eventLog{}, registry: prometheus.NewRegistry(),
		}
		client, err := csiclient.New(csiclient.Config{Conn: r.driver.Conn()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Wait(quiet(t)); err != nil {
			t.Fatal(err)
		}
		api := kubeapitest.New(r.cluster.Client())
		var competition Competition
		if settings.Node.Alone() {
			competition = newCompetition(settings.Node.Name, 20*time.Second, api, r.events)
		}
		r.Controller, err = New(Config{
			Competition: competition,
			Info:        client.Info, Driver: client.Controller(), Kube: api, View: viewOf(api, client.Info(), settings), Plugin: migration.Of(client.Info().Name), Events: r.events,
			Journal: journal.New(), Secrets: kube.NewSecretCache(api, nil), Metrics: NewMetrics(r.registry), Settings: settings,
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := r.view.Start(quiet(t))
		defer stop()
		if err := r.view.WaitSynced(quiet(t)); err != nil {
			t.Fatal(err)
		}
		r.driver.ResetCalls()
		test(t, r)
	})
}

// newCompetition returns the competition of an instance with the defaults of the binary, but for the pauses.
func newCompetition(node string, base time.Duration, api kubeapi.Client, recorder events.Recorder) Competition {
	return nodemode.New(nodemode.Config{Node: node, BaseDelay: base, MaxDelay: 3 * base, Nodes: api.Nodes(), Timeout: 30 * time.Second, Warn: WarnOfFailure(recorder)})
}

// newNode returns the node of an instance on each.
func newNode() view.Node {
	return view.Node{Name: "n1", Segments: map[string]string{"node": "n1"}}
}

// viewOf returns a view for a controller with these settings.
func viewOf(api kubeapi.Client, info *csiclient.Info, settings Settings) *view.View {
	return view.New(view.Config{
		Kube: api, Driver: info.Name, Plugin: migration.Of(info.Name), Shape: capabilities.ShapeOf(info, settings.Features), Node: settings.Node, Naming: settings.Naming,
		SnapshotSweep: 5 * time.Minute, KeepAffinity: true, Timeout: settings.KubeTimeout,
	})
}

// quiet returns a context for a test that does not want to see a log.
func quiet(t *testing.T) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), klog.Logger{})
}

// saveOn runs the queue of unsaved volumes for some time.
func (r *rig) saveOn(d time.Duration, meanwhile func()) {
	r.t.Helper()
	ctx, stop := context.WithCancel(quiet(r.t))
	ended := make(chan error, 1)
	go func() { ended <- r.unsaved.Run(ctx) }()
	time.Sleep(d)
	meanwhile()
	stop()
	if err := <-ended; err != nil {
		r.t.Error(err)
	}
}

// rigSettings are the defaults of the binary.
func rigSettings() Settings {
	return Settings{
		Naming: volume.Naming{Prefix: "pvc", UUIDLength: -1}, Timeout: 10 * time.Second, Workers: 10,
		Retry: flagset.NewRetry(), Topology: topology.DefaultPolicy(), Identity: "me",
		Features: capabilities.Features{Topology: true, AttributesClass: true}, Drain: 15 * time.Second, KubeTimeout: 30 * time.Second,
	}
}

// watchesCatchUp lets the watches bring what was written.
func (r *rig) watchesCatchUp() {
	r.t.Helper()
	synctest.Wait()
}

// deaf lets the watches of a resource bring nothing until hear is called.
func (r *rig) deaf(resource string) {
	r.t.Helper()
	r.watchesCatchUp()
	r.cluster.Inject(kubetest.Fault{Verb: "watch", Resource: resource, Hang: true})
	r.cluster.BreakWatches()
	r.watchesCatchUp()
}

// hear ends all faults of the API, and lets the watches bring what they have missed.
func (r *rig) hear() {
	r.t.Helper()
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
	var found []proto.Message
	for _, call := range r.driver.Calls() {
		if call.Method == "DeleteVolume" {
			found = append(found, call.Request)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%d calls of DeleteVolume, want 1", len(found))
	}
	request, _ := found[0].(*csi.DeleteVolumeRequest)
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

// volume returns the PersistentVolume of the test claim as the API has it, nil when there is none.
func (r *rig) volume() *corev1.PersistentVolume {
	for _, obj := range r.cluster.Objects("persistentvolumes") {
		if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Name == "pvc-uid-1" {
			return pv
		}
	}
	return nil
}

// claim returns the test claim as the API has it, nil when there is none.
func (r *rig) claim() *corev1.PersistentVolumeClaim {
	for _, obj := range r.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Name == "data" {
			return claim
		}
	}
	return nil
}

// waiting returns the lengths of the queues of claims and of volumes.
func (r *rig) waiting() [2]int {
	return [2]int{r.claims.State().Waiting, r.release.State().Waiting}
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
