package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// nodes chooses the node whose csi-snapshotter is in charge of a volume, in distributed mode.
type nodes struct {
	nodes *kube.Informer[*corev1.Node]
	// csiNodes says which drivers a node has. It runs only if the role allows it: without it, any node that can reach the volume is taken.
	csiNodes *kube.Informer[*storagev1.CSINode]
	drivers  bool
}

func newNodes(client kube.Client) *nodes {
	return &nodes{
		nodes: kube.NewInformer(client.Nodes(), kube.InformerOptions[*corev1.Node]{Name: "Node", Transform: kube.SlimNode}),
		csiNodes: kube.NewInformer(client.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{Name: "CSINode", Transform: func(node *storagev1.CSINode) *storagev1.CSINode {
			slim := &storagev1.CSINode{ObjectMeta: slimMeta(node.ObjectMeta)}
			for _, driver := range node.Spec.Drivers {
				slim.Spec.Drivers = append(slim.Spec.Drivers, storagev1.CSINodeDriver{Name: driver.Name})
			}
			return slim
		}}),
	}
}

// findRights looks whether CSINodes may be read.
func (n *nodes) findRights(ctx context.Context, client kube.Client, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := client.CSINodes().List(ctx, metav1.ListOptions{Limit: 1})
	n.drivers = !apierrors.IsForbidden(err)
	if !n.drivers {
		klog.FromContext(ctx).Error(err, "CSINodes may not be read: a node is chosen although it may lack the driver")
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
	if !n.drivers {
		return true
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

// nodeFor returns the label for a content: that which it has, as long as its node is there, or else another. Empty: it stays as it is.
func (c *Controller) nodeFor(content metav1.Object, driver string, volumes ...*corev1.PersistentVolume) string {
	if c.nodes == nil {
		return ""
	}
	if content != nil {
		if label := content.GetLabels()[snapshotapi.LabelManagedBy]; label != "" && c.nodes.isValid(label, driver) {
			return ""
		}
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

func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before == nil || after == nil || !maps.Equal(before.Labels, after.Labels) {
		c.nodesChanged()
	}
}

func (c *Controller) csiNodeChanged(before, after *storagev1.CSINode) {
	if before == nil || after == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		c.nodesChanged()
	}
}

// nodesChanged queues the contents whose node is gone or has lost the driver, and those that wait for one.
func (c *Controller) nodesChanged() {
	if c.Synced() != nil || !c.started.Load() {
		return // all contents are looked at when the caches are complete
	}
	var keys []string
	for content := range c.contents.All() {
		if handle := content.Spec.Source.VolumeHandle; handle != nil && c.nodeFor(content, content.Spec.Driver, c.volumeOf(content.Spec.Driver, *handle)) != "" {
			keys = append(keys, refKey(content))
		}
	}
	addSorted(c.queue, keys)
	if on, _ := c.served(); on != nil {
		keys = nil
		for content := range on.groupContents.All() {
			keys = append(keys, groupRefKey(content))
		}
		addSorted(on.groupQueue, keys)
	}
}
