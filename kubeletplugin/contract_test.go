package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// repoint adds a volume to the driver, and has the claim of pod lead to it by a PersistentVolume of the same name.
func (m *machine) repoint(name string, mode corev1.PersistentVolumeMode) {
	m.t.Helper()
	created, err := m.driver.CreateVolume(m.t.Context(), &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.handle = created.GetVolume().GetVolumeId()
	m.addPV("pv-1", mode)
}

func (m *machine) addPV(name string, mode corev1.PersistentVolumeMode) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.VolumeMode, pv.Spec.AccessModes = &mode, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: m.handle}
	m.objects.AddVolume(pv, "ns", "data")
}

// blockPod has a raw block volume alone.
func blockPod(uid types.UID) *corev1.Pod {
	p := pod(uid)
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}}}
	return p
}

// within calls f with a context that ends after a while.
func within[T any](d time.Duration, f func(context.Context) T) T {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

// made lists the calls that mount and unmount, from the one with the index on, as method, volume and code.
func (m *machine) made(from int) []string {
	var all []string
	for _, c := range m.driver.Calls()[from:] {
		if r, ok := c.Request.(interface{ GetVolumeId() string }); ok && strings.HasPrefix(c.Method, "Node") {
			all = append(all, strings.TrimPrefix(c.Method, "Node")+" "+strings.TrimPrefix(r.GetVolumeId(), "vol-")+" "+c.Code.String())
		}
	}
	return all
}

// TestOnePathOneVolume: a volume that gets the name of another one waits until that is gone. A path that both have was unstaged under the second.
func TestOnePathOneVolume(t *testing.T) {
	m := newMachine(t)
	m.addPV("pv-1", corev1.PersistentVolumeBlock)
	m.start()
	if _, err := m.mount(blockPod("uid-a")); err != nil {
		t.Fatal(err)
	}
	m.driver.Inject(csitest.Fault{Method: "NodeUnstageVolume", Code: codes.Unavailable, Message: "array is away"})
	if err := within(time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-a") }); err == nil {
		t.Error("the volume is unmounted although NodeUnstageVolume fails")
	}
	old := m.handle
	m.repoint("second", corev1.PersistentVolumeBlock)
	err := within(time.Second, func(ctx context.Context) error { _, err := m.Mount(ctx, blockPod("uid-b")); return err })
	if err == nil || !strings.Contains(err.Error(), "goes first") {
		t.Errorf("mount of the second: %v", err)
	}
	m.driver.Heal()
	from := len(m.driver.Calls())
	if _, err := m.mount(blockPod("uid-b")); err != nil {
		t.Fatal(err)
	}
	calls := m.made(from)
	gone := slices.Index(calls, "UnstageVolume "+strings.TrimPrefix(old, "vol-")+" OK")
	staged := slices.Index(calls, "StageVolume "+strings.TrimPrefix(m.handle, "vol-")+" OK")
	if gone < 0 || staged < gone {
		t.Errorf("calls: %q", calls)
	}
	m.stop()
	m.start() // the record is that of the second
	for _, uid := range []types.UID{"uid-a", "uid-b"} {
		if err := m.unmount(uid); err != nil {
			t.Fatal(err)
		}
	}
	m.checkClean()
}

// TestRepointedClaim: a target path is that of the first volume until the pod is unmounted, also where the claim leads to another one.
func TestRepointedClaim(t *testing.T) {
	m := newMachine(t)
	m.start()
	if _, err := m.mount(pod("uid-a")); err != nil {
		t.Fatal(err)
	}
	m.repoint("restored", corev1.PersistentVolumeFilesystem)
	from := len(m.driver.Calls())
	err := within(2*time.Second, func(ctx context.Context) error { _, err := m.Mount(ctx, pod("uid-a")); return err })
	if err == nil || !strings.Contains(err.Error(), "goes first") || slices.ContainsFunc(m.made(from), func(call string) bool { return strings.HasPrefix(call, "PublishVolume") }) {
		t.Errorf("%v, calls %q", err, m.made(from))
	}
	if err := m.unmount("uid-a"); err != nil {
		t.Error(err)
	}
	m.checkClean()
}

// TestFoundIsInUse: what is found on disk after a restart is in use, so that an error of the driver never has it unpublished, unless the caller knows better.
func TestFoundIsInUse(t *testing.T) {
	for name, statusKnown := range map[string]bool{"StatusUnknown": false, "NotRunning": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.config = func(c *Config) { c.StatusKnown = statusKnown }
			m.start()
			if _, err := m.mount(pod("uid-1")); err != nil {
				t.Fatal(err)
			}
			m.stop()
			from := len(m.driver.Calls())
			m.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.Internal, Message: "token service away", Times: 1})
			m.start()
			if _, err := m.mount(pod("uid-1")); err != nil {
				t.Fatal(err)
			}
			undone := slices.ContainsFunc(m.made(from), func(call string) bool { return strings.HasPrefix(call, "UnpublishVolume") })
			if undone != statusKnown {
				t.Errorf("calls after the restart: %q", m.made(from))
			}
		})
	}
}

// TestUnmountUntilNothingIsLeft: Unmount returns nil when nothing is left, the second time and after a restart, too.
func TestUnmountUntilNothingIsLeft(t *testing.T) {
	m := newMachine(t)
	m.start()
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	m.driver.Inject(csitest.Fault{Method: "NodeUnstageVolume", Code: codes.Internal, Message: "device busy"})
	for _, restart := range []bool{false, false, true} {
		if restart {
			m.stop()
			m.start()
		}
		if err := within(2*time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-1") }); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "device busy") {
			t.Errorf("restarted %t: %v", restart, err)
		}
	}
	m.driver.Heal()
	if err := m.unmount("uid-1"); err != nil {
		t.Error(err)
	}
	m.checkClean()
}

// TestNamesOfPods: two pods never share a volume, whatever their UIDs are, and a UID or a name that cannot be that of a directory is refused.
func TestNamesOfPods(t *testing.T) {
	m := newMachine(t)
	m.start()
	scratch := func(uid types.UID, name string) *corev1.Pod {
		p := pod(uid)
		p.Spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}}}
		p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: name}}}}
		return p
	}
	handles := map[types.UID]string{}
	for uid, name := range map[types.UID]string{"app": "db-data", "app-db": "data"} {
		mounts, err := m.mount(scratch(uid, name))
		if err != nil {
			t.Fatal(err)
		}
		handles[uid] = mounts[0].Handle
	}
	from := len(m.driver.Calls())
	if err := m.unmount("app"); err != nil {
		t.Error(err)
	}
	if calls := m.made(from); !slices.Equal(calls, []string{"UnpublishVolume " + handles["app"] + " OK"}) {
		t.Errorf("calls for pod app, whose volume is %q: %q", handles["app"], calls)
	}
	if published := m.volumes.Of("app-db"); len(published) != 1 {
		t.Errorf("the other pod has %q", published)
	}
	if err := m.unmount("app-db"); err != nil {
		t.Error(err)
	}
	for _, uid := range []types.UID{"a/b", "..", ".", "../../escape", ""} {
		if _, err := m.mount(pod(uid)); err == nil || !strings.Contains(err.Error(), "UID") {
			t.Errorf("mount for UID %q: %v", uid, err)
		}
		if err := m.unmount(uid); err == nil || !strings.Contains(err.Error(), "UID") {
			t.Errorf("unmount for UID %q: %v", uid, err)
		}
	}
	for _, name := range []string{"..", "a/b", "../../../x"} {
		m.addPV(name, corev1.PersistentVolumeBlock)
		if _, err := m.mount(blockPod("uid-1")); err == nil || !strings.Contains(err.Error(), "directory") {
			t.Errorf("PersistentVolume %q: %v", name, err)
		}
	}
	if err := m.Register(t.Context(), "../../x", "in-process"); err == nil {
		t.Error("a driver with the name ../../x is registered")
	}
	m.checkClean()
}

// TestReadOnlyIsAsPublished: a volume that a pod has writable is not said to be read-only, and is not published again.
func TestReadOnlyIsAsPublished(t *testing.T) {
	m := newMachine(t)
	m.start()
	p := pod("uid-1")
	if _, err := m.mount(p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Volumes[1].PersistentVolumeClaim.ReadOnly = true
	if mounts, err := m.mount(p); err == nil || !strings.Contains(err.Error(), "readOnly=false") {
		t.Errorf("got %+v, %v", mounts, err)
	}
}

// TestEphemeralContainer mounts a volume that only an ephemeral container has.
func TestEphemeralContainer(t *testing.T) {
	m := newMachine(t)
	m.start()
	p := pod("uid-1")
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}}
	if mounts, err := m.mount(p); err != nil || len(mounts) != 1 {
		t.Errorf("got %+v, %v", mounts, err)
	}
}

// TestSaysWhichCallLasts names the call that a caller waits for.
func TestSaysWhichCallLasts(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Delay: 4 * time.Second})
	err := within(3*time.Second, func(ctx context.Context) error { _, err := m.Mount(ctx, pod("uid-1")); return err })
	if err == nil || !strings.Contains(err.Error(), "NodePublishVolume has not ended for ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("mount: %v", err)
	}
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	m.driver.Heal()
	m.driver.Inject(csitest.Fault{Method: "NodeUnpublishVolume", Delay: 4 * time.Second})
	err = within(3*time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-1") })
	if err == nil || !strings.Contains(err.Error(), "NodeUnpublishVolume has not ended for ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("unmount: %v", err)
	}
}

// TestStartAndWait: calls before Start and after the end say so, and those that wait return.
func TestStartAndWait(t *testing.T) {
	m := newMachine(t)
	cfg := Config{
		Node: "node-1", RootDir: m.root, Objects: m.objects, Timeout: patience, StatsInterval: -1,
		Dial:   func(string) (grpc.ClientConnInterface, error) { return m.driver.Conn(), nil },
		Mounts: func(string) ([]volume.MountPoint, error) { return nil, nil },
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.Plugin = p
	call := func(want error) {
		t.Helper()
		mountErr := within(5*time.Second, func(ctx context.Context) error { _, err := m.Mount(ctx, pod("uid-1")); return err })
		unmountErr := within(5*time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-1") })
		for what, err := range map[string]error{"mount": mountErr, "unmount": unmountErr, "register": m.Register(t.Context(), driverName, "in-process")} {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
	}
	call(ErrNotOpen)
	ctx, cancel := context.WithCancel(t.Context())
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	second, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(ctx); err == nil || !strings.Contains(err.Error(), m.root) {
		t.Errorf("a second one below the same root: %v", err)
	}
	waits := make(chan error, 1)
	go func() { _, err := m.mount(pod("uid-1")); waits <- err }() // for the driver
	for deadline := time.Now().Add(patience); !p.volumes.Busy("uid-1") && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-waits; !errors.Is(err, ErrEnded) {
		t.Errorf("a mount that waits: %v", err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	call(ErrEnded)
}

// TestLostRecord: a volume whose record is lost is taken over where Mount, or the PersistentVolume of its name, says which it is; else Unmount says what stays.
func TestLostRecord(t *testing.T) {
	tests := map[string]struct {
		reason        string
		mount, forget bool
		told          bool
	}{
		"Mounted": {reason: "the pod says which volume it has", mount: true},
		"Known":   {reason: "the PersistentVolume has the name in the path"},
		"Unknown": {reason: "no object says which volume it is", forget: true, told: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.start()
			mounts, err := m.mount(pod("uid-1"))
			if err != nil {
				t.Fatal(err)
			}
			m.stop()
			target := mounts[1].Path
			if err := os.WriteFile(filepath.Join(filepath.Dir(target), "vol_data.json"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			held := filepath.Join(target, "file") // which keeps the directory, as a mount does
			if err := os.WriteFile(held, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.forget {
				m.objects = &resolve.Static{}
			}
			m.config = func(c *Config) {
				c.Mounts = func(string) ([]volume.MountPoint, error) {
					return []volume.MountPoint{{Point: target, Source: "8:1/x"}}, nil
				}
			}
			m.start()
			if tt.mount {
				if _, err := m.mount(pod("uid-1")); err != nil {
					t.Fatal(err)
				}
			}
			if tt.told {
				err := within(10*time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-1") })
				if err == nil || !strings.Contains(err.Error(), target) {
					t.Errorf("%s: %v", tt.reason, err)
				}
			}
			if err := os.Remove(held); err != nil {
				t.Fatal(err)
			}
			if err := m.unmount("uid-1"); err != nil {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if !tt.told { // the driver has still published what was unmounted by hand
				m.checkClean()
			}
		})
	}
}

// TestExpand expands a volume when the caller asks for it, and returns the driver's answer.
func TestExpand(t *testing.T) {
	m := newMachine(t)
	m.start()
	expand := func(bytes int64) error {
		return within(patience, func(ctx context.Context) error { return m.Expand(ctx, "pv-1", bytes) })
	}
	if err := expand(1 << 30); err == nil || !strings.Contains(err.Error(), "no pod has it published") {
		t.Errorf("before it is mounted: %v", err)
	}
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	m.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.Unavailable, Times: 1})
	if err := expand(1 << 30); err != nil {
		t.Error(err)
	}
	if calls := m.driver.Calls(); calls[len(calls)-1].Request.(*csi.NodeExpandVolumeRequest).GetCapacityRange().GetRequiredBytes() != 1<<30 {
		t.Errorf("the last call is %+v", calls[len(calls)-1])
	}
	m.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.OutOfRange, Message: "too large", Times: 1})
	if err := expand(2 << 30); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("too large: %v", err)
	}
	if err := expand(1 << 30); err != nil {
		t.Error(err)
	}
	if err := m.unmount("uid-1"); err != nil {
		t.Error(err)
	}
	m.checkClean()
}

// controller attaches volumes for a plugin.
type controller struct {
	mu       sync.Mutex
	calls    []string
	attached bool
	fail     map[string]int // how often a call fails
}

func (c *controller) call(name string, attached bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls = append(c.calls, name); c.fail[name] > 0 {
		c.fail[name]--
		return status.Error(codes.Internal, "the array is busy")
	}
	c.attached = attached
	return nil
}

func (c *controller) attach() *Attach {
	return &Attach{
		Publish: func(context.Context, string, string) (map[string]string, error) {
			return map[string]string{"lun": "7"}, c.call("publish", true)
		},
		Unpublish: func(context.Context, string, string) error { return c.call("unpublish", false) },
	}
}

// TestAttach has the caller attach the volume before it is staged, and detach it after that. What was begun is ended, also after a restart, before it is attached again.
func TestAttach(t *testing.T) {
	m := newMachine(t)
	c := &controller{fail: map[string]int{"publish": 1}}
	m.config = func(cfg *Config) { cfg.Attach = c.attach() }
	m.objects.AddDriver(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}})
	p := pod("uid-1")
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data"}}
	m.start()
	if _, err := m.mount(p); err != nil {
		t.Fatal(err)
	}
	for _, call := range m.driver.Calls() {
		if r, ok := call.Request.(*csi.NodeStageVolumeRequest); ok && r.GetPublishContext()["lun"] != "7" {
			t.Errorf("NodeStageVolume has %v, want the publish_context", r.GetPublishContext())
		}
	}
	c.fail["unpublish"] = 1000
	if err := within(2*time.Second, func(ctx context.Context) error { return m.Unmount(ctx, "uid-1") }); err == nil || !strings.Contains(err.Error(), "the array is busy") {
		t.Errorf("unmount of what cannot be detached: %v", err)
	}
	m.stop()
	c.fail["unpublish"], c.calls = 1, nil
	m.start()
	if _, err := m.mount(p); err != nil {
		t.Fatal(err)
	}
	if first := slices.Index(c.calls, "publish"); first < 2 || slices.Contains(c.calls[first:], "unpublish") {
		t.Errorf("calls: %q, want the detachment to end before the volume is attached again", c.calls)
	}
	if err := m.unmount("uid-1"); err != nil || c.attached {
		t.Errorf("unmount: %v, attached: %t", err, c.attached)
	}
	m.checkClean()
	if left, err := filepath.Glob(filepath.Join(m.root, attachmentsDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left is %v, %v", left, err)
	}
}

// TestReboot: after the machine has started again, nothing is open, so that a pod whose volume was attached once more meanwhile gets it.
func TestReboot(t *testing.T) {
	boot := filepath.Join(t.TempDir(), "boot_id")
	p := &Plugin{cfg: Config{RootDir: t.TempDir()}, bootID: boot}
	for i, tt := range []struct {
		id   string
		want bool
	}{{"", false}, {"one", false}, {"one", false}, {"two", true}, {"two", false}} {
		if tt.id != "" {
			if err := os.WriteFile(boot, []byte(tt.id), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := p.rebooted(); err != nil || got != tt.want {
			t.Errorf("start %d, boot ID %q: rebooted is %t, %v", i, tt.id, got, err)
		}
	}
}

// TestRebootIsNotRecorded: where the start of the machine cannot be recorded, as on a full disk, nothing is concluded from it, now or later, and the plugin starts.
func TestRebootIsNotRecorded(t *testing.T) {
	boot, root := filepath.Join(t.TempDir(), "boot_id"), t.TempDir()
	p, file := &Plugin{cfg: Config{RootDir: root}, bootID: boot}, filepath.Join(root, bootName)
	if err := errors.Join(os.WriteFile(boot, []byte("two"), 0o600), os.Symlink(filepath.Join(root, "missing", "file"), file)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := p.rebooted(); err != nil || got {
			t.Errorf("rebooted is %t, %v", got, err)
		}
	}
	if record, err := os.ReadFile(file); err != nil || string(record) != "two" {
		t.Errorf("the record is %q, %v, once it can be written", record, err)
	}
}
