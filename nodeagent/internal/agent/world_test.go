package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeName   = "node-1"
	driverName = csitest.DefaultName
	patient    = 2 * time.Minute // how long a test waits for what must happen; it only matters when the test fails
)

// cluster is an API server in memory, a driver with its registrar on real sockets, and what the
// attach/detach controller does about the handshake.
type cluster struct {
	t      *testing.T
	api    *kubetest.Cluster
	driver *csitest.Driver
	root   layout.Root
	cfg    Config
	agent  *Agent
	stop   func()
	// grouped has, by target path, whether the files of a volume had the group of the pod when it was unpublished.
	grouped sync.Map
}

func newCluster(t *testing.T, o csitest.Options) *cluster {
	t.Helper()
	// Socket paths are limited to 108 bytes, so the long name of the test is not for them.
	root, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if o.Controller == nil {
		o.Controller = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	}
	c := &cluster{t: t, api: kubetest.New(), driver: csitest.New(o), root: layout.Root(root)}
	c.cfg = Config{
		Client: c.api.Client(), Root: c.root, StatsPeriod: -1, // which would be calls at any moment
		Template: nodeobj.Template{
			Name: nodeName, IP: "10.0.0.1", MaxPods: 10,
			CPU: 4, Memory: 8 << 30, Storage: 1 << 40,
		},
	}
	return c
}

// start runs an agent until halt.
func (c *cluster) start() {
	c.t.Helper()
	a, err := New(c.cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	c.agent = a
	c.stop = func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("agent ended with %v", err)
		}
	}
	c.t.Cleanup(c.halt)
}

func (c *cluster) halt() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

// register serves the driver and a registrar as long as the test runs, or until the registrar is stopped.
func (c *cluster) register() (stop func()) {
	c.t.Helper()
	endpoint := strings.TrimPrefix(c.driver.Serve(c.t), "unix://")
	if err := os.MkdirAll(c.root.Registry(), 0o750); err != nil {
		c.t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(c.root.Registry(), "test-reg.sock"))
	if err != nil {
		c.t.Fatal(err)
	}
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, &registrar{endpoint: endpoint})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop = func() {
		s.Stop()
		<-done
	}
	c.t.Cleanup(stop)
	return stop
}

type registrar struct {
	registerapi.UnimplementedRegistrationServer
	endpoint string
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// attach does what the attach/detach controller and an attacher do for a volume.
func (c *cluster) attach(handle string) {
	c.t.Helper()
	c.apply(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: layout.Attachment(handle, driverName, nodeName)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: nodeName},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": "7"}},
	})
	patch := fmt.Sprintf(`{"status":{"volumesAttached":[{"name":%q,"devicePath":""}]}}`, layout.Unique(driverName, handle))
	_, err := c.api.Client().Nodes().Patch(c.t.Context(), nodeName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) apply(objs ...runtime.Object) {
	c.t.Helper()
	if err := c.api.Apply(objs...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) node() *corev1.Node {
	c.t.Helper()
	n, err := c.api.Client().Nodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return &corev1.Node{}
	}
	return n
}

func (c *cluster) pod(name string) *corev1.Pod {
	p, err := c.api.Client().Pods("ns").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

// eventually waits for a condition.
func (c *cluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(patient)
	for !ok() {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited in vain for %s; state: %+v, calls: %v", what, c.agent.State(), c.calls())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *cluster) running(name string) func() bool {
	return func() bool {
		p := c.pod(name)
		return p != nil && p.Status.Phase == corev1.PodRunning
	}
}

func (c *cluster) gone(name string) func() bool { return func() bool { return c.pod(name) == nil } }

func (c *cluster) deletePod(name string, grace int64) {
	c.t.Helper()
	err := c.api.Client().Pods("ns").Delete(c.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if err != nil {
		c.t.Fatal(err)
	}
}

// calls lists the calls to the driver that change something.
func (c *cluster) calls() []string {
	var all []string
	for _, call := range c.driver.Calls() {
		if strings.HasSuffix(call.Method, "Volume") {
			all = append(all, call.Method)
		}
	}
	return all
}

func (c *cluster) expectCalls(reason string, want ...string) {
	c.t.Helper()
	if got := c.calls(); !slices.Equal(got, want) {
		c.t.Errorf("%s: driver saw %v, want %v", reason, got, want)
	}
	c.driver.ResetCalls()
}

// expectClean waits until nothing is left, and fails if the life cycle was violated on the way.
func (c *cluster) expectClean() {
	c.t.Helper()
	c.eventually("volumesInUse to be empty", func() bool { return len(c.node().Status.VolumesInUse) == 0 })
	c.eventually("the manager to be idle", func() bool { return len(c.agent.plugin.Volumes().Dump()) == 0 })
	for _, v := range c.driver.Volumes() {
		if v.Ephemeral || len(v.Staged)+len(v.Published) > 0 {
			c.t.Errorf("driver still has volume %+v", v)
		}
	}
	if v := c.driver.Violations(); len(v) > 0 {
		c.t.Errorf("life cycle of the specification was violated: %v", v)
	}
	for _, pattern := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		c.eventually("nothing to be left in "+pattern, func() bool {
			left, _ := filepath.Glob(filepath.Join(string(c.root), pattern))
			return !slices.ContainsFunc(left, func(path string) bool { // the parents of all block volumes stay
				return path != filepath.Dir(c.root.DeviceStaging("pv")) && path != filepath.Dir(c.root.DeviceTargetDir("pv"))
			})
		})
	}
}

// expectEvent waits for an event with a reason on an object.
func (c *cluster) expectEvent(reason string, uid types.UID) {
	c.t.Helper()
	c.eventually("the event "+reason, func() bool {
		for _, obj := range c.api.Objects("events") {
			if e, ok := obj.(*corev1.Event); ok && e.Reason == reason && e.InvolvedObject.UID == uid {
				return true
			}
		}
		return false
	})
}

func csiDriver(attach bool) *storagev1.CSIDriver {
	info := true
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &attach, PodInfoOnMount: &info,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"},
		},
	}
}

func claim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim-uid"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func persistentVolume() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "claim-uid"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "vol-1", VolumeAttributes: map[string]string{"color": "blue"},
			}},
		},
	}
}

// podWith is a pod on the node whose container mounts the volume.
func podWith(name string, source corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName:           nodeName,
			ServiceAccountName: "sa",
			Containers: []corev1.Container{{
				Name: "main", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "vol", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "vol", VolumeSource: source}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func claimSource() corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
}

func inlineSource() corev1.VolumeSource {
	return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}
}
