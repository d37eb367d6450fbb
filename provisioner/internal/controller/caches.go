package controller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/topology"
)

// Names of the indexes.
const (
	// claimsByClass finds the claims that wait for a StorageClass.
	claimsByClass = "class"
	// claimsBySource finds the claims that want a volume from a claim or snapshot.
	claimsBySource = "source"
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
	// snapshots is nil when the driver has none, and empty while the cluster has none; the work does not depend on it.
	snapshots *kube.Informer[*snapshotv1.VolumeSnapshot]
	// probe lists a snapshot, and probed is closed once that was tried.
	probe  func(ctx context.Context) error
	probed chan struct{}
	// nodes and csiNodes are nil when the driver has no topology, and when the instance provisions for one node.
	nodes    *kube.Informer[*corev1.Node]
	csiNodes *kube.Informer[*storagev1.CSINode]
	// index is fed by nodes and csiNodes, or knows that one node.
	index *topology.Index
}

// newCaches returns caches that are not started. moved is called when the segments of the cluster have changed, and nodeMoved
// when the topology of one node has, which may be in a segment that others are in.
func newCaches(client kubeapi.Client, driver string, settings Settings, shape Shape, moved func(), nodeMoved func(name string)) *caches {
	slim := slimVolume(driver, settings.Node)
	if settings.KeepAffinity {
		slim = withAffinity(slim)
	}
	c := &caches{
		claims: kube.NewInformer(client.PersistentVolumeClaims(metav1.NamespaceAll), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
			Name:      "PersistentVolumeClaim",
			Transform: slimClaim(driver),
			Index:     claimIndexes(driver, settings.Naming),
		}),
		volumes: kube.NewInformer(client.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
			Name:      "PersistentVolume",
			Transform: slim,
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
	if shape.Snapshots {
		c.snapshots = kube.NewInformer(client.VolumeSnapshots(metav1.NamespaceAll), kube.InformerOptions[*snapshotv1.VolumeSnapshot]{
			Name: "VolumeSnapshot", Transform: slimSnapshot, Resync: settings.SnapshotSweep,
		})
		c.probed = make(chan struct{})
		c.probe = func(ctx context.Context) error {
			_, err := client.VolumeSnapshots(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}
	}
	switch {
	case settings.Node.alone():
		c.fixTopology(driver, settings.Node)
	case shape.Topology:
		c.watchTopology(client, driver, moved, nodeMoved)
	}
	return c
}

// watchTopology makes the informers that feed the index.
func (c *caches) watchTopology(client kube.Client, driver string, moved func(), nodeMoved func(name string)) {
	c.index = topology.New(driver)
	c.nodes = kube.NewInformer(client.Nodes(), kube.InformerOptions[*corev1.Node]{
		Name: "Node", Transform: kube.SlimNode(kube.Keep{Annotations: []string{}}),
	})
	c.csiNodes = kube.NewInformer(client.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{
		Name: "CSINode", Transform: slimCSINode(driver),
	})
	c.nodes.OnChange(func(before, after *corev1.Node) {
		if c.setNode(before, after) {
			moved()
		}
		if after != nil && (before == nil || !maps.Equal(before.Labels, after.Labels)) {
			nodeMoved(after.Name)
		}
	})
	c.csiNodes.OnChange(func(before, after *storagev1.CSINode) {
		if c.setCSINode(before, after, driver) {
			moved()
		}
		if after != nil && (before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
			nodeMoved(after.Name)
		}
	})
}

// fixTopology makes an index that knows one node alone, which no event changes.
func (c *caches) fixTopology(driver string, node Node) {
	c.index = topology.New(driver)
	c.index.SetNode(node.Name, node.Segments)
	c.index.SetCSINode(node.Name, true, slices.Collect(maps.Keys(node.Segments)))
}

// setNode passes a Node to the index.
func (c *caches) setNode(before, after *corev1.Node) (changed bool) {
	if after == nil {
		return c.index.DeleteNode(before.Name)
	}
	return c.index.SetNode(after.Name, after.Labels)
}

// setCSINode passes a CSINode to the index.
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
	if c.snapshots != nil {
		running.Go(func() { c.watchSnapshots(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// watchSnapshots watches snapshots until ctx ends, from when the cluster has them and they may be listed.
func (c *caches) watchSnapshots(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(snapshotPoll)
	defer ticker.Stop()
	begin := sync.OnceFunc(func() { close(c.probed) })
	for said := ""; ; {
		err := c.probeOnce(ctx)
		if err == nil {
			break
		}
		begin()
		if why := describe(err); why != said && ctx.Err() == nil {
			said = why
			logger.Info("Snapshots cannot be watched, claims that wait for one are looked at from time to time", logging.KeyReason, why)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	var synced sync.WaitGroup
	synced.Go(func() {
		if c.snapshots.WaitSynced(ctx) == nil {
			begin()
		}
	})
	if err := c.snapshots.Run(ctx); err != nil {
		logger.Error(err, "Informer ended")
	}
	synced.Wait()
}

// waitSnapshots waits until snapshots are known or cannot be, but not for long: all other claims are served without.
func (c *caches) waitSnapshots(ctx context.Context) {
	if c.snapshots == nil {
		return
	}
	timer := time.NewTimer(snapshotGrace)
	defer timer.Stop()
	select {
	case <-c.probed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// probeOnce reports whether snapshots can be listed.
func (c *caches) probeOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return c.probe(ctx)
}

// waitSynced waits until every cache is complete that the work depends on.
func (c *caches) waitSynced(ctx context.Context) error {
	c.waitSnapshots(ctx)
	for _, inf := range c.all() {
		if err := inf.WaitSynced(ctx); err != nil {
			return err
		}
	}
	return nil
}

// synced reports whether every cache is complete.
func (c *caches) synced() bool {
	for _, inf := range c.all() {
		if !inf.HasSynced() {
			return false
		}
	}
	return true
}
