// Package capacity publishes the capacity of the driver: one CSIStorageCapacity object for each StorageClass of the driver
// and each topology segment that its nodes are in (KEP-1472). The scheduler reads them before it selects a node for a pod
// whose volumes are yet to be made.
//
// The decisions are pure functions in plan.go; changes.go hears of what has changed, owner.go finds who owns the objects, metrics.go counts them. Use package
// provisioner to run it: this package expects a driver that is ready, and leadership.
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

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/topology"
)

const (
	// apiTimeout is the deadline of one request to the API server. The limit of these requests may hold each up for long.
	apiTimeout = 5 * time.Minute
	// settle is how long a change waits for others like it: many volumes, and many nodes, change at a time. A class waits for
	// nothing: until its objects are there, the scheduler finds no node for its volumes.
	settle = time.Second
	// writing replaces the version of an object that is being written.
	writing = ""
	// byItem is the index of the objects by their item.
	byItem = "item"
)

// Source knows the classes and segments that there are; package controller has them in its caches.
type Source interface {
	// WaitSynced waits until it knows all.
	WaitSynced(ctx context.Context) error
	// Classes returns all StorageClasses.
	Classes() []*storagev1.StorageClass
	// Class returns one.
	Class(name string) (*storagev1.StorageClass, bool)
	// Segments returns the segments that the nodes of the driver are in.
	Segments() []topology.Segment
	// ReportsCapacity reports whether the driver has GET_CAPACITY.
	ReportsCapacity() bool
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
	// Workers is the number of questions asked at a time.
	Workers int
	// Retry is how failed work is repeated.
	Retry flagset.Retry
	// Timeout is the deadline of one call to the driver.
	Timeout time.Duration
	// Drain is how long running work may take after the end of the context.
	Drain time.Duration
}

// Config is what a Controller works with. All fields are required but Queues and Ages.
type Config struct {
	// Driver is the name of the driver, and Client its controller service.
	Driver string
	Client csi.ControllerClient
	// Kube is the API.
	Kube kubeapi.Client
	// Source knows classes and segments.
	Source Source
	// Queues measures the queue; nil does not.
	Queues workqueue.MetricsProvider
	// Ages gets the age of the oldest key of the queue; nil does not measure it.
	Ages prometheus.Registerer
	// Settings are the options.
	Settings Settings
}

// Controller publishes the capacity of one driver.
type Controller struct {
	cfg     Config
	objects *kube.Informer[*storagev1.CSIStorageCapacity]
	items   *reconcile.Controller[item]
	// moved is signalled when segments have changed, and changed when classes have.
	moved, changed chan struct{}

	mu sync.Mutex
	// goal has the items that are to be published, and places their classes by segment.
	goal   map[item]struct{}
	places map[topology.Segment][]string
	// classes are those that have changed since the last look at them.
	classes map[string]struct{}
	// published has the items that have a CSIStorageCapacity object.
	published map[item]struct{}
	// written has the version of each object that this process wrote last, by name: the event of an own write is no news.
	written map[string]string
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	c := &Controller{cfg: cfg, moved: make(chan struct{}, 1), changed: make(chan struct{}, 1), classes: map[string]struct{}{}, published: map[item]struct{}{}, written: map[string]string{}}
	c.objects = kube.NewInformer(cfg.Kube.CSIStorageCapacities(cfg.Settings.Namespace), kube.InformerOptions[*storagev1.CSIStorageCapacity]{
		Name:          "CSIStorageCapacity",
		LabelSelector: labels.SelectorFromSet(c.labels()).String(),
		Index:         map[string]func(*storagev1.CSIStorageCapacity) []string{byItem: func(o *storagev1.CSIStorageCapacity) []string { return []string{itemOf(o).String()} }},
	})
	c.objects.OnChange(c.objectChanged)
	items, err := reconcile.New(reconcile.Config[item]{
		Name: "csistoragecapacity", Reconcile: c.reconcile, HighPriority: c.isNew, Workers: cfg.Settings.Workers, Retry: cfg.Settings.Retry, Drain: cfg.Settings.Drain, Metrics: cfg.Queues, Registerer: cfg.Ages,
	})
	if err != nil {
		return nil, fmt.Errorf("make queue of capacities: %w", err)
	}
	c.items = items
	return c, nil
}

// labels are those of the objects of this instance.
func (c *Controller) labels() map[string]string {
	return map[string]string{LabelDriver: c.cfg.Driver, LabelManagedBy: c.cfg.Settings.ManagedBy}
}

// Run publishes until ctx ends. What is published then stays: it is as true as it was, until the next instance comes. It may
// be called once.
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
		// The queue begins nothing any more, and gives back what it has registered.
		return errors.Join(err, c.items.Run(ctx))
	}
	klog.FromContext(ctx).Info("Publishing storage capacity", logging.KeyDriver, c.cfg.Driver, "namespace", c.cfg.Settings.Namespace, "managedBy", c.cfg.Settings.ManagedBy)
	var working errgroup.Group
	working.Go(func() error { return c.items.Run(ctx) })
	c.follow(ctx)
	return working.Wait()
}

// follow fills the queue: with everything at first and from time to time, and with what has changed in between.
func (c *Controller) follow(ctx context.Context) {
	poll := time.NewTicker(c.cfg.Settings.Poll)
	defer poll.Stop()
	var settled <-chan time.Time // nil while no segment has changed
	c.begin()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			c.enqueue(c.update(), c.publishedItems(), c.all())
		case <-c.moved:
			if settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			c.enqueue(c.update())
		case <-c.changed:
			c.enqueue(c.update(), c.ofChanged())
		}
	}
}

// begin looks at everything. What the first lists have brought is part of that, and no change.
func (c *Controller) begin() {
	for _, signal := range []chan struct{}{c.moved, c.changed} {
		select {
		case <-signal:
		default:
		}
	}
	c.ofChanged()
	c.enqueue(c.update(), c.publishedItems())
}

// notify wakes up who waits for a signal; one that was not heard yet is enough.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// update decides again which items are to be published, and returns those for which the decision has changed.
func (c *Controller) update() (changed []item) {
	goal := goalOf(c.cfg.Driver, c.cfg.Settings.Immediate, c.cfg.Source)
	places := map[topology.Segment][]string{}
	for wanted := range goal {
		places[wanted.segment] = append(places[wanted.segment], wanted.class)
	}
	for _, classes := range places {
		slices.Sort(classes)
	}
	c.mu.Lock()
	before := c.goal
	c.goal, c.places = goal, places
	c.mu.Unlock()
	return append(less(goal, before), less(before, goal)...)
}

// less returns the items of a that are not in b.
func less(a, b map[item]struct{}) (rest []item) {
	for i := range a {
		if _, ok := b[i]; !ok {
			rest = append(rest, i)
		}
	}
	return rest
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

// wanted reports whether an item is to be published.
func (c *Controller) wanted(i item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.goal[i]
	return ok
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

// objectChanged looks at what others have done to an object.
func (c *Controller) objectChanged(before, after *storagev1.CSIStorageCapacity) {
	if after != nil {
		c.trackPublished(after, true)
	}
	switch {
	case after == nil:
		c.forget(before.Name)
		c.trackPublished(before, false)
		c.items.Add(itemOf(before))
	case before != nil && before.ResourceVersion != after.ResourceVersion && !c.own(after):
		c.enqueue([]item{itemOf(before), itemOf(after)})
	}
}

// trackPublished notes whether an item has an object.
func (c *Controller) trackPublished(object *storagev1.CSIStorageCapacity, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if there {
		c.published[itemOf(object)] = struct{}{}
	} else {
		delete(c.published, itemOf(object))
	}
}

// own reports whether this process wrote an object as it is, or is writing it: what others do in that moment is found later.
func (c *Controller) own(object *storagev1.CSIStorageCapacity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, ok := c.written[object.Name]
	return ok && (version == writing || version == object.ResourceVersion)
}

// writes notes that an object is being written.
func (c *Controller) writes(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[name] = writing
}

// wrote notes what was written.
func (c *Controller) wrote(object *storagev1.CSIStorageCapacity) {
	c.objects.Remember(object)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[object.Name] = object.ResourceVersion
}

// forget forgets an object that is gone, or could not be written.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, name)
}
