package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/disk"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// Config says what a Manager works with.
type Config struct {
	// Node is the name of the node.
	Node string
	// Root is the root directory, below which volumes are staged and published.
	Root layout.Root
	// Drivers finds drivers; required, as the next six are.
	Drivers Drivers
	// InUse keeps volumesInUse.
	InUse InUse
	// Attachments reads volumesAttached and VolumeAttachments.
	Attachments Attachments
	// Claims reads and writes claims that ask for an expansion.
	Claims Claims
	// Secrets reads secrets for calls.
	Secrets Secrets
	// Tokens requests service account tokens for drivers that want them.
	Tokens Tokens
	// Events are told what fails.
	Events Events
	// Timeout is the deadline of one step with all its calls; 2 minutes if it is zero.
	Timeout time.Duration
	// SyncInterval is how often the claim of a published volume is looked at for an expansion, and NodePublishVolume is repeated for
	// drivers that want it; half as much again at random; 1 minute if it is zero.
	SyncInterval time.Duration
	// Changed is called with the UID of a pod one of whose volumes was published or unpublished,
	// or failed to. It must not block; nil is allowed.
	Changed func(types.UID)
	// Released is called with the name of a volume that has left the node: nothing of it is staged, published or in use. It must not block; nil is allowed.
	Released func(volume string)
	// Measure is called with the duration of each operation on a volume. It must not block; nil is allowed.
	Measure func(Measurement)
	// Clock tells the time; nil means that of the machine. Deadlines of calls are not of this clock.
	Clock clock.Clock
	// Spread returns random numbers in [0, 1) for the backoff; nil means math/rand.
	Spread func() float64
	// changeGroup changes the group of files, and counts them; nil means fsgroup.Apply.
	changeGroup func(ctx context.Context, c fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error)
	// Fault stops the work at named points in crash tests.
	Fault fault.Hook
}

// Manager runs the actors of all volumes of a node.
type Manager struct {
	cfg     Config
	disk    *disk.Disk
	backoff backoff

	mu     sync.Mutex
	actors map[string]*actor
	// pods lists the volumes of each pod.
	pods   map[types.UID]sets.Set[string]
	owners owners
	// leaving has the pods that are known not to want their volumes any more, for events.
	leaving map[types.UID]Pod
	// start starts an actor; nil before Run.
	start func(*actor)
}

// New makes a Manager that does nothing until Run.
func New(cfg Config) (*Manager, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure volume manager: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Minute
	}
	if cfg.SyncInterval == 0 {
		cfg.SyncInterval = time.Minute
	}
	if cfg.changeGroup == nil {
		cfg.changeGroup = fsgroup.Apply
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Spread == nil {
		cfg.Spread = rand.Float64
	}
	return &Manager{
		cfg:  cfg,
		disk: &disk.Disk{Root: cfg.Root, Fault: cfg.Fault},
		backoff: backoff{
			start: 500 * time.Millisecond, quick: 20 * time.Millisecond,
			limit: 2*time.Minute + 2*time.Second, look: cfg.SyncInterval, spread: cfg.Spread,
		},
		actors:  map[string]*actor{},
		pods:    map[types.UID]sets.Set[string]{},
		owners:  owners{volumes: map[string]string{}, waiting: map[string]sets.Set[string]{}},
		leaving: map[types.UID]Pod{},
	}, nil
}

func (c *Config) validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("node name is empty"))
	}
	if c.Root == "" || c.Drivers == nil || c.InUse == nil || c.Attachments == nil || c.Claims == nil || c.Secrets == nil || c.Tokens == nil || c.Events == nil {
		errs = append(errs, errors.New("root directory, drivers, in-use flags, attachments, claims, secrets, tokens and events are all needed"))
	}
	if c.Timeout < 0 || c.SyncInterval < 0 {
		errs = append(errs, fmt.Errorf("timeout %v or sync interval %v is negative", c.Timeout, c.SyncInterval))
	}
	return errors.Join(errs...)
}

// Adopt takes over volumes that were found on disk. What is adopted stays as it is until its pod is
// dropped or wants it again. A volume that is adopted without any use or stage leaves volumesInUse.
func (m *Manager) Adopt(found []Recovered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range found {
		a := m.actor(f.Volume)
		d := &a.state.device
		if f.Staged && d.stage == absent {
			d.stage, d.stagedFor, d.stagedAs = uncertain, f.StagedFor, f.Volume.form()
			_ = m.owners.take(m.staging(&f.Volume), f.Volume.Name) // records have one owner for a path
		}
		if f.Volume.Attachable && d.inUse == inUseNone {
			d.inUse = inUseSent
		}
		d.pinned = d.pinned || f.Pinned
		for _, k := range f.Targets {
			if a.state.uses[k] == nil {
				a.state.uses[k] = &use{mount: uncertain, seLinuxContext: f.Volume.SELinuxContext, podUnknown: true, recovered: !f.Rebooted}
				_ = m.owners.take(m.target(k), f.Volume.Name)
			}
			m.index(k.Pod, f.Volume.Name)
		}
		a.poke()
	}
}

// Unpin lets an adopted volume be unstaged: all mounts are explained.
func (m *Manager) Unpin(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.actors[name]; a != nil {
		a.state.device.pinned = false
		a.poke()
	}
}

// Run starts the actors and returns when ctx is done and all of them have stopped.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	m.mu.Lock()
	m.start = func(a *actor) { wg.Go(func() { m.run(ctx, a) }) }
	for _, a := range m.actors {
		m.start(a)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.start = func(*actor) {}
	m.mu.Unlock()
	wg.Wait()
	return nil
}

// Want asks for a volume to be published for a pod. Repeating it changes nothing.
func (m *Manager) Want(p Publication) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, k := m.actor(p.Volume), p.Key()
	s := &a.state
	u := s.uses[k]
	if u == nil {
		u = &use{}
		s.uses[k] = u
	}
	if u.mount == present || u.mount == uncertain && p.Running { // containers have it, whatever the CSIDriver object says since
		p.Volume.SELinuxContext = u.seLinuxContext
	}
	if u.want != nil && reflect.DeepEqual(*u.want, p) {
		return
	}
	if s.anyWant() == nil || s.device.stage == absent {
		s.volume = p.Volume
	}
	if u.want == nil {
		u.wantedSince = m.cfg.Clock.Now()
	}
	u.want, u.podUnknown, u.recovered = &p, false, u.recovered && p.Running
	u.reset()
	s.device.reset()
	s.device.attached = nil // the detaching side may have moved since it was read
	m.index(k.Pod, p.Volume.Name)
	delete(m.leaving, k.Pod)
	a.poke()
}

// Drop says that a pod positively does not want any of its volumes any more. Repeating it changes
// nothing.
func (m *Manager) Drop(pod Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.pods[pod.UID] {
		m.leaving[pod.UID] = m.named(name, pod)
		m.dropFrom(m.actors[name], pod.UID)
	}
}

// named adds the name of a pod that is known by its UID, for events.
func (m *Manager) named(volume string, pod Pod) Pod {
	if pod.Name != "" {
		return pod
	}
	for k, u := range m.actors[volume].state.uses {
		if k.Pod == pod.UID && u.want != nil {
			return u.want.Pod
		}
	}
	return cmp.Or(m.leaving[pod.UID], pod)
}

func (m *Manager) dropFrom(a *actor, pod types.UID) {
	s := &a.state
	for _, k := range s.keys() {
		u := s.uses[k]
		if k.Pod != pod || u.unwanted() {
			continue
		}
		u.want, u.podUnknown = nil, false
		u.reset()
		if u.interrupt != nil {
			u.interrupt()
		}
		forget(s, k)
	}
	if !s.wanted() {
		s.device.reset()
	}
	m.unindex(pod, a.name)
	a.poke()
}

// Busy reports whether any volume of the pod is, or may be, published, or is wanted.
func (m *Manager) Busy(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods[pod]) > 0
}

// Of lists the volumes that the pod has published, may have, or wants, sorted.
func (m *Manager) Of(pod types.UID) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sets.List(m.pods[pod])
}

// Leaving reports whether a volume is on its way out: no pod uses it any more, but something of it is still there. A volume that is kept although
// nothing uses it (Recovered.Pinned) is not.
func (m *Manager) Leaving(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[name]
	return a != nil && len(a.state.uses) == 0 && !a.state.device.pinned
}

// Unstaging lists those of the named volumes that no pod uses any more, and that are, or may be, staged although nothing is attached that a controller would wait for
// before it deletes them.
func (m *Manager) Unstaging(names []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		a := m.actors[name]
		return a == nil || len(a.state.uses) > 0 || a.state.device.pinned || a.state.device.stage == absent || a.state.volume.Attachable
	})
}

// Pinned reports whether a volume is kept although nothing is known to use it (Recovered.Pinned).
func (m *Manager) Pinned(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[name]
	return a != nil && len(a.state.uses) == 0 && a.state.device.pinned
}

// InUse lists the volumes that must be in volumesInUse, sorted.
func (m *Manager) InUse() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for name, a := range m.actors {
		if a.state.device.inUse != inUseNone {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// DriverChanged ends the backoff of all volumes of a driver.
func (m *Manager) DriverChanged(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.actors {
		if s := &a.state; s.volume.Driver == name {
			s.device.retryAt = time.Time{}
			for _, u := range s.uses {
				u.retryAt = time.Time{}
				if u.republish.err != nil {
					u.republish.retryAt = time.Time{}
				}
			}
			for _, e := range s.expansions {
				if e.err != nil {
					e.retryAt = time.Time{}
				}
			}
			a.poke()
		}
	}
}

// Attached wakes the volumes that are new in volumesAttached; Attachments must show them already.
func (m *Manager) Attached(volumes ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range volumes {
		a := m.actors[name]
		if a == nil {
			continue
		}
		d := &a.state.device
		if d.attachChanges++; d.waiting {
			d.retryAt = time.Time{}
			a.poke()
		}
	}
}

// actor returns the actor of a volume, and makes it if there is none; the caller holds the lock.
func (m *Manager) actor(v Volume) *actor {
	a := m.actors[v.Name]
	if a == nil {
		a = newActor(v)
		m.actors[v.Name] = a
		if m.start != nil {
			m.start(a)
		}
	}
	return a
}

func (m *Manager) index(pod types.UID, volume string) {
	if m.pods[pod] == nil {
		m.pods[pod] = sets.Set[string]{}
	}
	m.pods[pod].Insert(volume)
}

// unindex takes a volume from a pod that has no use of it any more.
func (m *Manager) unindex(pod types.UID, volume string) {
	if a := m.actors[volume]; a != nil {
		for k := range a.state.uses {
			if k.Pod == pod {
				return
			}
		}
	}
	m.pods[pod].Delete(volume)
	if len(m.pods[pod]) == 0 {
		delete(m.pods, pod)
		delete(m.leaving, pod)
		m.cfg.Tokens.Forget(pod)
	}
}
