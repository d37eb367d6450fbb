package nodeobj

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Config says what a Keeper keeps.
type Config struct {
	// Template is what is said about the node.
	Template Template
	// Nodes is the client, with the rights of the node.
	Nodes kube.Nodes
	// View is shown every answer.
	View *View
	// Frequency is how often the status is computed; it is written if it has changed. 10 s if zero.
	Frequency time.Duration
	// Heartbeat is how often the status is written although it has not changed. 5 min if zero.
	Heartbeat time.Duration
	// Timeout is the deadline of one call. 10 s if zero.
	Timeout time.Duration
}

// Keeper writes the Node object of one node.
type Keeper struct {
	cfg   Config
	wake  chan struct{}
	found chan struct{}

	once sync.Once

	mu       sync.Mutex
	notReady error
	// force makes the next sync write the status even if nothing has changed.
	force bool
}

// New makes a Keeper. The node is not ready until SetReady is called with nil.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.Template.Validate(); err != nil {
		return nil, fmt.Errorf("configure node object: %w", err)
	}
	if cfg.Nodes == nil || cfg.View == nil {
		return nil, errors.New("configure node object: client and view are needed")
	}
	for value, standard := range map[*time.Duration]time.Duration{
		&cfg.Frequency: 10 * time.Second, &cfg.Heartbeat: 5 * time.Minute, &cfg.Timeout: 10 * time.Second,
	} {
		if *value == 0 {
			*value = standard
		}
	}
	return &Keeper{
		cfg: cfg, wake: make(chan struct{}, 1), found: make(chan struct{}),
		notReady: errors.New("node agent is starting"),
	}, nil
}

// SetReady says why the node is not ready, or by nil that it is. It is written at once.
func (k *Keeper) SetReady(notReady error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notReady = notReady
	k.Poke()
}

// Poke makes the Keeper compare the Node with what it should be now.
func (k *Keeper) Poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Verify makes the Keeper write the status now; the answer shows whether the Node still exists.
func (k *Keeper) Verify() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.force = true
	k.Poke()
}

// Registered is closed when the Node exists.
func (k *Keeper) Registered() <-chan struct{} { return k.found }

// Run keeps the Node until ctx is done. Errors are logged and tried again.
func (k *Keeper) Run(ctx context.Context) error {
	retry := time.Duration(0)
	for {
		pause := k.cfg.Frequency
		if err := k.sync(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Node object is not up to date, retrying", logging.KeyNode, k.cfg.Template.Name)
			retry = min(max(2*retry, 200*time.Millisecond), k.cfg.Frequency)
			pause = retry
		} else {
			retry = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// WriteInUse replaces volumesInUse and shows the answer to the view.
func (k *Keeper) WriteInUse(ctx context.Context, names []string) error {
	patch, err := InUsePatch(names)
	if err != nil {
		return err
	}
	return k.patch(ctx, patch)
}

// sync brings the Node to what it should be.
func (k *Keeper) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	node := k.cfg.View.Node()
	if node == nil {
		var err error
		if node, err = k.register(ctx); err != nil {
			return err
		}
		k.cfg.View.Observe(node)
	}
	k.once.Do(func() { close(k.found) })
	force, notReady := k.wishes()
	conditions := Conditions(node.Status.Conditions, notReady, metav1.Now())
	if !force && !k.cfg.Template.stale(node, conditions, k.cfg.Heartbeat) {
		return nil
	}
	patch, err := k.cfg.Template.StatusPatch(conditions)
	if err != nil {
		return err
	}
	if err := k.patch(ctx, patch); err != nil {
		k.restoreForce(force)
		return err
	}
	return nil
}

// wishes returns whether the status must be written, and why the node is not ready.
func (k *Keeper) wishes() (force bool, notReady error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	force, k.force = k.force, false
	return force, k.notReady
}

// restoreForce keeps the request to write after a write that has failed.
func (k *Keeper) restoreForce(force bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.force = k.force || force
}

// register gets the Node, or creates it.
func (k *Keeper) register(ctx context.Context) (*corev1.Node, error) {
	name := k.cfg.Template.Name
	node, err := k.cfg.Nodes.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return node, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get node %q: %w", name, err)
	}
	k.mu.Lock()
	conditions := Conditions(nil, k.notReady, metav1.Now())
	k.mu.Unlock()
	node, err = k.cfg.Nodes.Create(ctx, k.cfg.Template.Object(conditions), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create node %q: %w", name, err)
	}
	return node, nil
}

// patch writes the status. If the Node turns out to be gone, it is re-created.
func (k *Keeper) patch(ctx context.Context, patch []byte) error {
	name, known := k.cfg.Template.Name, k.cfg.View.Node()
	node, err := k.cfg.Nodes.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) && known != nil {
		k.cfg.View.Gone(known)
		k.Poke()
	}
	if err != nil {
		return fmt.Errorf("patch status of node %q: %w", name, err)
	}
	k.cfg.View.Answered(node, known)
	return nil
}

// stale reports whether a Node has to be written: something differs from the template, or the
// heartbeat is old.
func (t *Template) stale(n *corev1.Node, conditions []corev1.NodeCondition, heartbeat time.Duration) bool {
	want := t.Object(conditions)
	_, managed := n.Annotations[ManagedAnnotation]
	switch {
	case t.Unmanaged && managed, !contains(n.Labels, want.Labels), !contains(n.Annotations, want.Annotations),
		!contains(n.Status.Capacity, want.Status.Capacity), !contains(n.Status.Allocatable, want.Status.Allocatable),
		!equality.Semantic.DeepEqual(n.Status.Addresses, want.Status.Addresses),
		n.Status.NodeInfo.KubeletVersion != want.Status.NodeInfo.KubeletVersion:
		return true
	}
	for _, c := range conditions {
		if !current(n.Status.Conditions, c, heartbeat) {
			return true
		}
	}
	return false
}

func current(have []corev1.NodeCondition, want corev1.NodeCondition, heartbeat time.Duration) bool {
	for _, h := range have {
		if h.Type == want.Type {
			return h.Status == want.Status && h.Reason == want.Reason && h.Message == want.Message &&
				want.LastHeartbeatTime.Sub(h.LastHeartbeatTime.Time) < heartbeat
		}
	}
	return false
}

// contains reports whether have has everything that is in want.
func contains[M ~map[K]V, K comparable, V any](have, want M) bool {
	merged := maps.Clone(have)
	if merged == nil {
		merged = M{}
	}
	maps.Copy(merged, want)
	return equality.Semantic.DeepEqual(have, merged)
}
