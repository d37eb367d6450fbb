package pods

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Volumes publishes and unpublishes; it is a *volume.Manager.
type Volumes interface {
	Want(volume.Publication)
	Refresh(volume.Publication)
	Drop(volume.Pod)
	Busy(types.UID) bool
	Of(types.UID) []string
	Unstaging(names []string) []string
	Status(name string, k volume.Key) (volume.Status, bool)
}

// Recorder sends warnings as events on a pod.
type Recorder interface {
	Warning(obj runtime.Object, reason, message string)
}

// Config says what a Controller works with. All fields without a stated default are needed.
type Config struct {
	// Pods is the client, with the rights of the node.
	Pods func(namespace string) kube.Pods
	// Resolve finds the volumes that a pod wants.
	Resolve func(context.Context, *corev1.Pod) ([]volume.Publication, []*resolve.Problem)
	// Volumes publishes them.
	Volumes Volumes
	// Clean removes the directories of a pod without volumes.
	Clean func(types.UID) error
	// LimitExceeded reports whether a volume is not attached because the node has as many volumes of its driver as it can have; nil for
	// never.
	LimitExceeded func(context.Context, *volume.Volume) bool
	// Health has the conditions of those volumes of a pod whose drivers report health, for the status of the pod; nil: nothing of it is written.
	Health func(types.UID) map[volume.Key][]corev1.VolumeHealthCondition
	// Events receives the events on pods.
	Events Recorder
	// Unsupported counts a feature that a volume of a pod asks for and the agent does not do; nil for none.
	Unsupported func(feature string)
	// HostIP is the address of the node.
	HostIP string
	// Workers is the maximum number of pods processed concurrently; 16 if zero.
	Workers int
	// Timeout is the deadline of one call to the API; 10 s if zero.
	Timeout time.Duration
	// Patience is the time after which, and then the interval at which, a pod that waits for its volumes gets an event;
	// 2 minutes 3 seconds if zero, as in the kubelet.
	Patience time.Duration
	// Metrics measures the queue; nil for none.
	Metrics workqueue.MetricsProvider
}

// Controller works on all pods of a node.
type Controller struct {
	cfg   Config
	pods  table
	queue *reconcile.Controller[types.UID]
	// generation counts the changes of CSIDriver objects, from one.
	generation atomic.Int64
}

// New makes a Controller that does nothing until Run.
func New(cfg Config) (*Controller, error) {
	if cfg.Pods == nil || cfg.Resolve == nil || cfg.Volumes == nil || cfg.Clean == nil || cfg.Events == nil {
		return nil, errors.New("configure pods: client, resolver, volumes, cleaner and events are needed")
	}
	if cfg.Workers == 0 {
		cfg.Workers = 16
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Patience == 0 {
		cfg.Patience = 2*time.Minute + 3*time.Second
	}
	c := &Controller{cfg: cfg, pods: table{entries: map[types.UID]*entry{}}}
	queue, err := reconcile.New(reconcile.Config[types.UID]{
		Name: "pods", Reconcile: c.reconcile, Workers: cfg.Workers, Metrics: cfg.Metrics,
		Retry: flagset.Retry{Start: 20 * time.Millisecond, Max: 30 * time.Second},
	})
	if err != nil {
		return nil, fmt.Errorf("configure pods: %w", err)
	}
	c.queue = queue
	c.generation.Store(1)
	return c, nil
}

// Changed records a change from the watch; current is nil if the pod is gone.
func (c *Controller) Changed(old, current *corev1.Pod) {
	pod := current
	if current != nil {
		c.pods.put(current)
	} else {
		pod = old
		c.pods.markGone(old)
	}
	c.queue.Add(pod.UID)
}

// Wake queues a pod, for instance because one of its volumes was published.
func (c *Controller) Wake(uid types.UID) { c.queue.Add(uid) }

// Adopt takes over pods that were found on disk. Those that the first complete list of pods and the watch after it did
// not bring are gone: a pod has a directory only after this. It must be called after that list. A pod that is being released
// already is looked at again: it may have got a volume since.
func (c *Controller) Adopt(uids []types.UID) {
	for _, uid := range uids {
		c.pods.adopt(uid)
		c.queue.Add(uid)
	}
}

// Refresh resolves the volumes of all pods again, because a CSIDriver object has changed. Volumes of running pods stay as they
// are until they are published again, but may have come to ask for a feature that is not supported.
func (c *Controller) Refresh() {
	c.generation.Add(1)
	for _, uid := range c.pods.uids() {
		c.queue.Add(uid)
	}
}

// Run works until ctx is done and the pods at work are finished with.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, uid types.UID) (reconcile.Result, error) {
	e, pod, gone := c.pods.get(uid)
	if e == nil {
		return reconcile.Result{}, nil
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues(logging.KeyPod, klog.KObj(pod), "podUID", uid))
	switch next(pod, gone, e.finished) {
	case goalRun:
		result, err := c.start(ctx, e, pod)
		return result, errors.Join(err, c.reportHealth(ctx, e, pod))
	case goalRelease:
		_, err := c.release(pod)
		return reconcile.Result{}, err
	case goalTerminate:
		return c.terminate(ctx, e, pod)
	default:
		released, err := c.release(pod)
		if released && err == nil {
			c.pods.remove(uid)
		}
		return reconcile.Result{}, err
	}
}
