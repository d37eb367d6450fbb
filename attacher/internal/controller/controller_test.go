package controller

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/logtest"
)

// notebook is a Recorder that keeps the events.
type notebook struct {
	mu    sync.Mutex
	lines []string
}

// Warning implements Recorder.
func (n *notebook) Warning(obj runtime.Object, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf("%T %s: %s", obj, reason, message))
}

func (n *notebook) read() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

// storage is a driver whose answers are functions.
type storage struct {
	csi.ControllerClient
	publish   func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error)
	unpublish func(*csi.ControllerUnpublishVolumeRequest) error
}

func (s *storage) ControllerPublishVolume(
	_ context.Context, r *csi.ControllerPublishVolumeRequest, _ ...grpc.CallOption,
) (*csi.ControllerPublishVolumeResponse, error) {
	if s.publish == nil {
		return &csi.ControllerPublishVolumeResponse{}, nil
	}
	return s.publish(r)
}

func (s *storage) ControllerUnpublishVolume(
	_ context.Context, r *csi.ControllerUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if s.unpublish == nil {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return &csi.ControllerUnpublishVolumeResponse{}, s.unpublish(r)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// bench is a running controller in a bubble.
type bench struct {
	*Controller
	t       *testing.T
	cluster *kubetest.Cluster
	driver  *storage
	notes   *notebook
	ctx     context.Context // of the controller, with its log
	stop    func()
	workers int         // 0: 2
	lost    atomic.Bool // the driver does not announce PUBLISH_UNPUBLISH_VOLUME
}

// newBench runs a controller on the objects until the test ends.
func newBench(t *testing.T, objs ...runtime.Object) *bench {
	t.Helper()
	b := &bench{t: t, cluster: kubetest.New(objs...), driver: &storage{}, notes: &notebook{}}
	b.start()
	return b
}

// start begins a life of the controller.
func (b *bench) start() {
	b.t.Helper()
	b.Controller = New(Config{
		Driver: testDriver, Kube: b.cluster.Client(), CSI: b.driver, Events: b.notes, Secrets: kube.NewSecretCache(b.cluster.Client(), nil),
		Features:    func() Features { return Features{Publish: !b.lost.Load()} },
		Workers:     stdcmp.Or(b.workers, 2),
		Retry:       flagset.Retry{Start: time.Second, Max: time.Minute},
		CSITimeout:  10 * time.Second,
		KubeTimeout: 5 * time.Second,
		NodeRetry:   15 * time.Second,
		ErrorCode:   true,
	})
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	b.ctx = ctx
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("an ordinary stop ended in %v", err)
		}
	}
}

func (b *bench) apply(objs ...runtime.Object) {
	b.t.Helper()
	if err := b.cluster.Apply(objs...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) get(name string) *storagev1.VolumeAttachment {
	b.t.Helper()
	va, err := b.cluster.Client().VolumeAttachments().Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return va
}

func (b *bench) remove(name string) {
	b.t.Helper()
	if err := b.cluster.Remove("volumeattachments", "", name); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) exists(name string) bool {
	_, err := b.cluster.Client().VolumeAttachments().Get(b.t.Context(), name, metav1.GetOptions{})
	return err == nil
}

// fresh returns a VolumeAttachment for the API to number.
func fresh(options ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	return newVA(append(options, vaUID(""), vaVersion(""))...)
}

func freshPV(options ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return newPV(append(options, func(pv *corev1.PersistentVolume) { pv.UID = "" })...)
}

func named(name string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.Name = name }
}

// TestAttachFailures has one row for each way in which attaching fails before or behind the driver.
func TestAttachFailures(t *testing.T) {
	publishTooMuch := func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"k": strings.Repeat("x", maxMetadata)}}, nil
	}
	node := func(annotation string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{AnnotationNodeIDs: annotation}}}
	}
	tests := map[string]struct {
		reason  string
		objs    []runtime.Object
		fault   kubetest.Fault
		publish func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error)
		want    string // part of the message; "": nothing is written
	}{
		"TooMuchContext": {
			reason: "the driver attached, but its answer cannot be stored",
			objs:   []runtime.Object{freshPV(), newCSINode(testDriver, "id-1")}, publish: publishTooMuch,
			want: "publish context is too large: 262145 bytes, a VolumeAttachment holds at most 262144",
		},
		"NoSecret": {
			reason: "a secret that does not exist",
			objs:   []runtime.Object{freshPV(pvSecret("ns", "keys")), newCSINode(testDriver, "id-1")},
			want:   `get secret ns/keys: secrets "keys" not found`,
		},
		"BrokenAnnotation": {
			reason: "a Node annotation that nobody can read",
			objs:   []runtime.Object{freshPV(), node("{")},
			want:   "read annotation " + AnnotationNodeIDs,
		},
		"VolumeForbidden": {
			reason: "a volume that is in no cache and may not be read",
			objs:   []runtime.Object{newCSINode(testDriver, "id-1")},
			fault:  kubetest.Fault{Verb: "get", Resource: "persistentvolumes", Err: apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pv-1", errors.New("no right"))},
			want:   `get PersistentVolume "pv-1"`,
		},
		"NodeAway": {
			reason: "the API server is away, which is nothing for the status",
			objs:   []runtime.Object{freshPV()},
			fault:  kubetest.Fault{Verb: "get", Resource: "nodes", Err: apierrors.NewServiceUnavailable("away")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, tt.objs...)
				defer b.stop()
				b.driver.publish = tt.publish
				if tt.fault.Err != nil {
					b.cluster.Inject(tt.fault)
				}
				b.apply(fresh())
				pass(500 * time.Millisecond)
				failure := b.get("va-1").Status.AttachError
				if (failure != nil) != (tt.want != "") || failure != nil && !strings.Contains(failure.Message, tt.want) {
					t.Errorf("%s: attachError %+v, want %q in it", tt.reason, failure, tt.want)
				}
				if notes := b.notes.read(); (len(notes) > 0) != (tt.want != "") {
					t.Errorf("%s: events %q", tt.reason, notes)
				}
			})
		})
	}
}

func TestDetachFailures(t *testing.T) {
	attached := []func(*storagev1.VolumeAttachment){vaFinalized, vaAttached}
	tests := map[string]struct {
		reason    string
		va        []func(*storagev1.VolumeAttachment)
		objs      []runtime.Object
		fault     kubetest.Fault
		unpublish func(*csi.ControllerUnpublishVolumeRequest) error
		want      string
		code      *int32
	}{
		"Driver": {
			reason: "NOT_FOUND is an error: the volume may be somewhere (CSI v1.13, ControllerUnpublishVolume)",
			objs:   []runtime.Object{freshPV(), newCSINode(testDriver, "id-1")},
			unpublish: func(*csi.ControllerUnpublishVolumeRequest) error {
				return status.Error(codes.NotFound, "no such node")
			},
			want: "NotFound: no such node", code: new(int32(codes.NotFound)),
		},
		"NoNode": {
			reason: "nobody knows where the volume was attached to",
			objs:   []runtime.Object{freshPV()},
			want:   "is not registered on the node",
		},
		"NoSecret": {
			reason: "the recorded secret is gone",
			va:     []func(*storagev1.VolumeAttachment){vaAnnotated(AnnotationNodeID, "id-1", AnnotationVolumeHandle, "vol-1", AnnotationPublishSecret, "ns/keys")},
			want:   `get secret ns/keys: secrets "keys" not found`,
		},
		"VolumeForbidden": {
			reason: "no handle was recorded, and the volume may not be read",
			objs:   []runtime.Object{newCSINode(testDriver, "id-1")},
			fault:  kubetest.Fault{Verb: "get", Resource: "persistentvolumes", Err: apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pv-1", errors.New("no right"))},
			want:   `get PersistentVolume "pv-1"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, append(tt.objs, fresh(append(attached, tt.va...)...))...)
				defer b.stop()
				b.driver.unpublish = tt.unpublish
				if tt.fault.Err != nil {
					b.cluster.Inject(tt.fault)
				}
				b.remove("va-1")
				pass(500 * time.Millisecond)
				failure := b.get("va-1").Status.DetachError
				if failure == nil || !strings.Contains(failure.Message, tt.want) {
					t.Fatalf("%s: detachError %+v, want %q in it", tt.reason, failure, tt.want)
				}
				if diff := cmp.Diff(tt.code, failure.ErrorCode); diff != "" {
					t.Errorf("%s: code (-want +got):\n%s", tt.reason, diff)
				}
				if !b.get("va-1").Status.Attached {
					t.Errorf("%s: what could not be detached must still say attached", tt.reason)
				}
			})
		})
	}
}

// TestContextReplaced attaches again with another answer of the driver: nothing of the first may survive.
func TestContextReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		defer b.stop()
		answer := map[string]string{"old": "1", "both": "1"}
		b.driver.publish = func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			return &csi.ControllerPublishVolumeResponse{PublishContext: answer}, nil
		}
		b.apply(fresh())
		pass(time.Second)
		synctest.Wait()
		answer = map[string]string{"both": "2"}
		b.forced.Store(b.get("va-1").UID, nil)
		b.DriverChanged(b.ctx)
		synctest.Wait()
		if diff := cmp.Diff(answer, b.get("va-1").Status.AttachmentMetadata); diff != "" {
			t.Errorf("context (-want +got):\n%s", diff)
		}
		if _, ok := b.forced.Load(b.get("va-1").UID); ok {
			t.Error("a success must end the force")
		}
	})
}

// TestPoolsAreSeparate fills one pool with calls that hang and looks whether the other works.
func TestPoolsAreSeparate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		objs := []runtime.Object{freshPV(), newCSINode(testDriver, "id-1")}
		for i := range 10 {
			objs = append(objs, fresh(vaFinalized, vaAttached, named(fmt.Sprintf("old-%d", i))))
		}
		b := newBench(t, objs...)
		defer b.stop()
		b.driver.unpublish = func(*csi.ControllerUnpublishVolumeRequest) error {
			<-release
			return nil
		}
		for i := range 10 {
			b.remove(fmt.Sprintf("old-%d", i))
		}
		synctest.Wait()
		b.apply(fresh(named("new")))
		synctest.Wait()
		if !b.get("new").Status.Attached {
			t.Error("detaching keeps volumes from being attached")
		}
		if running := b.running(); len(running) != 1 || running[0].Step != "detach" || running[0].Node != "node-1" {
			t.Errorf("running = %+v, want one of two workers for one node", running)
		}
		close(release)
		synctest.Wait()
		for i := range 10 {
			if b.exists(fmt.Sprintf("old-%d", i)) {
				t.Errorf("old-%d was not detached", i)
			}
		}
	})
}

// TestHangingServer has API writes that never return: they end at their deadline and are tried again.
func TestHangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		defer b.stop()
		b.cluster.Inject(kubetest.Fault{Verb: "patch", Resource: "volumeattachments", Hang: true, Times: 1})
		b.apply(fresh())
		pass(4 * time.Second)
		if b.get("va-1").Status.Attached {
			t.Fatal("the first write hangs")
		}
		pass(5 * time.Second)
		if !b.get("va-1").Status.Attached {
			t.Error("the write was not tried again after its deadline")
		}
	})
}

// TestDrain stops the controller in the middle of a call: the call ends and its outcome is saved.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		b.driver.publish = func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			pass(3 * time.Second)
			return &csi.ControllerPublishVolumeResponse{}, nil
		}
		b.apply(fresh())
		pass(time.Second)
		b.stop()
		if !b.get("va-1").Status.Attached {
			t.Error("the outcome of a call that had begun is lost")
		}
	})
}

// TestStopBeforeSync ends the controller while the API server does not answer.
func TestStopBeforeSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, cluster: kubetest.New()}
		b.cluster.Inject(kubetest.Fault{Resource: "csinodes", Err: apierrors.NewServiceUnavailable("away")})
		c := New(Config{Driver: testDriver, Kube: b.cluster.Client(), Features: func() Features { return Features{} }, Workers: 1})
		ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), time.Minute)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Errorf("an ordinary stop ended in %v", err)
		}
	})
}

// TestCacheThatCannotBeFilled: the right to list CSINodes is missing, so nothing is ever attached; readiness and log name the kind.
func TestCacheThatCannotBeFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		cluster := kubetest.New()
		cluster.Inject(kubetest.Fault{Resource: "csinodes", Err: apierrors.NewForbidden(storagev1.Resource("csinodes"), "", errors.New("no right"))})
		c := New(Config{Driver: testDriver, Kube: cluster.Client(), Features: func() Features { return Features{} }, Workers: 1})
		if err := c.Synced(); err != nil {
			t.Errorf("an instance that does not lead is ready: %v", err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log)))))
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		pass(time.Minute)
		if err := c.Synced(); err == nil || !strings.Contains(err.Error(), "CSINode") || strings.Contains(err.Error(), "PersistentVolume") {
			t.Errorf("not synced: %v, want an error that names CSINode only", err)
		}
		cluster.Heal()
		pass(5 * time.Minute)
		if err := c.Synced(); err != nil {
			t.Errorf("all lists can be read, but: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if text := log.String(); !strings.Contains(text, `"Waiting for the first list from the API server"`) || !strings.Contains(text, "kinds=[\"CSINode\"]") {
			t.Errorf("the log does not name what is waited for:\n%s", text)
		}
	})
}

func TestInvalidConfig(t *testing.T) {
	c := New(Config{Driver: testDriver, Kube: kubetest.New().Client(), Workers: -1, Features: func() Features { return Features{} }})
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "workers -1") {
		t.Errorf("got %v, want an error that names the workers", err)
	}
}

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := fresh(named("va-0"), func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other" })
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"), foreign)
		defer b.stop()
		b.driver.publish = func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			return nil, status.Error(codes.Internal, "broken")
		}
		b.driver.unpublish = func(*csi.ControllerUnpublishVolumeRequest) error { return status.Error(codes.Internal, "stuck") }
		b.apply(fresh(named("va-2")), fresh(named("va-1")), fresh(named("va-3"), vaFinalized, vaAttached), fresh(named("va-4"), vaAttached))
		b.remove("va-3")
		pass(100 * time.Millisecond)
		want := State{
			Driver: testDriver, Features: Features{Publish: true}, Running: []Operation{},
			Waiting: []Waiting{
				{Attachment: "va-1", Node: "node-1", Step: "attach", Error: "Internal: broken"},
				{Attachment: "va-2", Node: "node-1", Step: "attach", Error: "Internal: broken"},
				{Attachment: "va-3", Node: "node-1", Step: "detach", Error: "Internal: stuck"},
			},
		}
		state, ok := b.State().(State)
		if !ok || state.Queue == nil {
			t.Fatalf("the state is %+v", b.State())
		}
		for i, key := range []string{"va-1", "va-2", "va-3"} {
			if f := state.Queue.Failures[i]; f.Key != key || f.Failures != 1 || !strings.HasPrefix(f.Error, want.Waiting[i].Step+" volume") || !f.Next.After(time.Now()) {
				t.Errorf("of %s, the queue says %+v", key, f)
			}
		}
		state.Queue = nil
		if diff := cmp.Diff(want, state); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	})
}

// TestCorrections counts what a comparison with the driver's list has found.
func TestCorrections(t *testing.T) {
	registry := prometheus.NewRegistry()
	newCorrections(registry, testDriver)
	var r resync
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	lost := []expectation{expected("a", true)}
	if sure := r.note(3, lost, nil); len(sure) != 0 || r.state().Suspects != 1 || r.state().Compared != 3 {
		t.Errorf("first: %v, %+v", sure, r.state())
	}
	if sure := r.note(0, nil, errors.New("away")); len(sure) != 0 || r.state().Error != "away" || r.state().Suspects != 1 {
		t.Errorf("a list that failed must neither confirm nor clear: %v, %+v", sure, r.state())
	}
	if sure := r.note(3, lost, nil); len(sure) != 1 || r.state().Total != 1 || r.state().Suspects != 0 || r.state().Error != "" {
		t.Errorf("second: %v, %+v", sure, r.state())
	}
	want := `
# HELP csi_attacher_reconcile_corrections_total VolumeAttachments that contradicted ListVolumes twice in a row and were attached again, by their status.attached.
# TYPE csi_attacher_reconcile_corrections_total counter
csi_attacher_reconcile_corrections_total{attached="false",driver_name="hostpath.csi.example"} 0
csi_attacher_reconcile_corrections_total{attached="true",driver_name="hostpath.csi.example"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// BenchmarkAttachDetach measures one volume's way there and back, and counts the API writes.
func BenchmarkAttachDetach(b *testing.B) {
	cluster := kubetest.New(freshPV(), newCSINode(testDriver, "id-1"))
	c := New(Config{
		Driver: testDriver, Kube: cluster.Client(), CSI: &storage{}, Events: &notebook{}, Features: func() Features { return Features{Publish: true} },
		Workers: 10, Retry: flagset.NewRetry(), CSITimeout: time.Minute, KubeTimeout: time.Minute, NodeRetry: time.Minute,
	})
	changed := make(chan *storagev1.VolumeAttachment, 16)
	c.vas.OnChange(func(_, after *storagev1.VolumeAttachment) { changed <- after })
	ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	await := func(ok func(*storagev1.VolumeAttachment) bool) {
		for va := range changed {
			if ok(va) {
				return
			}
		}
	}
	cluster.ResetWrites()
	b.ReportAllocs()
	for b.Loop() {
		if err := cluster.Apply(fresh()); err != nil {
			b.Fatal(err)
		}
		await(func(va *storagev1.VolumeAttachment) bool { return va != nil && va.Status.Attached })
		if err := cluster.Remove("volumeattachments", "", "va-1"); err != nil {
			b.Fatal(err)
		}
		await(func(va *storagev1.VolumeAttachment) bool { return va == nil })
	}
	b.ReportMetric(float64(len(cluster.Writes()))/float64(b.N), "writes/op")
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}
