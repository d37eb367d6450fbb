package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// nodes chooses the node whose csi-snapshotter is in charge of a volume, in distributed mode.
type nodes struct {
	nodes *kube.Informer[*corev1.Node]
	// csiNodes says which drivers a node has. Where the role does not allow to watch it, any node that can reach the volume is taken.
	csiNodes *kube.Informer[*storagev1.CSINode]

	// changes collects what has changed until changesPause has passed, as an update of a driver takes it from each node for some seconds.
	mu      sync.Mutex
	changes map[nodeDriver]bool
	changed chan struct{}
}

// nodeDriver is a driver of a node, all drivers where the driver is empty.
type nodeDriver struct{ node, driver string }

// changesPause is how long changes of nodes are collected before contents are looked at.
const changesPause = 5 * time.Second

func newNodes(client kube.Client) *nodes {
	return &nodes{
		changes: map[nodeDriver]bool{}, changed: make(chan struct{}, 1),
		nodes: kube.NewInformer(client.Nodes(), kube.InformerOptions[*corev1.Node]{Name: "Node", Transform: kube.SlimNode}),
		csiNodes: kube.NewInformer(client.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{Name: "CSINode", AskAgain: kube.DefaultAskAgain, Transform: func(node *storagev1.CSINode) *storagev1.CSINode {
			slim := &storagev1.CSINode{ObjectMeta: slimMeta(node.ObjectMeta)}
			for _, driver := range node.Spec.Drivers {
				slim.Spec.Drivers = append(slim.Spec.Drivers, storagev1.CSINodeDriver{Name: driver.Name})
			}
			return slim
		}}),
	}
}

// awaitDrivers waits until it is known which drivers the nodes have, or that CSINodes may not be watched, or ctx ends.
func (n *nodes) awaitDrivers(ctx context.Context) {
	if err := n.csiNodes.WaitTried(ctx); err != nil {
		return // ctx has ended
	}
	if err := n.csiNodes.Unwatched(); err != nil {
		klog.FromContext(ctx).Info("A node is chosen for a snapshot although it may lack the driver", logging.KeyReason, err.Error())
	}
}

// isValid reports whether a label names a node that exists and has the driver.
func (n *nodes) isValid(label, driver string) bool {
	if _, ok := n.nodes.Get("", label); ok {
		return n.hasDriver(label, driver)
	}
	if len(label) < validation.LabelValueMaxLength {
		return false // only names that are too long for a label have another one
	}
	for node := range n.nodes.All() {
		if snapshotapi.NodeLabel(node.Name) == label {
			return n.hasDriver(node.Name, driver)
		}
	}
	return false
}

func (n *nodes) hasDriver(node, driver string) bool {
	if n.csiNodes.Unwatched() != nil || !n.csiNodes.HasSynced() {
		return true // it is not known; when it is, the nodes are changes
	}
	csiNode, ok := n.csiNodes.Get("", node)
	return ok && slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

// choose returns the label of the first node, by name, that has the driver and can reach all of the volumes; empty if there is none, or if
// a volume can be reached from all nodes.
func (n *nodes) choose(driver string, volumes ...*corev1.PersistentVolume) string {
	var selectors []*nodeaffinity.NodeSelector
	for _, pv := range volumes {
		if pv == nil || pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
			return ""
		}
		selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
		if err != nil {
			return ""
		}
		selectors = append(selectors, selector)
	}
	first := ""
	for node := range n.nodes.All() {
		matches := !slices.ContainsFunc(selectors, func(s *nodeaffinity.NodeSelector) bool { return !s.Match(node) })
		if matches && (first == "" || node.Name < first) && n.hasDriver(node.Name, driver) {
			first = node.Name
		}
	}
	return snapshotapi.NodeLabel(first)
}

// nodeOf returns the label that a content is to get, as it has none, or its node is gone or has lost the driver. Empty: it stays as it is.
func (c *Controller) nodeOf(of *content) string {
	if c.nodes == nil || len(of.volumes) == 0 {
		return ""
	}
	if label := of.GetLabels()[snapshotapi.LabelManagedBy]; label != "" && c.nodes.isValid(label, of.driver) {
		return ""
	}
	volumes := make([]*corev1.PersistentVolume, 0, len(of.volumes))
	for _, handle := range of.volumes {
		volumes = append(volumes, c.volumeOf(of.driver, handle))
	}
	return c.nodes.choose(of.driver, volumes...)
}

// nodeOfSources returns the label of a content to create.
func (c *Controller) nodeOfSources(sources []source) string {
	var volumes []*corev1.PersistentVolume
	driver := ""
	for _, s := range sources {
		if s.volume != nil && s.volume.Spec.CSI != nil {
			driver, volumes = s.volume.Spec.CSI.Driver, append(volumes, s.volume)
		}
	}
	if c.nodes == nil || len(volumes) == 0 {
		return ""
	}
	return c.nodes.choose(driver, volumes...)
}

// volumeOf returns the volume with a handle, nil if there is none.
func (c *Controller) volumeOf(driver, handle string) *corev1.PersistentVolume {
	for _, pv := range c.pvs.ByIndex(indexHandle, handleKey(driver, handle)) {
		return pv
	}
	return nil
}

// nodeKey is the value of indexNode of the contents of a node, by its label, and a driver; "" for contents without a node, and for all drivers.
func nodeKey(label, driver string) string { return label + "/" + driver }

func (n *nodes) nodeChanged(before, after *corev1.Node) {
	if before == nil || after == nil || !maps.Equal(before.Labels, after.Labels) {
		n.note(nodeDriver{cmp.Or(after, before).Name, ""})
	}
}

func (n *nodes) csiNodeChanged(before, after *storagev1.CSINode) {
	was, is := driversOf(before), driversOf(after)
	for driver := range was {
		if !is[driver] {
			n.note(nodeDriver{before.Name, driver})
		}
	}
	for driver := range is {
		if !was[driver] {
			n.note(nodeDriver{after.Name, driver})
		}
	}
}

func driversOf(node *storagev1.CSINode) map[string]bool {
	drivers := map[string]bool{}
	if node != nil {
		for _, driver := range node.Spec.Drivers {
			drivers[driver.Name] = true
		}
	}
	return drivers
}

// note remembers a change.
func (n *nodes) note(change nodeDriver) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes[change] = true
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// take returns the changes since the last call.
func (n *nodes) take() map[nodeDriver]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	changes := n.changes
	n.changes = map[nodeDriver]bool{}
	return changes
}

// followNodes queues the contents that changes of nodes are about, until ctx ends.
func (c *Controller) followNodes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.nodes.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(changesPause):
		}
		c.nodesChanged(c.nodes.take())
	}
}

// nodesChanged queues the contents whose node is gone or has lost the driver, and those without a node, of a driver that a node has got.
func (c *Controller) nodesChanged(changes map[nodeDriver]bool) {
	values := map[string]bool{}
	for change := range changes {
		values[nodeKey(snapshotapi.NodeLabel(change.node), change.driver)] = true
		if _, there := c.nodes.nodes.Get("", change.node); there && (change.driver == "" || c.nodes.hasDriver(change.node, change.driver)) {
			values[nodeKey("", change.driver)] = true
		}
	}
	all := []*pairs{c.singles}
	if on, _ := c.served(); on != nil {
		all = append(all, on.pairs)
	}
	for _, p := range all {
		var keys []string
		for value := range values {
			for _, of := range p.contentsWith(indexNode, value) {
				if p.nodeOf(of) != "" {
					keys = append(keys, of.refKey())
				}
			}
		}
		addSorted(p.queue, keys)
	}
}
