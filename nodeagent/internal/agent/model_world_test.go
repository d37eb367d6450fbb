package agent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

const (
	// fullDriver attaches, stages and expands volumes, and has inline volumes.
	fullDriver = csitest.DefaultName
	// plainDriver only publishes volumes, and wants the calls to be repeated.
	plainDriver = "plain.csi.longshore.example"
	// traceLines is how much of what has happened a failure prints.
	traceLines = 400
)

// modelVolume is a claim with its PersistentVolume and its volume.
type modelVolume struct {
	claim   string
	driver  string
	mode    corev1.PersistentVolumeAccessMode
	isBlock bool
	secret  bool
}

// modelVolumes are all claims of the model. They exist all the time.
var modelVolumes = []modelVolume{
	{claim: "rwo-1", driver: fullDriver, mode: corev1.ReadWriteOnce},
	{claim: "rwo-2", driver: fullDriver, mode: corev1.ReadWriteOnce, secret: true},
	{claim: "rwx", driver: fullDriver, mode: corev1.ReadWriteMany},
	{claim: "rwop", driver: fullDriver, mode: corev1.ReadWriteOncePod},
	{claim: "block", driver: fullDriver, mode: corev1.ReadWriteOnce, isBlock: true},
	{claim: "plain", driver: plainDriver, mode: corev1.ReadWriteMany},
}

func (v *modelVolume) pv() string      { return "pv-" + v.claim }
func (v *modelVolume) handle() string  { return "vol-" + v.claim }
func (v *modelVolume) attaches() bool  { return v.driver == fullDriver }
func (v *modelVolume) onOneNode() bool { return v.mode != corev1.ReadWriteMany }
func (v *modelVolume) unique() string  { return layout.Unique(v.driver, v.handle()) }
func (v *modelVolume) uid() types.UID  { return types.UID("claim-" + v.claim) }
func (v *modelVolume) getsGroup() bool { return !v.isBlock && v.onOneNode() }

// modelVolumeOf finds a volume by its claim or its handle; nil for an inline volume.
func modelVolumeOf(name string) *modelVolume {
	for i := range modelVolumes {
		if v := &modelVolumes[i]; v.claim == name || v.handle() == name {
			return v
		}
	}
	return nil
}

// model is a cluster.
type model struct {
	t          *testing.T
	seed       uint64
	rand       *rand.Rand // for the goroutine of the test
	dir        string
	api        *kubetest.Cluster
	drivers    map[string]*modelDriver
	nodes      []*modelNode
	controller *attachDetach
	inotify    *kubeletplugin.Inotify
	stats      *modelStats
	focus      fault.Point
	began      time.Time
	firstStep  int
	serial     int
	// calls are in progress at drivers.
	calls sync.WaitGroup

	mu sync.Mutex // for what follows. No request to the API server is made while it is held.
	// noise is for goroutines of agents and drivers.
	noise *rand.Rand
	lives map[lifeKey]*life
	// forced has the UIDs of attachments that ended without the consent of the node.
	forced map[types.UID]bool
	// capacity is the size that a driver has confirmed for a volume, by handle.
	capacity map[string]int64
	trace    []string
	// problem is the first violation.
	problem string
}

// modelNode is a machine: its disk and mounts outlive agents.
type modelNode struct {
	model *model
	name  string
	root  layout.Root
	// process is the agent; nil while none runs.
	process *process
	// startAt is when an agent is started again.
	startAt time.Time
}

// process is the life of one agent.
type process struct {
	node    *modelNode
	agent   *Agent
	session *kubetest.Session
	dead    atomic.Bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	// armed is the fault point at which it is killed, and reads has the VolumeAttachments as it has read them last. Both are the model's, under its lock.
	armed fault.Point
	reads map[string]*storagev1.VolumeAttachment
}

func newModel(t *testing.T, seed uint64, inotify *kubeletplugin.Inotify, stats *modelStats) *model {
	t.Helper()
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &model{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), noise: rand.New(rand.NewPCG(seed, 2)), dir: dir, api: kubetest.New(),
		drivers: map[string]*modelDriver{}, inotify: inotify, stats: stats, began: time.Now(), firstStep: stats.steps, focus: killPoints()[seed%uint64(len(killPoints()))],
		lives: map[lifeKey]*life{}, forced: map[types.UID]bool{}, capacity: map[string]int64{},
	}
	names := []string{"node-1", "node-2"}
	m.drivers[fullDriver] = newModelDriver(m, names, csitest.Options{Name: fullDriver, TargetPaths: true})
	m.drivers[plainDriver] = newModelDriver(m, names, csitest.Options{Name: plainDriver, TargetPaths: true, Node: []csi.NodeServiceCapability_RPC_Type{}})
	m.controller = newAttachDetach(m)
	m.addObjects()
	m.api.Observe(m.observe)
	for _, name := range names {
		n := &modelNode{model: m, name: name, root: layout.Root(filepath.Join(dir, name))}
		m.nodes = append(m.nodes, n)
		n.start()
	}
	return m
}

// addObjects makes the objects that users and provisioners make.
func (m *model) addObjects() {
	full := csiDriver(true)
	full.Spec.FSGroupPolicy = on(storagev1.FileFSGroupPolicy)
	plain := csiDriver(false)
	plain.Name, plain.Spec.RequiresRepublish = plainDriver, on(true)
	plain.Spec.FSGroupPolicy = on(storagev1.NoneFSGroupPolicy)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "secret"}, Data: map[string][]byte{"key": []byte("value")}}
	m.apply(full, plain, secret)
	for i := range modelVolumes {
		v := &modelVolumes[i]
		m.apply(v.claimObject(), v.object())
		m.drivers[v.driver].csi.AddVolume(csitest.Volume{ID: v.handle(), Capacity: 1 << 40})
	}
}

func mebi(n int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(n<<20, resource.BinarySI)}
}

func (v *modelVolume) claimObject() *corev1.PersistentVolumeClaim {
	c := claim()
	c.Name, c.UID, c.Spec.VolumeName = v.claim, v.uid(), v.pv()
	c.Spec.AccessModes, c.Status.Capacity = []corev1.PersistentVolumeAccessMode{v.mode}, mebi(1)
	return c
}

func (v *modelVolume) object() *corev1.PersistentVolume {
	pv := persistentVolume()
	pv.Name, pv.Spec.Capacity, pv.Spec.AccessModes = v.pv(), mebi(1), []corev1.PersistentVolumeAccessMode{v.mode}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: v.claim, UID: v.uid()}
	pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.FSType = v.driver, v.handle(), "ext4"
	if v.isBlock {
		pv = asBlock(pv)
	}
	if v.secret {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "secret"}
	}
	return pv
}

func (m *model) apply(objs ...kube.Object) {
	for _, obj := range objs {
		if err := m.api.Apply(obj); err != nil {
			m.t.Error(err)
		}
	}
}

// merge patches an object by the hand of another component.
func (m *model) merge(kind, namespace, name, patch string) {
	if err := m.api.Merge(kind, namespace, name, []byte(patch)); err != nil {
		m.t.Errorf("patch %s %s with %s: %v", kind, name, patch, err)
	}
}

// objects lists the objects of a type by name.
func objects[T kube.Object](m *model, kind string) map[string]T {
	all := map[string]T{}
	for _, obj := range m.api.Objects(kind) {
		all[obj.GetName()] = obj.(T)
	}
	return all
}

func sorted[V any](all map[string]V) []string { return slices.Sorted(maps.Keys(all)) }

// start starts an agent on what earlier ones have left.
func (n *modelNode) start() {
	m := n.model
	p := &process{node: n, session: m.api.NewSession(), reads: map[string]*storagev1.VolumeAttachment{}}
	a, err := New(Config{
		Client: reader{p.session.Client(), p}, Root: n.root, StatsPeriod: -1, Workers: 4,
		Template: nodeobj.Template{
			Name: n.name, IP: "10.0.0.1", MaxPods: 10, CPU: 4, Memory: 8 << 30, Storage: 1 << 40,
		},
		Mounts: n.mounts, Inotify: m.inotify, DialDriver: p.dial, Fault: p.fault,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(2), textlogger.Output(p)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	p.agent, p.cancel, n.process = a, cancel, p
	m.logf("%s: an agent is started", n.name)
	p.wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			m.violation("start", "%s: the agent ended with %v", n.name, err)
		}
	})
	for _, d := range m.drivers {
		p.wg.Go(func() { p.keepRegistered(ctx, d) })
	}
}

// Write implements io.Writer for the log of the agent.
func (p *process) Write(line []byte) (int, error) {
	if _, text, ok := strings.Cut(string(line), "] "); ok {
		p.node.model.logf("%s log: %s", p.node.name, strings.TrimSpace(text))
	}
	return len(line), nil
}

// keepRegistered does what a registrar and the kubelet's plugin watcher do.
func (p *process) keepRegistered(ctx context.Context, d *modelDriver) {
	select {
	case <-ctx.Done():
		return
	case <-p.agent.keeper.Registered():
	}
	registered := false
	for {
		up, changed := d.state(p.node.name)
		switch {
		case up && !registered:
			registered = p.agent.plugin.Register(ctx, d.name, "/"+d.name) == nil
		case !up && registered && d.registrarStops(p.node.name):
			p.agent.plugin.Deregister(ctx, d.name)
			registered = false
		}
		var retry <-chan time.Time
		if up && !registered {
			retry = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}

func (p *process) dial(endpoint string) (grpc.ClientConnInterface, error) {
	d := p.node.model.drivers[strings.TrimPrefix(endpoint, "/")]
	return &modelConn{process: p, driver: d, base: d.onNode[p.node.name]}, nil
}

// die ends the agent from outside: from now on nothing that it still tries has an effect.
func (p *process) die(why string) {
	if !p.dead.Swap(true) {
		p.session.Cut()
		p.node.model.logf("%s: the agent is killed %s", p.node.name, why)
	}
}

// fault is asked at each fault point, which may take its time.
func (p *process) fault(at fault.Point) error {
	m := p.node.model
	if d := m.delay(); d > 0 {
		time.Sleep(d)
	}
	m.mu.Lock()
	strikes := p.armed == at && !p.dead.Load()
	m.stats.reached[at]++
	if strikes {
		m.stats.killed[at]++
	}
	m.mu.Unlock()
	if strikes {
		p.die(string(at))
	}
	if p.dead.Load() {
		return fault.ErrCrashed
	}
	return nil
}

// delay is how long something takes that usually takes no time.
func (m *model) delay() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noise.IntN(8) > 0 {
		return 0
	}
	return time.Duration(m.noise.IntN(2000)) * time.Millisecond
}

// killPoints lists the fault points, those more often to which few volumes come.
func killPoints() []fault.Point {
	all := fault.All()
	for _, p := range fault.All() {
		if strings.Contains(string(p), "expand") || strings.Contains(string(p), "group") {
			all = append(all, p)
		}
	}
	return all
}

// reap removes a dead agent, and reports whether there was one.
func (n *modelNode) reap() bool {
	p := n.process
	if p == nil || !p.dead.Load() {
		return false
	}
	p.cancel()
	p.wg.Wait()
	n.process = nil
	n.model.stats.kills++
	return true
}

func (n *modelNode) kill(why string) {
	if n.process != nil {
		n.process.die(why)
		n.reap()
	}
}

// reboot loses all mounts, and what drivers are doing.
func (n *modelNode) reboot() {
	m := n.model
	if n.process != nil {
		m.stats.reboots++
	}
	n.kill("by a reboot of the node")
	synctest.Wait()
	for _, d := range m.drivers {
		d.reboot(n.name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, l := range m.lives {
		if k.node == n.name {
			m.lives[k] = &life{targets: map[string]*target{}, stagedFor: l.stagedFor, rebooted: l.rebooted || l.staged != no}
		}
	}
}

// mounts lists the mounts of the node.
func (n *modelNode) mounts(dir string) ([]volume.MountPoint, error) {
	var all []volume.MountPoint
	for _, d := range n.model.drivers {
		for _, v := range d.csi.Volumes() {
			for _, at := range slices.Concat(v.Staged, v.Published) {
				if at.Node == n.name && strings.HasPrefix(at.Path, dir) {
					all = append(all, volume.MountPoint{Point: at.Path, Source: d.name + v.ID})
				}
			}
		}
	}
	return all, nil
}

// stop ends all agents, and waits for the drivers.
func (m *model) stop() {
	for _, n := range m.nodes {
		n.kill("at the end")
	}
	m.calls.Wait() // in a bubble, time ends with the goroutine of the test
}

// reader notes what an agent reads about attachments.
type reader struct {
	kube.Client
	process *process
}

// VolumeAttachments implements kube.Client.
func (r reader) VolumeAttachments() kube.VolumeAttachments {
	return attachmentReader{r.Client.VolumeAttachments(), r.process}
}

type attachmentReader struct {
	kube.VolumeAttachments
	process *process
}

// Get implements kube.Resource.
func (r attachmentReader) Get(ctx context.Context, name string, opts metav1.GetOptions) (*storagev1.VolumeAttachment, error) {
	va, err := r.VolumeAttachments.Get(ctx, name, opts)
	m := r.process.node.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.process.reads[name] = va; err != nil {
		r.process.reads[name] = nil
	}
	return va, err
}

// logf adds a line to what is printed after a failure. The caller does not hold the lock.
func (m *model) logf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(format, args...)
}

func (m *model) note(format string, args ...any) {
	if len(m.trace) >= 2*traceLines {
		m.trace = slices.Delete(m.trace, 0, traceLines)
	}
	m.trace = append(m.trace, fmt.Sprintf("%9.3f %s", time.Since(m.began).Seconds(), fmt.Sprintf(format, args...)))
}

// violation reports that an invariant does not hold. The caller does not hold the lock.
func (m *model) violation(invariant, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.violated(invariant, format, args...)
}

func (m *model) violated(invariant, format string, args ...any) {
	text := fmt.Sprintf("VIOLATION of %s after %d steps (%d of this run): %s", invariant, m.stats.steps, m.stats.steps-m.firstStep, fmt.Sprintf(format, args...))
	m.note("%s", text)
	if m.problem == "" {
		m.problem = text
	}
}

func (m *model) failed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem != "" || m.t.Failed()
}

// report fails the test if there was a violation, and prints what has happened before it.
func (m *model) report() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problem == "" {
		return
	}
	m.t.Errorf("%s\nseconds of the model, and what happened:\n%s", m.problem, strings.Join(m.trace[max(len(m.trace)-traceLines, 0):], "\n"))
}
