package volume_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeapi"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNode   = "node-1"
	testDriver = csitest.DefaultName
)

// world is everything around a volume.Manager, small but real: a driver in memory that insists on the
// life cycle, directories on disk, and both flags of the attach handshake.
type world struct {
	t      testing.TB
	root   layout.Root
	driver *csitest.Driver
	m      *volume.Manager
	stop   func()

	mu         sync.Mutex
	registered bool
	legacy     bool
	inUse      map[string]bool
	attached   map[string]*volume.Attachment
	secretErr  error
	api        *kubetest.Cluster // has the claims and their PersistentVolumes
	raiseErr   error
	tokens     *kubeapi.Tokens
	// afterLook runs between the look at volumesAttached and the use of what it found.
	afterLook func()
	// notAttachable is the handle of a volume that may leave volumesInUse while it is staged.
	notAttachable string
	// grouped has the paths whose group was changed, and groups the changes. changeGroup does them; nil does nothing.
	grouped     map[string]bool
	groups      []fsgroup.Change
	changeGroup func(ctx context.Context, c fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error)
	events      []string
	measured    []volume.Measurement
	changed     []types.UID
	crashAt     fault.Point
	crashed     bool
}

func newWorld(t testing.TB, o csitest.Options) *world {
	t.Helper()
	if o.Controller == nil {
		o.Controller = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	}
	w := &world{
		t: t, root: layout.Root(t.TempDir()), driver: csitest.New(o), registered: true,
		inUse: map[string]bool{}, grouped: map[string]bool{}, attached: map[string]*volume.Attachment{}, api: kubetest.New(),
	}
	w.tokens = kubeapi.NewTokens(w.api.Client())
	w.m = w.manager()
	return w
}

func (w *world) manager() *volume.Manager {
	w.t.Helper()
	m, err := volume.New(volume.Config{
		Node: testNode, Root: w.root, Fault: w.fault,
		Drivers: w, InUse: w, Attachments: w, Secrets: w, Events: w, Claims: kubeapi.Claims{API: w.api.Client()},
		Measure: func(x volume.Measurement) { w.set(func() { w.measured = append(w.measured, x) }) },
		Tokens:  w.tokens,
		Changed: func(uid types.UID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed = append(w.changed, uid)
		},
		Spread: func() float64 { return 0.999 },
	}.WithChangeGroup(w.group))
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// start runs the manager until halt.
func (w *world) start() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	m := w.m
	go func() {
		defer close(done)
		_ = m.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
}

func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

func (w *world) fault(p fault.Point) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.crashed || p == w.crashAt {
		w.crashed = true
		return fault.ErrCrashed
	}
	return nil
}

func (w *world) Driver(name string) (volume.Driver, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.registered || name != w.name() {
		return nil, fmt.Errorf("driver %q is not registered", name)
	}
	return fakeDriver{w}, nil
}

func (w *world) Last(name string) (volume.Driver, error) { return w.Driver(name) }

func (w *world) name() string { return testDriver }

type fakeDriver struct{ w *world }

func (d fakeDriver) Node() csi.NodeClient { return csi.NewNodeClient(d.w.driver.Conn()) }

func (d fakeDriver) RequiresPublishPod() bool { return d.w.legacy }

func (d fakeDriver) NodeCapabilities(ctx context.Context) (map[csi.NodeServiceCapability_RPC_Type]bool, error) {
	reply, err := d.Node().NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	caps := map[csi.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range reply.GetCapabilities() {
		caps[c.GetRpc().GetType()] = true
	}
	return caps, nil
}

func (w *world) Raise(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inUse[name] = true // also if there is no answer: a name stays wanted until it is dropped
	return w.raiseErr
}

// Drop checks the invariant that a name is in use while a record exists.
func (w *world) Drop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.inUse, name)
	_, handle, err := layout.SplitUnique(name)
	if err != nil {
		w.t.Errorf("dropped %q from volumesInUse: %v", name, err)
		return
	}
	for _, dir := range []string{w.root.StagingDir(w.name(), handle), w.root.DeviceDir("pv-" + handle)} {
		if _, err := os.Stat(dir); err == nil && handle != w.notAttachable {
			w.t.Errorf("%q left volumesInUse while its directory %s exists", name, dir)
		}
	}
}

func (w *world) Attached(name string) bool {
	attached, after := w.look(name)
	if after != nil {
		after()
	}
	return attached
}

func (w *world) look(name string) (attached bool, after func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	after, w.afterLook = w.afterLook, nil
	return w.attached[name] != nil, after
}

func (w *world) Attachment(_ context.Context, name string) (*volume.Attachment, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for unique, a := range w.attached {
		driver, handle, _ := layout.SplitUnique(unique)
		if layout.Attachment(handle, driver, testNode) == name {
			if !w.inUse[unique] {
				w.t.Errorf("the attachment of %q was looked at before the volume was in use", unique)
			}
			return a, nil
		}
	}
	return nil, fmt.Errorf("volume attachment %q not found", name)
}

func (w *world) Secret(_ context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ref == nil {
		return nil, nil
	}
	return map[string]string{"from": ref.Namespace + "/" + ref.Name}, w.secretErr
}

func (w *world) Failed(pod volume.Pod, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %s: %s", pod.Name, reason, message))
}

func (w *world) Mapped(pod volume.Pod, message string) { w.Failed(pod, volume.ReasonMapped, message) }

func (w *world) Condition(volume.Pod, string, string) {}

func (w *world) Expansion(pod volume.Pod, claim volume.Claim, reason, message string) {
	w.Failed(pod, reason, message)
	w.Failed(volume.Pod{Name: "claim " + claim.Name}, reason, message)
}

// group notes a change of the group, and does it as the test says.
func (w *world) group(ctx context.Context, c fsgroup.Change, files *atomic.Int64) (done fsgroup.Result, err error) {
	w.mu.Lock()
	change := w.changeGroup
	w.groups = append(w.groups, c)
	w.mu.Unlock()
	if change != nil {
		done, err = change(ctx, c, files)
	}
	w.set(func() { w.grouped[c.Path] = w.grouped[c.Path] || err == nil })
	return done, err
}

// set changes the world under its lock.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// calls lists the node calls to the driver, without reading capabilities.
func (w *world) calls() []string {
	var all []string
	for _, c := range w.driver.Calls() {
		if c.Method != "NodeGetCapabilities" {
			all = append(all, c.Method)
		}
	}
	return all
}

func (w *world) attach(handle string, uid types.UID) {
	w.set(func() {
		w.attached[layout.Unique(testDriver, handle)] = &volume.Attachment{UID: uid, Metadata: map[string]string{"device": "/dev/x"}}
	})
	w.m.Attached(layout.Unique(testDriver, handle))
}

// expectClean fails if anything is left anywhere.
func (w *world) expectClean() {
	w.t.Helper()
	for _, v := range w.driver.Volumes() {
		if v.Ephemeral || len(v.Staged) > 0 || len(v.Published) > 0 {
			w.t.Errorf("driver still has volume %q staged at %v, published at %v", v.ID, v.Staged, v.Published)
		}
	}
	for _, violation := range w.driver.Violations() {
		w.t.Errorf("life cycle of the specification was violated: %s", violation)
	}
	w.set(func() {
		for name := range w.inUse {
			w.t.Errorf("%q is still in volumesInUse", name)
		}
	})
	if d := w.m.Dump(); len(d) > 0 {
		w.t.Errorf("manager still has %+v", d)
	}
	if left := w.files(); len(left) > 0 {
		w.t.Errorf("left on disk: %v", left)
	}
}

// files lists what is below the root, except directories that stay.
func (w *world) files() []string {
	var all []string
	for _, pattern := range []string{"pods/*/volumes/*/*", "pods/*/volumeDevices/*/*", "plugins/kubernetes.io/csi/*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		found, err := filepath.Glob(filepath.Join(string(w.root), pattern))
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, found...)
	}
	return slices.DeleteFunc(all, func(path string) bool {
		return path == filepath.Dir(w.root.DeviceStaging("pv")) || path == filepath.Dir(w.root.DeviceTargetDir("pv"))
	})
}

func persistentOf(pod, handle string) volume.Publication {
	return volume.Publication{
		Volume: volume.Volume{
			Name: layout.Unique(testDriver, handle), Driver: testDriver, Handle: handle,
			AccessMode: corev1.ReadWriteMany, FSType: "ext4",
			Attributes: map[string]string{"color": "blue"},
		},
		Pod:      volume.Pod{Namespace: "ns", Name: pod, UID: types.UID("uid-" + pod), ServiceAccount: "sa"},
		SpecName: "pv-" + handle,
		PodInfo:  true,
	}
}

func inlineOf(pod, name string) volume.Publication {
	uid := types.UID("uid-" + pod)
	return volume.Publication{
		Volume: volume.Volume{
			Name: layout.UniqueInline(uid, name), Driver: testDriver, Handle: layout.InlineHandle(uid, name),
			Ephemeral: true, AccessMode: corev1.ReadWriteOnce,
		},
		Pod: volume.Pod{Namespace: "ns", Name: pod, UID: uid, ServiceAccount: "sa"}, SpecName: name, PodInfo: true,
	}
}

// scenario runs f in a bubble with a running manager, and stops it at the end.
func scenario(t *testing.T, o csitest.Options, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		for _, h := range []string{"vol-1", "vol-2"} {
			w.driver.AddVolume(csitest.Volume{ID: h, Capacity: 1 << 20})
		}
		w.start()
		defer w.halt()
		f(t, w)
	})
}

func (w *world) expectCalls(reason string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.calls(); !slices.Equal(got, want) {
		w.t.Errorf("%s: driver saw\n  %s\nwant\n  %s", reason, strings.Join(got, " "), strings.Join(want, " "))
	}
	w.driver.ResetCalls()
}

func (w *world) expectPublished(p volume.Publication, want bool) {
	w.t.Helper()
	synctest.Wait()
	st, ok := w.m.Status(p.Volume.Name, p.Key())
	if got := ok && st.Published; got != want {
		w.t.Errorf("volume %q of pod %q: published %t (known %t, error %v), want %t", p.SpecName, p.Pod.Name, got, ok, st.Err, want)
	}
}
