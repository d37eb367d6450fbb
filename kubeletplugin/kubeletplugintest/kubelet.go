// Package kubeletplugintest is a kubelet in a Go test: it has the volumes of pods mounted by a real driver, over its socket or in the same process, without a
// cluster, and without root where the driver needs none.
//
//	func TestKubelet(t *testing.T) {
//		kubeletplugintest.Run(t, func(t *testing.T) kubeletplugintest.Config {
//			return kubeletplugintest.Config{Endpoint: startMyDriver(t)}
//		})
//	}
//
// Run goes through what happens to volumes on a node: restarts and crashes of the kubelet at each point, lost answers, pods that are deleted while it is
// down, restarts of the driver. A test of one's own does the same with a Kubelet, by Go calls, and may compare its Transcript. All calls to the driver are
// checked by the life cycle of CSI v1.13 ("Volume Lifecycle"), those of the kubelet as well as what the driver has promised with its answers.
package kubeletplugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
)

const (
	// patience bounds what should take milliseconds.
	patience = 2 * time.Minute
	// namespace is that of all pods and claims.
	namespace = "default"
	nodeName  = "kubeletplugintest"
)

// Config says what driver is tested. Endpoint or Conn is required.
type Config struct {
	// Endpoint is the socket of a driver that runs: unix:///run/csi.sock.
	Endpoint string
	// Conn reaches a driver in the same process; Endpoint is not used then.
	Conn grpc.ClientConnInterface
	// Object is the driver's CSIDriver object; nil: what the driver announces says whether volumes are attached, it gets the pod's information, and
	// may be used inline if Inline is set.
	Object *storagev1.CSIDriver
	// Parameters are those of CreateVolume.
	Parameters map[string]string
	// Secrets are those of all calls; nil for none.
	Secrets map[string]string
	// Size is that of volumes, in bytes; 64 MiB if zero.
	Size int64
	// Inline are the attributes of inline volumes; nil: the driver has none.
	Inline map[string]string
	// Block makes persistent volumes raw block devices. Inline volumes always have file systems.
	Block bool
	// Restart ends the driver as a crash does, and starts it again at the same endpoint; nil: the driver is not restarted.
	Restart func()
}

// Kubelet is the kubelet of one node. Its functions end the test if something does not happen within minutes. They are for the goroutine of the test.
type Kubelet struct {
	t       *testing.T
	cfg     Config
	root    string
	log     *callLog
	driver  string
	stages  bool
	many    bool
	nodeID  string
	segment map[string]string
	objects *resolve.Static
	// controller is nil where the driver has no controller service.
	controller  csi.ControllerClient
	attachments *attachments
	pods        map[types.UID]*Pod
	serial      int

	plugin *kubeletplugin.Plugin
	halt   func()
	killer *killer
}

// New starts a kubelet with a root directory of its own, which runs until the test ends. The driver must answer.
func New(t *testing.T, cfg Config) *Kubelet {
	t.Helper()
	root, err := os.MkdirTemp("", "kubelet") // t.TempDir may have a path that is too long for a driver.
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Size == 0 {
		cfg.Size = 64 << 20
	}
	conn := cfg.Conn
	if conn == nil {
		client, err := grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		conn = client
	}
	k := &Kubelet{t: t, cfg: cfg, root: root, objects: &resolve.Static{}, pods: map[types.UID]*Pod{}, log: newCallLog(conn, root)}
	if err := k.ask(); err != nil {
		t.Fatal(err)
	}
	k.attachments = &attachments{kubelet: k, volumes: map[string]Volume{}, attached: map[string]bool{}}
	k.objects.AddDriver(k.object())
	t.Cleanup(func() {
		defer k.log.end()
		k.Kill()
		if !t.Failed() { // What is left is for the reader of a failure.
			_ = os.RemoveAll(root)
		}
	})
	k.Start()
	return k
}

// ask asks the driver what it is.
func (k *Kubelet) ask() error {
	ctx, cancel := k.deadline()
	defer cancel()
	identity, node := csi.NewIdentityClient(k.log.conn), csi.NewNodeClient(k.log.conn)
	plugin, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("ask the driver for its name: %w", err)
	}
	k.driver = plugin.GetName()
	info, err := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("ask driver %q about the node: %w", k.driver, err)
	}
	k.nodeID, k.segment = info.GetNodeId(), info.GetAccessibleTopology().GetSegments()
	can, err := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("ask driver %q what its node service can do: %w", k.driver, err)
	}
	for _, c := range can.GetCapabilities() {
		k.stages = k.stages || c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
		k.many = k.many || c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	}
	k.log.stages = k.stages
	services, err := identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("ask driver %q for its services: %w", k.driver, err)
	}
	if slices.ContainsFunc(services.GetCapabilities(), func(c *csi.PluginCapability) bool {
		return c.GetService().GetType() == csi.PluginCapability_Service_CONTROLLER_SERVICE
	}) {
		k.controller = csi.NewControllerClient(patient{k.log})
	}
	return nil
}

// object is the driver's CSIDriver object.
func (k *Kubelet) object() *storagev1.CSIDriver {
	if k.cfg.Object != nil {
		return k.cfg.Object
	}
	info, attach := true, k.announcesAttach()
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if k.cfg.Inline != nil {
		modes = append(modes, storagev1.VolumeLifecycleEphemeral)
	}
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: k.driver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &attach, PodInfoOnMount: &info, VolumeLifecycleModes: modes},
	}
}

func (k *Kubelet) announcesAttach() bool {
	if k.controller == nil {
		return false
	}
	ctx, cancel := k.deadline()
	defer cancel()
	can, err := k.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		k.t.Fatalf("ask driver %q what its controller can do: %v", k.driver, err)
	}
	return slices.ContainsFunc(can.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	})
}

func (k *Kubelet) deadline() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), patience)
	go func() {
		select {
		case <-k.log.broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// fatalf ends the test with what the driver has done against the specification, and else with what was waited for.
func (k *Kubelet) fatalf(format string, args ...any) {
	k.t.Helper()
	for _, problem := range k.log.violations() {
		k.t.Error(problem)
	}
	k.t.Fatalf(format+"; calls:\n%s", append(args, k.Transcript())...)
}

// Start starts the kubelet again after Kill or a crash: it finds on disk what it has mounted, has the pods that still exist keep their volumes, and
// unmounts those of other pods.
func (k *Kubelet) Start() {
	k.t.Helper()
	k.killer = &killer{struck: make(chan struct{})}
	plugin, err := kubeletplugin.New(kubeletplugin.Config{
		Node: nodeName, RootDir: k.root, Objects: k.objects, Secrets: secrets(k.cfg.Secrets), Attach: k.attachments.calls(),
		Dial: func(string) (grpc.ClientConnInterface, error) { return k.log, nil }, Fault: k.killer.at,
		StatsInterval: -1, // which would be calls at any moment
	})
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	found, err := plugin.Open(ctx)
	if err != nil {
		cancel()
		k.t.Fatal(err)
	}
	if len(found.Lost)+len(found.Foreign) > 0 {
		k.t.Errorf("a restart finds mounts without a record: %+v %+v", found.Lost, found.Foreign)
	}
	ended := make(chan error, 2)
	go func() { ended <- plugin.RunDrivers(ctx) }()
	go func() { ended <- plugin.RunVolumes(ctx) }()
	k.plugin = plugin
	k.halt = func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, plugin.Close()); err != nil {
			k.t.Errorf("the kubelet ended with %v", err)
		}
	}
	k.register()
	k.adopt()
}

// register takes the driver into use, which may be starting.
func (k *Kubelet) register() {
	k.t.Helper()
	ctx, cancel := k.deadline()
	defer cancel()
	for {
		err := k.plugin.Register(ctx, k.driver, "driver")
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			k.fatalf("waited for driver %q to register: %v", k.driver, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// adopt brings the pods on disk and those that exist together.
func (k *Kubelet) adopt() {
	k.t.Helper()
	onDisk, err := k.plugin.Pods()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, uid := range onDisk {
		if k.pods[uid] == nil {
			k.unmount(uid)
		}
	}
	k.unmount("none") // what is staged or attached without a pod
	for _, p := range k.pods {
		p.wait()
	}
}

// Kill ends the kubelet as SIGKILL does: mounts and records stay. It has no effect if it does not run.
func (k *Kubelet) Kill() {
	if k.halt != nil {
		k.halt()
		k.halt = nil
	}
}

// Restart is Kill and Start.
func (k *Kubelet) Restart() {
	k.t.Helper()
	k.Kill()
	k.Start()
}

// KillAt has the kubelet die when it comes to a point for the next time. Nothing waits for that: see Died.
func (k *Kubelet) KillAt(p fault.Point) { k.killer.arm(p) }

// Died reports whether the kubelet has come to the point of KillAt. Kill and Start must follow.
func (k *Kubelet) Died() bool {
	select {
	case <-k.killer.struck:
		return true
	default:
		return false
	}
}

// LoseAnswer has the next call of a method, such as NodeStageVolume, take effect without an answer: the kubelet gets UNAVAILABLE.
func (k *Kubelet) LoseAnswer(method string) { k.log.lose(method) }

// Transcript lists the calls to the driver, one a line: the method, the volume by its name, the paths below the root directory, and the code of the answer.
func (k *Kubelet) Transcript() string { return k.log.transcript() }

// CheckClean checks that no pod exists, that nothing is left below the root directory and attached, and that no call was against the life cycle.
func (k *Kubelet) CheckClean() {
	k.t.Helper()
	for _, problem := range slices.Concat(k.log.violations(), k.leftovers()) {
		k.t.Error(problem)
	}
	if k.t.Failed() {
		k.t.Logf("calls:\n%s", k.Transcript())
	}
}

// killer stops the plugin at a point: nothing after it happens.
type killer struct {
	mu     sync.Mutex
	point  fault.Point
	dead   bool
	struck chan struct{}
}

func (k *killer) arm(p fault.Point) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.point = p
}

func (k *killer) at(p fault.Point) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.dead && p != k.point {
		return nil
	}
	if !k.dead {
		k.dead = true
		close(k.struck)
	}
	return fault.ErrCrashed
}

// secrets answers every reference with the same secret.
type secrets map[string]string

// Secret implements volume.Secrets.
func (s secrets) Secret(_ context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	}
	return s, nil
}
