// Package capacity publishes the capacity of the driver: one CSIStorageCapacity object for each StorageClass of the driver
// and each topology segment that its nodes are in (KEP-1472). The scheduler reads them before it selects a node for a pod
// whose volumes do not exist yet.
//
// The decisions are pure functions in plan.go; changes.go receives the changes of other objects, owner.go finds the owner of
// the published objects, metrics.go counts them. Use package provisioner to run it: this package expects a driver that is
// ready, and leadership.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/topology"
)

const (
	// apiTimeout is the deadline of one request to the API server. Client-side throttling may delay each request for long.
	apiTimeout = 5 * time.Minute
	// batchDelay is how long a change of volumes waits for others, to be processed with them, and one of classes or segments that comes soon after another: the
	// first of these does not wait, as the scheduler finds no node for volumes of a new class before it has objects.
	batchDelay = time.Second
	// byItem is the index of the objects by their item.
	byItem = "item"
)

// Source lists classes and segments, as view.View does.
type Source interface {
	// WaitSynced waits until its caches are complete.
	WaitSynced(ctx context.Context) error
	// AllClasses returns all StorageClasses, and Class returns one.
	AllClasses() []*storagev1.StorageClass
	Class(name string) (*storagev1.StorageClass, bool)
	// Segments returns the segments that the nodes of the driver are in.
	Segments() []topology.Segment
	// OnClass and OnTopology have functions called with changes of classes and of segments.
	OnClass(changed func())
	OnTopology(changed func())
}

// Settings are the options of the publication.
type Settings struct {
	// Namespace is where the objects are.
	Namespace string
	// ManagedBy identifies the objects of this instance; see the function of that name.
	ManagedBy string
	// Owner owns the objects; nil: no owner.
	Owner *metav1.OwnerReference
	// Immediate publishes also for classes with immediate binding.
	Immediate bool
	// Poll is the interval between GetCapacity calls per segment.
	Poll time.Duration
	// Workers is the maximum number of concurrent GetCapacity calls.
	Workers int
	// Retry is the backoff after failures.
	Retry flagset.Retry
	// Timeout is the deadline of one call to the driver.
	Timeout time.Duration
	// Drain is how long running work may take after the end of the context.
	Drain time.Duration
}

// Config is what a Controller works with. All fields are required but Queues and Ages.
type Config struct {
	// Info returns the name and the capabilities of the driver, as last read, and Client is its controller service.
	Info   func() *csiclient.Info
	Client csi.ControllerClient
	// Kube is the API.
	Kube kubeapi.Client
	// Source lists classes and segments. It must not be started before New has returned.
	Source Source
	// Queues receives the metrics of the queue. nil: no metrics.
	Queues workqueue.MetricsProvider
	// Ages registers the metric of the age of the oldest key. nil: no metric.
	Ages prometheus.Registerer
	// Settings are the options.
	Settings Settings
}

// Controller publishes the capacity of one driver.
type Controller struct {
	cfg     Config
	driver  string
	objects *kube.Informer[*storagev1.CSIStorageCapacity]
	items   *reconcile.Controller[item]
	// changed signals that segments or classes have changed.
	changed chan struct{}

	mu sync.Mutex
	// goal has the items that are to be published, with the versions of their classes, and classesAt the classes by segment.
	goal      map[item]string
	classesAt map[topology.Segment][]string
	// published has the items that have a CSIStorageCapacity object.
	published map[item]struct{}
	// answers has what the driver has answered last: an object that says so is right, also if another client has written it.
	answers map[item]*csi.GetCapacityResponse
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	info := cfg.Info()
	if info == nil {
		return nil, errors.New("make controller of capacities: the driver is not ready")
	}
	c := &Controller{
		cfg: cfg, driver: info.Name, changed: make(chan struct{}, 1),
		published: map[item]struct{}{}, answers: map[item]*csi.GetCapacityResponse{},
	}
	c.objects = kube.NewInformer(cfg.Kube.CSIStorageCapacities(cfg.Settings.Namespace), kube.InformerOptions[*storagev1.CSIStorageCapacity]{
		Name:          "CSIStorageCapacity",
		LabelSelector: labels.SelectorFromSet(c.labels()).String(),
		Index:         map[string]func(*storagev1.CSIStorageCapacity) []string{byItem: func(o *storagev1.CSIStorageCapacity) []string { return []string{itemOf(o).String()} }},
	})
	c.objects.OnChange(c.objectChanged)
	items, err := reconcile.New(reconcile.Config[item]{
		// Each new volume asks for the capacity of its segment: that ends no backoff.
		Name: "csistoragecapacity", Reconcile: c.reconcile, Inputs: func(i item) any { return c.versionOf(i) }, HighPriority: c.isNew, Workers: cfg.Settings.Workers, Retry: cfg.Settings.Retry, Drain: cfg.Settings.Drain, Metrics: cfg.Queues, Registerer: cfg.Ages,
	})
	if err != nil {
		return nil, fmt.Errorf("make queue of capacities: %w", err)
	}
	c.items = items
	cfg.Source.OnTopology(c.sourceChanged)
	cfg.Source.OnClass(c.sourceChanged)
	return c, nil
}

// labels are those of the objects of this instance.
func (c *Controller) labels() map[string]string {
	return map[string]string{LabelDriver: c.driver, LabelManagedBy: c.cfg.Settings.ManagedBy}
}

// Run publishes until ctx ends. It does not delete the objects, which stay correct until the next instance updates them. It
// may be called once.
func (c *Controller) Run(ctx context.Context) error {
	outlive, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching errgroup.Group
	watching.Go(func() error { return c.objects.Run(outlive) })
	err := c.work(ctx)
	stop()
	return errors.Join(err, watching.Wait())
}

// work runs the queue once classes, segments and objects are known.
func (c *Controller) work(ctx context.Context) error {
	if err := errors.Join(c.cfg.Source.WaitSynced(ctx), c.objects.WaitSynced(ctx)); err != nil {
		// The queue starts no work any more, and unregisters its metrics.
		return errors.Join(err, c.items.Run(ctx))
	}
	klog.FromContext(ctx).Info("Publishing storage capacity", logging.KeyDriver, c.driver, "namespace", c.cfg.Settings.Namespace, "managedBy", c.cfg.Settings.ManagedBy)
	var working errgroup.Group
	working.Go(func() error { return c.items.Run(ctx) })
	c.follow(ctx)
	return working.Wait()
}

// follow fills the queue: with all items at first and at each poll, and with changed items in between.
func (c *Controller) follow(ctx context.Context) {
	poll := time.NewTicker(c.cfg.Settings.Poll)
	defer poll.Stop()
	var settled <-chan time.Time // nil while no change was processed just before
	changed := c.changed
	c.enqueue(c.update(), c.publishedItems())
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			c.enqueue(c.update(), c.publishedItems(), c.all())
		case <-changed:
			c.enqueue(c.update())
			changed, settled = nil, time.After(batchDelay)
		case <-settled:
			changed, settled = c.changed, nil
		}
	}
}

// sourceChanged says that classes or segments may have changed.
func (c *Controller) sourceChanged() {
	select {
	case c.changed <- struct{}{}:
	default: // it is said already
	}
}

// update recomputes the items that are to be published, and returns the added and the removed ones, and those whose class has changed.
func (c *Controller) update() (changed []item) {
	goal := goalOf(c.cfg.Info(), c.cfg.Settings.Immediate, c.cfg.Source)
	classesAt := map[topology.Segment][]string{}
	for wanted := range goal {
		classesAt[wanted.segment] = append(classesAt[wanted.segment], wanted.class)
	}
	for _, classes := range classesAt {
		slices.Sort(classes)
	}
	c.mu.Lock()
	before := c.goal
	c.goal, c.classesAt = goal, classesAt
	c.mu.Unlock()
	return append(missing(goal, before), missing(before, goal)...)
}

// missing returns the items of a that b lacks, or has with another version.
func missing(a, b map[item]string) (items []item) {
	for i, version := range a {
		if other, ok := b[i]; !ok || other != version {
			items = append(items, i)
		}
	}
	return items
}

// enqueue adds items to the queue, each once, in an order that is always the same.
func (c *Controller) enqueue(lists ...[]item) {
	all := slices.Concat(lists...)
	slices.SortFunc(all, item.compare)
	for _, i := range slices.Compact(all) {
		c.items.Add(i)
	}
}

// isNew reports whether the item has no object yet. New items have high priority: pods may be waiting for them, and not for a refresh.
func (c *Controller) isNew(i item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.published[i]
	return !ok
}

// versionOf returns the version of the class of an item, empty if the item is not to be published.
func (c *Controller) versionOf(i item) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goal[i]
}

// publishedItems returns the items that have an object.
func (c *Controller) publishedItems() []item {
	objects := c.objects.List()
	items := make([]item, 0, len(objects))
	for _, object := range objects {
		items = append(items, itemOf(object))
	}
	return items
}

// all returns the items that are to be published, in order.
func (c *Controller) all() []item {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]item, 0, len(c.goal))
	for wanted := range c.goal {
		all = append(all, wanted)
	}
	slices.SortFunc(all, item.compare)
	return all
}

// objectChanged enqueues the items of an object that another client has changed or deleted, unless the item has another object that is right: then this was a duplicate.
func (c *Controller) objectChanged(before, after *storagev1.CSIStorageCapacity) {
	if after != nil {
		c.trackPublished(after, true)
	}
	switch {
	case after == nil && slices.ContainsFunc(c.objects.ByIndex(byItem, itemOf(before).String()), c.isRight):
	case after == nil:
		c.trackPublished(before, false)
		c.items.Add(itemOf(before))
	case before != nil && before.ResourceVersion != after.ResourceVersion && (itemOf(before) != itemOf(after) || !c.isRight(after)):
		c.enqueue([]item{itemOf(before), itemOf(after)})
	}
}

// trackPublished records whether an item has an object.
func (c *Controller) trackPublished(object *storagev1.CSIStorageCapacity, exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if exists {
		c.published[itemOf(object)] = struct{}{}
	} else {
		delete(c.published, itemOf(object))
	}
}

// isRight reports whether an object is as the last answer of the driver asks for.
func (c *Controller) isRight(object *storagev1.CSIStorageCapacity) bool {
	c.mu.Lock()
	answer, ok := c.answers[itemOf(object)]
	c.mu.Unlock()
	return ok && renew(object, c.object(itemOf(object), answer)) == nil
}

// answered notes the last answer of the driver about an item, nil for one that is not published any more.
func (c *Controller) answered(i item, answer *csi.GetCapacityResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer == nil {
		delete(c.answers, i)
	} else {
		c.answers[i] = answer
	}
}
