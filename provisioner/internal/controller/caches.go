package controller

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/topology"
)

// Names of the indexes.
const (
	// claimsByClass finds the claims that wait for a StorageClass.
	claimsByClass = "class"
	// claimsByVolume finds the claim that wants the volume of a name.
	claimsByVolume = "volume"
	// volumesByHandle finds the PersistentVolumes of a volume of our driver.
	volumesByHandle = "handle"
	// attachmentsByVolume finds the VolumeAttachments of a PersistentVolume.
	attachmentsByVolume = "volume"
)

// informer is what all informers have in common.
type informer interface {
	Run(ctx context.Context) error
	WaitSynced(ctx context.Context) error
	HasSynced() bool
}

// caches holds what is watched. Each keeps only what is read.
type caches struct {
	claims  *kube.Informer[*corev1.PersistentVolumeClaim]
	volumes *kube.Informer[*corev1.PersistentVolume]
	classes *kube.Informer[*storagev1.StorageClass]
	// attachments is nil when the driver attaches nothing.
	attachments *kube.Informer[*storagev1.VolumeAttachment]
	// nodes and csiNodes are nil when the driver has no topology, and when the instance provisions for one node.
	nodes    *kube.Informer[*corev1.Node]
	csiNodes *kube.Informer[*storagev1.CSINode]
	// index is fed by nodes and csiNodes, or knows that one node.
	index *topology.Index
}

// newCaches returns caches that are not started. The function is called when the topology has changed.
func newCaches(client kube.Client, driver string, settings Settings, shape Shape, changed func()) *caches {
	c := &caches{
		claims: kube.NewInformer(client.PersistentVolumeClaims(metav1.NamespaceAll), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
			Name:      "PersistentVolumeClaim",
			Transform: slimClaim(driver),
			Index:     claimIndexes(driver, settings.Naming),
		}),
		volumes: kube.NewInformer(client.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
			Name:      "PersistentVolume",
			Transform: slimVolume(driver, settings.Node),
			Index:     map[string]func(*corev1.PersistentVolume) []string{volumesByHandle: handlesOf(driver)},
		}),
		classes: kube.NewInformer(client.StorageClasses(), kube.InformerOptions[*storagev1.StorageClass]{Name: "StorageClass"}),
	}
	if shape.Attachments {
		c.attachments = kube.NewInformer(client.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{
			Name:      "VolumeAttachment",
			Transform: slimAttachment,
			Index:     map[string]func(*storagev1.VolumeAttachment) []string{attachmentsByVolume: attachmentVolume},
		})
	}
	switch {
	case settings.Node.alone():
		c.fixTopology(driver, settings.Node)
	case shape.Topology:
		c.watchTopology(client, driver, changed)
	}
	return c
}

// watchTopology makes the informers that feed the index.
func (c *caches) watchTopology(client kube.Client, driver string, changed func()) {
	c.index = topology.New(driver)
	c.nodes = kube.NewInformer(client.Nodes(), kube.InformerOptions[*corev1.Node]{
		Name: "Node", Transform: kube.SlimNode(kube.Keep{Annotations: []string{}}),
	})
	c.csiNodes = kube.NewInformer(client.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{
		Name: "CSINode", Transform: slimCSINode(driver),
	})
	c.nodes.OnChange(func(before, after *corev1.Node) {
		if c.setNode(before, after) {
			changed()
		}
	})
	c.csiNodes.OnChange(func(before, after *storagev1.CSINode) {
		if c.setCSINode(before, after, driver) {
			changed()
		}
	})
}

// fixTopology makes an index that knows one node alone, which no event changes.
func (c *caches) fixTopology(driver string, node Node) {
	c.index = topology.New(driver)
	c.index.SetNode(node.Name, node.Segments)
	c.index.SetCSINode(node.Name, true, slices.Collect(maps.Keys(node.Segments)))
}

// setNode tells the index about a Node.
func (c *caches) setNode(before, after *corev1.Node) (changed bool) {
	if after == nil {
		return c.index.DeleteNode(before.Name)
	}
	return c.index.SetNode(after.Name, after.Labels)
}

// setCSINode tells the index about a CSINode.
func (c *caches) setCSINode(before, after *storagev1.CSINode, driver string) (changed bool) {
	if after == nil {
		return c.index.DeleteCSINode(before.Name)
	}
	registered, keys := topology.Registration(after, driver)
	return c.index.SetCSINode(after.Name, registered, keys)
}

// all lists the informers that are in use.
func (c *caches) all() []informer {
	list := []informer{c.claims, c.volumes, c.classes}
	if c.attachments != nil {
		list = append(list, c.attachments)
	}
	if c.nodes != nil {
		list = append(list, c.nodes, c.csiNodes)
	}
	return list
}

// start runs the informers until the returned function is called, which waits for them. They outlive ctx,
// for work that is being finished still reads them.
func (c *caches) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, inf := range c.all() {
		running.Go(func() {
			if err := inf.Run(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Informer ended")
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// waitSynced waits until every cache is complete.
func (c *caches) waitSynced(ctx context.Context) error {
	for _, inf := range c.all() {
		if err := inf.WaitSynced(ctx); err != nil {
			return err
		}
	}
	return nil
}

// synced tells whether every cache is complete.
func (c *caches) synced() bool {
	for _, inf := range c.all() {
		if !inf.HasSynced() {
			return false
		}
	}
	return true
}
