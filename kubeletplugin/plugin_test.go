package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/driver"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	driverName = csitest.DefaultName
	patience   = 2 * time.Minute
)

// machine is a node with a driver in the same process, on which one plugin after the other runs.
type machine struct {
	t      *testing.T
	root   string
	driver *csitest.Driver
	// objects has the driver's object and a volume, which the pods of pod name.
	objects *resolve.Static
	handle  string
	// config changes that of each start.
	config func(*Config)

	*Plugin

	stop func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), objects: &resolve.Static{}, driver: csitest.New(csitest.Options{
		NodeID: "node-1", TargetPaths: true,
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
	})}
	podInfo := true // which tells the driver that a volume is inline
	m.objects.AddDriver(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount:       &podInfo,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	created, err := m.driver.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "pv-1", VolumeCapabilities: []*csi.VolumeCapability{{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	m.handle = created.GetVolume().GetVolumeId()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: m.handle}
	m.objects.AddVolume(pv, "ns", "data")
	return m
}

// start runs a plugin until stop.
func (m *machine) start() {
	m.t.Helper()
	cfg := Config{
		Node: "node-1", RootDir: m.root, Objects: m.objects, Timeout: patience, StatsInterval: -1,
		Dial:   func(string) (grpc.ClientConnInterface, error) { return m.driver.Conn(), nil },
		Mounts: func(string) ([]volume.MountPoint, error) { return nil, nil },
	}
	if m.config != nil {
		m.config(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := p.Open(ctx); err != nil {
		m.t.Fatal(err)
	}
	if err := p.Register(ctx, driverName, "in-process"); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- p.RunDrivers(ctx) }()
	go func() { ended <- p.RunVolumes(ctx) }()
	m.Plugin, m.stop = p, func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, p.Close()); err != nil {
			m.t.Errorf("the plugin ended with %v", err)
		}
		m.stop = func() {}
	}
	m.t.Cleanup(func() { m.stop() })
}

func (m *machine) mount(pod *corev1.Pod) ([]Mount, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	return m.Mount(ctx, pod)
}

func (m *machine) unmount(uid types.UID) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	return m.Unmount(ctx, uid)
}

// checkClean looks for what is left below the root directory and in the driver.
func (m *machine) checkClean() {
	m.t.Helper()
	for _, dir := range []string{"pods", "plugins/kubernetes.io/csi/" + driverName, "plugins/kubernetes.io/csi/volumeDevices/*"} {
		left, err := filepath.Glob(filepath.Join(m.root, dir, "*"))
		if err != nil || len(left) > 0 {
			m.t.Errorf("left is %v, %v", left, err)
		}
	}
	if v := m.driver.Violations(); len(v) > 0 {
		m.t.Errorf("calls against the specification: %v", v)
	}
}

// pod has a persistent and an inline volume.
func pod(uid types.UID) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: uid}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "unused", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "scratch"}, {Name: "data"}, {Name: "unused"}}}}
	return p
}

// TestMountWithoutServer mounts a persistent and an inline volume without an API server, twice, and restarts between all steps.
func TestMountWithoutServer(t *testing.T) {
	m := newMachine(t)
	for range 2 {
		m.start()
		mounts, err := m.mount(pod("uid-1"))
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, v := range mounts {
			names = append(names, v.Volume)
			if info, err := os.Stat(v.Path); err != nil || !info.IsDir() || v.Driver != driverName || v.Handle == "" || v.ReadOnly {
				t.Errorf("mount %+v: %v", v, err)
			}
		}
		if !slices.Equal(names, []string{"scratch", "data"}) {
			t.Errorf("mounted are %q", names)
		}
		m.stop()
	}
	m.start()
	pods, err := m.Pods()
	if err != nil || !slices.Equal(pods, []types.UID{"uid-1"}) {
		t.Errorf("pods with a directory: %v, %v", pods, err)
	}
	for range 2 {
		if err := m.unmount("uid-1"); err != nil {
			t.Fatal(err)
		}
	}
	m.checkClean()
}

// TestMountBlock: the path of a raw block volume is that which a container runtime would use, with the device behind it.
func TestMountBlock(t *testing.T) {
	m := newMachine(t)
	mode := corev1.PersistentVolumeBlock
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.VolumeMode, pv.Spec.AccessModes = &mode, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: m.handle}
	m.objects.AddVolume(pv, "ns", "data")
	m.start()
	p := pod("uid-1")
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}}}
	for range 2 { // before and after a restart
		mounts, err := m.mount(p)
		want := Mount{
			Volume: "data", Path: filepath.Join(m.root, "pods/uid-1/volumeDevices/kubernetes.io~csi/pv-1"), Block: true,
			Driver: driverName, Handle: m.handle,
		}
		if err != nil || !slices.Equal(mounts, []Mount{want}) {
			t.Fatalf("got %+v, %v; want %+v", mounts, err, want)
		}
		device, err := filepath.EvalSymlinks(want.Path)
		if err != nil || !strings.HasSuffix(device, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/uid-1") {
			t.Errorf("the link leads to %q, %v", device, err)
		}
		m.stop()
		m.start()
	}
	if err := m.unmount("uid-1"); err != nil {
		t.Error(err)
	}
	m.checkClean()
}

// TestMountSaysWhatIsMissing returns problems with objects at once, and the driver's when the caller's patience ends.
func TestMountSaysWhatIsMissing(t *testing.T) {
	m := newMachine(t)
	m.start()
	p := pod("uid-1")
	p.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "other"
	if _, err := m.mount(p); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `volume "data"`) {
		t.Errorf("a claim that is not there: %v", err)
	}
	if _, err := m.mount(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}}); err == nil || !strings.Contains(err.Error(), "UID") {
		t.Errorf("a pod without a UID: %v", err)
	}
	m.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.ResourceExhausted, Message: "no slots"})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for deadline := time.Now().Add(patience); !failing(m.State()) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := m.Mount(ctx, pod("uid-1")); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "volume data: ") || !strings.Contains(err.Error(), "no slots") {
		t.Errorf("a driver that refuses: %v", err)
	}
	m.driver.Heal()
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestUnmountSaysWhatStays tells what the driver answers when the caller's patience ends, and goes on.
func TestUnmountSaysWhatStays(t *testing.T) {
	m := newMachine(t)
	m.start()
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		if _, err := m.mount(pod("uid-1")); err != nil {
			t.Fatal(err)
		}
		m.driver.Inject(csitest.Fault{Method: method, Code: codes.Internal, Message: "device busy"})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for deadline := time.Now().Add(patience); !busy(m.State()) && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if err := m.Unmount(ctx, "uid-1"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "device busy") {
			t.Errorf("%s fails: %v", method, err)
		}
		m.driver.Heal()
		if _, err := m.mount(pod("uid-2")); err != nil {
			t.Errorf("%s, then another pod: %v", method, err)
		}
		if err := errors.Join(m.unmount("uid-2"), m.unmount("uid-1")); err != nil {
			t.Errorf("%s, after that: %v", method, err)
		}
		m.checkClean()
	}
}

// busy reports whether an unmounting has failed.
func busy(s State) bool {
	return slices.ContainsFunc(s.Volumes, func(d volume.Dump) bool {
		return d.Error != "" || slices.ContainsFunc(d.Uses, func(u volume.UseDump) bool { return u.Error != "" })
	})
}

// failing reports whether all volumes have an error.
func failing(s State) bool {
	return len(s.Volumes) == 2 && !slices.ContainsFunc(s.Volumes, func(d volume.Dump) bool { return d.Uses[0].Error == "" })
}

// TestNoSecrets names the secret that a plugin without secrets cannot read.
func TestNoSecrets(t *testing.T) {
	ref := &corev1.SecretReference{Namespace: "ns", Name: "key"}
	if _, err := (alone{}).Secret(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "ns/key") {
		t.Errorf("got %v", err)
	}
}

// TestSeveralPlugins runs two plugins in one process, with one registry of metrics; each directory is for one.
func TestSeveralPlugins(t *testing.T) {
	reg := prometheus.NewRegistry()
	a, b := newMachine(t), newMachine(t)
	for name, m := range map[string]*machine{"a": a, "b": b} {
		m.config = func(c *Config) { c.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, reg) }
		m.start()
		if _, err := m.mount(pod("uid-1")); err != nil {
			t.Errorf("plugin %s: %v", name, err)
		}
	}
	p, err := New(Config{Node: "c", RootDir: a.root, Objects: a.objects})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), a.root) {
		t.Errorf("a second plugin in one directory: got %v, want an error that names it", err)
	}
	a.stop()
	a.start()
}

// TestConfig names what is wrong.
func TestConfig(t *testing.T) {
	good := Config{Node: "n", RootDir: "/root", Objects: &resolve.Static{}}
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"NoNode":    {func(c *Config) { c.Node = "" }, "name of the node"},
		"NoObjects": {func(c *Config) { c.Objects = nil }, "objects"},
		"Relative":  {func(c *Config) { c.RootDir = "root" }, `"root": must be an absolute path`},
		"Half":      {func(c *Config) { c.InUse = alone{} }, "both or none"},
		"Timeout":   {func(c *Config) { c.Timeout = -1 }, "negative"},
		"Registry":  {func(c *Config) { c.RegistryDirs = []string{"here"} }, `"here"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := good
			tc.change(&c)
			if _, err := New(c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

// TestMissingDriverIsTransient: a driver that is not there comes soon after a restart.
func TestMissingDriverIsTransient(t *testing.T) {
	d := drivers{driver.NewRegistry(driver.Config{})}
	defer d.registry.Close()
	for _, get := range []func(string) (volume.Driver, error){d.Driver, d.Last} {
		if _, err := get("d.example"); !errors.Is(err, volume.ErrTransient) || !errors.Is(err, driver.ErrNotRegistered) {
			t.Errorf("got %v, want a driver that may come soon", err)
		}
	}
}

// TestUsage has the statistics of mounted volumes as results and as metrics.
func TestUsage(t *testing.T) {
	m := newMachine(t)
	reg := prometheus.NewRegistry()
	m.config = func(c *Config) { c.StatsInterval, c.Registerer = time.Millisecond, reg }
	m.start()
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		measured, err := testutil.GatherAndCount(reg, "kubelet_volume_stats_capacity_bytes")
		if err != nil {
			t.Fatal(err)
		}
		if usage := m.Usage(); measured == 1 && len(usage) == 2 && usage[0].Bytes != nil && usage[1].Bytes != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for the statistics of two volumes, and those of the claim among the metrics; known is %+v", m.Usage())
		}
	}
	if err := m.unmount("uid-1"); err != nil {
		t.Error(err)
	}
}
