package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	defaultCallTimeout = 30 * time.Second
	defaultResync      = time.Minute
)

// Config says for which node to write, and how. Client and NodeName are
// required.
type Config struct {
	// Client acts as the node: system:node:<name> or a like identity.
	Client kube.Client
	// NodeName is the name of the Node, and of its CSINode.
	NodeName string
	// Collision says what happens when a topology label has another value.
	// Default: fail.
	Collision Collision
	// NoAnnotation leaves NodeIDAnnotation unchanged.
	NoAnnotation bool
	// CallTimeout bounds each call to the API server. Default 30 s.
	CallTimeout time.Duration
	// Resync is how often Run checks that CSINode and Node are still as they
	// were written. Default 1 min.
	Resync time.Duration
	// Linger is how long an uninstalled driver keeps its entry in the CSINode and its node ID, in case it is only being restarted. At the
	// start, entries that were not written by this process are kept for as long, and then removed unless their drivers were installed. Zero: a
	// driver that is uninstalled is removed at once, and entries that are there at the start stay.
	Linger time.Duration
	// Waits reports whether the scheduler keeps pods off nodes without a driver (CSIDriver.spec.preventPodSchedulingIfMissing, KEP-5030): its entry then goes at
	// once, so that none comes while it is away; nil for no driver.
	Waits func(driver string) bool
}

func (cfg Config) withDefaults() Config {
	if cfg.Collision == "" {
		cfg.Collision = CollisionFail
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = defaultCallTimeout
	}
	if cfg.Resync == 0 {
		cfg.Resync = defaultResync
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	if cfg.Client == nil {
		errs = append(errs, errors.New("kubernetes client: must not be nil"))
	}
	if cfg.NodeName == "" {
		errs = append(errs, fmt.Errorf("node name %q: must not be empty", cfg.NodeName))
	}
	if cfg.Collision != CollisionFail && cfg.Collision != CollisionOverwrite {
		errs = append(errs, fmt.Errorf("topology collision policy %q: must be %q or %q", cfg.Collision, CollisionFail, CollisionOverwrite))
	}
	if cfg.CallTimeout < 0 || cfg.Resync < 0 || cfg.Linger < 0 {
		errs = append(errs, fmt.Errorf("call timeout %v, resync interval %v, linger %v: must not be negative", cfg.CallTimeout, cfg.Resync, cfg.Linger))
	}
	return errors.Join(errs...)
}

// Writer keeps one node's CSINode, labels and annotation. It is safe for
// concurrent use; its writes happen one after the other.
type Writer struct {
	cfg Config
	// turn serializes the read-modify-write cycles.
	turn keymutex.Locks[struct{}]
	wake chan struct{}

	mu sync.Mutex
	// drivers are those that Install has installed and that were not removed since.
	drivers map[string]Driver
	// leaving are those that were uninstalled, with the time from which they are to be removed, until that is done.
	leaving map[string]time.Time
	// adopted is true once the entries that were there at the start are known.
	adopted bool
	problem error
}

// New checks cfg and returns a writer that has written nothing yet.
func New(cfg Config) (*Writer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Writer{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		drivers: map[string]Driver{},
		leaving: map[string]time.Time{},
		problem: fmt.Errorf("CSINode %q is not yet initialized", cfg.NodeName),
	}, nil
}

// EnsureCSINode returns when the node's CSINode exists, belongs to the present
// Node and lists the installed drivers, but none that is to be removed. It
// retries until ctx ends, whatever the error; Problem returns it meanwhile.
func (w *Writer) EnsureCSINode(ctx context.Context) error {
	return w.retry(ctx, fmt.Sprintf("write CSINode %q", w.cfg.NodeName), retryAlways, func(ctx context.Context) error {
		return w.writeCSINode(ctx, w.wish(nil))
	})
}

// Install writes the driver's labels and node ID to the Node, then its entry to
// the CSINode; if nothing differs it writes nothing. It retries until ctx ends,
// except errors that a retry would not change: a topology that contradicts a
// label (ErrCollision), an invalid value, a missing permission. After an error
// part of it may be written; Uninstall removes it.
func (w *Writer) Install(ctx context.Context, d Driver) error {
	if err := d.validate(); err != nil {
		return err
	}
	what := fmt.Sprintf("install CSI driver %q on node %q", d.Name, w.cfg.NodeName)
	return w.retry(ctx, what, retryTransient, func(ctx context.Context) error {
		if err := w.writeNode(ctx, d); err != nil {
			return err
		}
		if err := w.writeCSINode(ctx, w.wish(&d)); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drivers[d.Name] = d
		delete(w.leaving, d.Name)
		return nil
	})
}

// Update writes the volume limit of an installed driver to the CSINode if it is not the installed one, and reports whether it was not. The
// API lets nothing else of an entry change; the driver must register again with another node ID or topology. A driver that is not
// installed is left so. It retries like Install.
func (w *Writer) Update(ctx context.Context, d Driver) (changed bool, err error) {
	if err := d.validate(); err != nil {
		return false, err
	}
	what := fmt.Sprintf("update the volume limit of CSI driver %q on node %q", d.Name, w.cfg.NodeName)
	err = w.retry(ctx, what, retryTransient, func(ctx context.Context) error {
		installed, ok := w.installed(d.Name)
		if ok && !sameIdentity(installed.entry(), d.entry()) {
			klog.FromContext(ctx).V(2).Info("CSI driver reports another node ID or other topology keys, which it must register again for",
				logging.KeyDriver, d.Name, logging.KeyNodeID, d.NodeID)
		}
		if !ok || count(installed.entry()) == count(d.entry()) {
			return nil
		}
		installed.MaxVolumes = d.MaxVolumes
		if err := w.writeCSINode(ctx, w.wish(&installed)); err != nil {
			return err
		}
		changed = w.replace(installed)
		return nil
	})
	return changed, err
}

func (w *Writer) installed(name string) (Driver, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.drivers[name]
	return d, ok && !w.gone(name)
}

// replace keeps d unless the driver was uninstalled meanwhile; then what was written is removed.
func (w *Writer) replace(d Driver) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.drivers[d.Name]
	if ok = ok && !w.gone(d.Name); ok {
		w.drivers[d.Name] = d
	}
	return ok
}

// Uninstall removes the driver's entry from the CSINode, then its node ID from
// the Node. Labels stay, as volumes may refer to them. It retries like Install;
// Run removes what is left when ctx ends. With Config.Linger, it only returns,
// and Run removes the driver unless it is installed again in time.
func (w *Writer) Uninstall(ctx context.Context, name string) error {
	linger := w.linger(name)
	w.leave(name)
	if linger > 0 {
		klog.FromContext(ctx).V(2).Info("CSI driver keeps its entry in the CSINode for the moment", logging.KeyDriver, name, logging.KeyDelay, linger)
		return nil
	}
	return w.remove(ctx, name)
}

// linger is how long a driver keeps its entry.
func (w *Writer) linger(name string) time.Duration {
	if w.cfg.Waits != nil && w.cfg.Waits(name) {
		return 0
	}
	return w.cfg.Linger
}

// leave notes that a driver is to be removed, and when. A driver that is uninstalled several times, because its registration keeps failing,
// gets no more time for it.
func (w *Writer) leave(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.leaving[name]; ok {
		return
	}
	linger := w.linger(name)
	w.leaving[name] = time.Now().Add(linger)
	if linger > 0 {
		time.AfterFunc(linger, w.Resync)
	}
}

// adopt has the entries of a CSINode, nil for none, that an earlier process has written leave, unless their drivers are installed in time.
func (w *Writer) adopt(obj *storagev1.CSINode) {
	if w.cfg.Linger == 0 || !w.firstLook() || obj == nil {
		return
	}
	for i := range obj.Spec.Drivers {
		if name := obj.Spec.Drivers[i].Name; !w.known(name) {
			w.leave(name)
		}
	}
}

// firstLook reports whether it is called for the first time.
func (w *Writer) firstLook() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.adopted
	w.adopted = true
	return first
}

func (w *Writer) known(name string) bool {
	_, ok := w.installed(name)
	return ok
}

// remove removes the entry and node ID of a driver, unless it was installed
// again meanwhile.
func (w *Writer) remove(ctx context.Context, name string) error {
	what := fmt.Sprintf("uninstall CSI driver %q from node %q", name, w.cfg.NodeName)
	return w.retry(ctx, what, retryTransient, func(ctx context.Context) error {
		if !w.isLeaving(name) {
			return nil
		}
		if err := w.writeCSINode(ctx, w.wish(nil)); err != nil {
			return err
		}
		if err := w.clearNode(ctx, name); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.leaving, name)
		delete(w.drivers, name)
		return nil
	})
}

// isLeaving reports whether a driver is to be removed now.
func (w *Writer) isLeaving(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone(name)
}

// gone reports whether a driver is to be removed now. The caller holds the lock.
func (w *Writer) gone(name string) bool {
	at, ok := w.leaving[name]
	return ok && !at.After(time.Now())
}

// wish returns what the CSINode shall be: with all installed drivers, those that linger, and extra,
// without those that are to be removed.
func (w *Writer) wish(extra *Driver) wish {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := wish{present: map[string]storagev1.CSINodeDriver{}, absent: map[string]bool{}}
	for name, d := range w.drivers {
		want.present[name] = d.entry()
	}
	for name := range w.leaving {
		if w.gone(name) {
			delete(want.present, name)
			want.absent[name] = true
		}
	}
	if extra != nil {
		want.present[extra.Name] = extra.entry()
		delete(want.absent, extra.Name)
	}
	return want
}

// Installed returns the installed drivers and those that linger, sorted by name.
func (w *Writer) Installed() []Driver {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Driver, 0, len(w.drivers))
	for _, name := range sortedKeys(w.drivers) {
		if !w.gone(name) {
			all = append(all, w.drivers[name])
		}
	}
	return all
}

// Problem says why the CSINode has not been written yet, nil from the first
// time it was: a node is not ready before.
func (w *Writer) Problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// note records the outcome of writing the CSINode.
func (w *Writer) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem != nil {
		w.problem = err
	}
}
