package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// attachNodes is the number of nodes that volumes are attached to.
	attachNodes = 100
	// hungVolumes are detached from one node in calls that hang, while otherVolumes are attached to other nodes, and detached from others.
	hungVolumes, otherVolumes = 500, 10
	hungNode                  = "hung.example.com"
)

// attachCase is a way to start both programs.
type attachCase struct {
	name string
	n    int
	args map[string][]string // by program
}

// BenchmarkAttach gives VolumeAttachments to kubernetes-csi's attacher and to ours in turn, and deletes them: with the default flags, with
// which kubernetes-csi's limits its own requests to 5 per second, and with this limit lifted; ours has none. All objects are there before the
// program is started, and the time begins with its first call for a volume. The least controller shows what the API server takes at most. Then the benchmark measures single operations beside calls that hang for one node.
func BenchmarkAttach(b *testing.B) {
	both, n := programs(b, "csi-attacher"), benchSetting(b, "N", 1000)
	lifted := map[string][]string{"upstream": {"--kube-api-qps=1000", "--kube-api-burst=1000"}}
	for _, tc := range []attachCase{{"DefaultFlags", max(1, n/10), nil}, {"LimitsLifted", n, lifted}} {
		b.Run(fmt.Sprintf("%s/%dVolumes", tc.name, tc.n), func(b *testing.B) {
			c := newAttachContest(b, tc.n)
			var results [2]attachedAll
			for b.Loop() {
				c.attachAll(both[0], tc, &results[0])
				if tc.args != nil {
					c.leastAttachments(tc.n)
				}
				c.attachAll(both[1], tc, &results[1])
			}
			compare(b, results[0].figures(), results[1].figures())
		})
	}
	b.Run(fmt.Sprintf("BesideHangingCalls/%dHung", hungVolumes), func(b *testing.B) {
		c := newAttachContest(b, hungVolumes+2*otherVolumes)
		c.driver.Inject(csitest.Fault{Method: "ControllerUnpublishVolume", Match: onHungNode, Hang: true})
		for _, method := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
			c.driver.Inject(csitest.Fault{Method: method, Delay: 200 * time.Millisecond})
		}
		var results [2]besideHung
		for b.Loop() {
			for i, p := range both {
				// The calls hang for a second each: with the default of 15, kubernetes-csi's would take a quarter of an hour.
				c.attachBeside(p, append([]string{"--timeout=1s"}, lifted[p.name]...), &results[i])
			}
		}
		compare(b, results[0].figures(), results[1].figures())
	})
}

func onHungNode(request proto.Message) bool {
	unpublish, ok := request.(*csi.ControllerUnpublishVolumeRequest)
	return ok && unpublish.GetNodeId() == hungNode
}

// attachContest is a contest of attachers, with volumes and nodes.
type attachContest struct {
	*contest
	volumes int
	times   *attachTimes
}

func newAttachContest(b *testing.B, volumes int) *attachContest {
	b.Helper()
	c := &attachContest{volumes: volumes, contest: newContest(b, bed, csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	}})}
	c.hold("kube-controller-manager", "kube-scheduler") // they would detach volumes that no pod uses
	c.times = watchAttachments(b, c)
	for _, method := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
		c.driver.Inject(csitest.Fault{Method: method, Match: c.times.call})
	}
	nodes := append([]string{hungNode}, make([]string, attachNodes)...)
	for i := range attachNodes {
		nodes[i+1] = nodeName(i)
	}
	b.Cleanup(func() {
		_ = each(context.Background(), len(nodes), func(ctx context.Context, i int) error {
			return c.Client.StorageV1().CSINodes().Delete(ctx, nodes[i], metav1.DeleteOptions{})
		})
	})
	err := each(b.Context(), len(nodes), func(ctx context.Context, i int) error {
		_, err := c.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: nodes[i]}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: c.name, NodeID: nodes[i]}}},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range volumes {
		c.driver.AddVolume(csitest.Volume{ID: handleOf(i)})
	}
	return c
}

func handleOf(i int) string { return fmt.Sprintf("vol-%d", i) }

// volumeOf is the name of a PersistentVolume, and of its VolumeAttachment.
func (c *attachContest) volumeOf(i int) string { return fmt.Sprintf("%s-%d", c.Namespace, i) }

// addVolumes creates all PersistentVolumes.
func (c *attachContest) addVolumes() {
	c.b.Helper()
	err := each(c.b.Context(), c.volumes, func(ctx context.Context, i int) error {
		claim := testbed.Claim(metav1.NamespaceDefault, fmt.Sprintf("claim-%d", i), c.class)
		claim.Spec.VolumeName, claim.UID = c.volumeOf(i), types.UID(fmt.Sprint(i))
		volume := boundVolume(claim, c.name)
		volume.Spec.CSI.VolumeHandle = handleOf(i)
		_, err := c.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		c.b.Fatal(err)
	}
}

// ask creates the VolumeAttachments of the volumes from the first to before the last.
func (c *attachContest) ask(first, last int, node func(i int) string) {
	c.b.Helper()
	err := each(c.b.Context(), last-first, func(ctx context.Context, k int) error {
		name := c.volumeOf(first + k)
		c.times.note(name, time.Now())
		_, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: c.name, NodeName: node(first + k), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		c.b.Fatal(err)
	}
}

// detach deletes the VolumeAttachments of the volumes from the first to before the last.
func (c *attachContest) detach(first, last int) {
	c.b.Helper()
	err := each(c.b.Context(), last-first, func(ctx context.Context, k int) error {
		c.times.note(c.volumeOf(first+k), time.Now())
		return c.Client.StorageV1().VolumeAttachments().Delete(ctx, c.volumeOf(first+k), metav1.DeleteOptions{})
	})
	if err != nil {
		c.b.Fatal(err)
	}
}

// await waits until the volumes from the first to before the last are attached, or detached, and returns when that was, by volume.
func (c *attachContest) await(what attachState, first, last int) (at []time.Time) {
	c.b.Helper()
	for i := first; i < last; i++ {
		for {
			when, ok := c.times.when(c.volumeOf(i), what)
			if ok {
				at = append(at, when)
				break
			}
			select {
			case <-c.times.changed:
			case <-time.After(testbed.Patience):
				c.b.Fatalf("waited in vain for %s volume %d", what, i)
			}
		}
	}
	return at
}

// took is await with the times since each volume was asked for.
func (c *attachContest) took(what attachState, first, last int) (times []time.Duration) {
	c.b.Helper()
	for i, at := range c.await(what, first, last) {
		times = append(times, at.Sub(c.times.asked[c.volumeOf(first+i)]))
	}
	return times
}

// spread is the node of a volume.
func spread(i int) string { return nodeName(i % attachNodes) }

// tidy removes what one program has left.
func (c *attachContest) tidy() {
	c.b.Helper()
	release := []byte(`{"metadata":{"finalizers":null}}`)
	attachments := c.Client.StorageV1().VolumeAttachments()
	err := each(c.b.Context(), c.volumes, func(ctx context.Context, i int) error {
		_ = attachments.Delete(ctx, c.volumeOf(i), metav1.DeleteOptions{})
		_, err := attachments.Patch(ctx, c.volumeOf(i), types.MergePatchType, release, metav1.PatchOptions{})
		return testbed.IgnoreNotFound(err)
	})
	if err != nil {
		c.b.Fatal(err)
	}
	c.clear()
	for i := range c.volumes { // calls that hung have left it attached
		c.driver.RemoveVolume(handleOf(i))
		c.driver.AddVolume(csitest.Volume{ID: handleOf(i)})
	}
}

// attachedAll is what one program needed to attach all volumes, and to detach them.
type attachedAll struct{ attach, detach attachPhase }

// attachPhase is one half of it.
type attachPhase struct {
	volumes int
	took    time.Duration
	times   []time.Duration
	use     provisioned
}

// attachAll attaches and detaches the volumes of one run.
func (c *attachContest) attachAll(p program, tc attachCase, result *attachedAll) {
	c.b.Helper()
	defer c.tidy()
	c.addVolumes()
	c.ask(0, tc.n, spread)
	c.measure(p, attached, tc, &result.attach)
	c.detach(0, tc.n)
	c.measure(p, detached, tc, &result.detach)
}

// leastAttachments attaches and detaches volumes as the least controller.
func (c *attachContest) leastAttachments(n int) {
	c.b.Helper()
	l := newLeast(c.contest, corev1.SchemeGroupVersion.WithResource("persistentvolumes"), storagev1.SchemeGroupVersion.WithResource("volumeattachments"))
	defer l.stop()
	defer c.tidy()
	c.addVolumes()
	c.ask(0, n, spread)
	none := func(int) []patched { return nil }
	attach := l.work(n, func(i int) []patched {
		finalizer := fmt.Sprintf(`"finalizers":["external-attacher/%s"]`, c.name)
		node := fmt.Sprintf(`"annotations":{"csi.alpha.kubernetes.io/node-id":%q}`, spread(i))
		return []patched{
			{"persistentvolumes", c.volumeOf(i), "", `{"metadata":{` + finalizer + `}}`},
			{"volumeattachments", c.volumeOf(i), "", `{"metadata":{` + finalizer + `,` + node + `}}`},
		}
	}, func(ctx context.Context, i int) error {
		_, err := l.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: handleOf(i), NodeId: spread(i), VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}})
		return err
	}, func(i int) []patched {
		return []patched{{"volumeattachments", c.volumeOf(i), "status", `{"status":{"attached":true}}`}}
	})
	c.detach(0, n)
	detach := l.work(n, none, func(ctx context.Context, i int) error {
		_, err := l.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: handleOf(i), NodeId: spread(i)})
		return err
	}, func(i int) []patched {
		return []patched{{"volumeattachments", c.volumeOf(i), "", `{"metadata":{"finalizers":null}}`}}
	})
	attach.report(c.b, n, "attach")
	detach.report(c.b, n, "detach")
}

// measure starts a program, and measures how long it takes for all volumes from its first call for one.
func (c *attachContest) measure(p program, what attachState, tc attachCase, result *attachPhase) {
	c.b.Helper()
	c.times.begin()
	cmd := c.start(p, "a", tc.args[p.name]...)
	stop := c.watchUse(cmd.Process.Pid, &result.use)
	var last time.Duration
	for _, at := range c.await(what, 0, tc.n) {
		took := at.Sub(c.times.began())
		last = max(last, took)
		result.times = append(result.times, took)
	}
	stop()
	result.volumes += tc.n
	result.took += last
	testbed.Kill(cmd)
	c.deleteLeases()
}

func (a *attachedAll) figures() (all []figure) {
	for _, half := range []struct {
		name string
		*attachPhase
	}{{"attach", &a.attach}, {"detach", &a.detach}} {
		n := float64(half.volumes)
		all = append(all, figure{half.name + "/s", n / half.took.Seconds()})
		all = append(all, quantiles(half.name, half.times)...)
		all = append(all, figure{"cpu-ms/" + half.name, 1000 * half.use.cpu / n}, figure{"control-plane-cpu-ms/" + half.name, 1000 * half.use.controlPlane / n},
			figure{"writes/" + half.name, float64(half.use.writes) / n})
	}
	return all
}

// besideHung is how long single operations took alone, and beside calls that hang.
type besideHung struct{ attachAlone, attachBeside, detachAlone, detachBeside []time.Duration }

// attachBeside measures ten attaches to ten nodes at a time, and ten detaches: first alone, then while hundreds of volumes are detached from
// another node in calls that hang.
func (c *attachContest) attachBeside(p program, args []string, result *besideHung) {
	c.b.Helper()
	defer c.tidy()
	c.addVolumes()
	cmd := c.start(p, "a", args...)
	defer testbed.Kill(cmd)
	const others = hungVolumes + otherVolumes
	c.ask(0, others, func(i int) string {
		if i < hungVolumes {
			return hungNode
		}
		return spread(i)
	})
	c.await(attached, 0, others)
	c.ask(others, others+otherVolumes, spread)
	result.attachAlone = append(result.attachAlone, c.took(attached, others, others+otherVolumes)...)
	c.detach(others, others+otherVolumes)
	result.detachAlone = append(result.detachAlone, c.took(detached, others, others+otherVolumes)...)

	c.detach(0, hungVolumes)
	c.ask(others, others+otherVolumes, spread)
	c.detach(hungVolumes, others)
	result.detachBeside = append(result.detachBeside, c.took(detached, hungVolumes, others)...)
	result.attachBeside = append(result.attachBeside, c.took(attached, others, others+otherVolumes)...)
}

func (h *besideHung) figures() []figure {
	var all []figure
	for _, f := range []struct {
		name  string
		times []time.Duration
	}{{"attach-alone", h.attachAlone}, {"attach-beside", h.attachBeside}, {"detach-alone", h.detachAlone}, {"detach-beside", h.detachBeside}} {
		all = append(all, quantiles(f.name, f.times)...)
	}
	return all
}

// attachState is what is waited for.
type attachState string

const (
	attached attachState = "attaching"
	detached attachState = "detaching"
)

// attachTimes notes when VolumeAttachments are attached and gone, as a watcher sees it.
type attachTimes struct {
	changed chan struct{}

	mu    sync.Mutex
	first time.Time // of the calls for volumes
	asked map[string]time.Time
	seen  map[string]map[attachState]time.Time
}

func watchAttachments(b *testing.B, c *attachContest) *attachTimes {
	b.Helper()
	w := &attachTimes{changed: make(chan struct{}, 1), asked: map[string]time.Time{}, seen: map[string]map[attachState]time.Time{}}
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	see := func(obj any) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.Status.Attached && va.DeletionTimestamp == nil && strings.HasPrefix(va.Name, c.Namespace) {
			w.see(va.Name, attached)
		}
	}
	_, err := factory.Storage().V1().VolumeAttachments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				w.see(key, detached)
			}
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	factory.Start(b.Context().Done())
	factory.WaitForCacheSync(b.Context().Done())
	return w
}

// note begins the time of a VolumeAttachment.
func (w *attachTimes) note(name string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[name], w.seen[name] = at, map[attachState]time.Time{}
}

func (w *attachTimes) see(name string, what attachState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[name] != nil {
		first(w.seen[name], what, time.Now())
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// when returns when a VolumeAttachment was first seen in that state.
func (w *attachTimes) when(name string, what attachState) (at time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok = w.seen[name][what]
	return at, ok
}

// begin makes the next call the first.
func (w *attachTimes) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = time.Time{}
}

// began returns when the first call was.
func (w *attachTimes) began() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// call notes a call to the driver. It matches none.
func (w *attachTimes) call(proto.Message) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() {
		w.first = time.Now()
	}
	return false
}
