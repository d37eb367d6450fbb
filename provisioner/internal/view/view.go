// Package view watches the cluster for the provisioner. Of each kind it keeps what is read of it, and no more, in caches that
// the controller of claims and volumes and that of capacities share. The files objects.go and node.go have what is read from
// single objects, slim.go what is kept of them.
package view

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// Names of the indexes.
const (
	claimsByClass           = "class"
	claimsBySource          = "source"
	claimsBySourceNamespace = "sourceNamespace"
	claimsByVolume          = "volume"
	volumesByHandle         = "handle"
	attachmentsByVolume     = "volume"
	grantsByNamespace       = "namespace"
)

const (
	// askAgainOfNode is the shortest pause until an instance for one node, of which there may be thousands, asks again for a kind that the cluster lacks or that it
	// may not watch; the longest is twice that.
	askAgainOfNode = 15 * time.Minute
	// mostGrants is the number of ReferenceGrants of a namespace that are read at once where they may not be watched.
	mostGrants = 500
	// optionalGrace is how long the first lists of kinds that the work does not depend on may hold it up.
	optionalGrace = 10 * time.Second
)

// Shape says which kinds are watched beside those that always are.
type Shape struct {
	// Topology says that Nodes and CSINodes are watched.
	Topology bool
	// Attachments says that VolumeAttachments are watched.
	Attachments bool
	// Snapshots says that VolumeSnapshots are watched, once the cluster has them and the role allows it.
	Snapshots bool
	// Grants says that ReferenceGrants are watched, once the cluster has them and the role allows it.
	Grants bool
}

// Config says what is watched, and what is kept of it.
type Config struct {
	// Kube is the API.
	Kube kubeapi.Client
	// Driver is the name of the driver.
	Driver string
	// Plugin is the in-tree plugin that the driver replaces; the zero value: none.
	Plugin migration.Plugin
	// Shape is which kinds are watched.
	Shape Shape
	// Node is the node that is provisioned for; the zero value: all.
	Node Node
	// Naming makes the names of volumes, by which their claims are found.
	Naming volume.Naming
	// SnapshotSweep is the pause after which all snapshots are reported again, 0: never.
	SnapshotSweep time.Duration
	// Timeout is the deadline of one request to the API server, but for those of informers.
	Timeout time.Duration
}

// View is the part of the cluster that the provisioner knows.
type View struct {
	// Claims has the claims: those that are to be provisioned with all that a request is made of.
	Claims *kube.Informer[*corev1.PersistentVolumeClaim]
	// Volumes has the PersistentVolumes: those of the driver with what their deletion depends on, and those of the in-tree plugin
	// in CSI form.
	Volumes *kube.Informer[*corev1.PersistentVolume]
	// Classes has the StorageClasses.
	Classes *kube.Informer[*storagev1.StorageClass]
	// Attachments is nil when the driver attaches nothing.
	Attachments *kube.Informer[*storagev1.VolumeAttachment]
	// Snapshots is nil when the driver has none. Its method Unwatched returns an error while the cluster has none or the role does not allow to watch them; the work
	// does not depend on it.
	Snapshots *kube.Informer[*snapshotv1.VolumeSnapshot]
	// Grants is nil when sources in other namespaces are not allowed at all, and else like Snapshots.
	Grants *kube.Informer[*kubeapi.ReferenceGrant]
	// Index has the topology; nil when the driver has none.
	Index *topology.Index

	// nodes and csiNodes feed the index. They are nil when the driver has no topology, and when the instance provisions for
	// one node, which is then all that the index knows.
	nodes    *kube.Informer[*corev1.Node]
	csiNodes *kube.Informer[*storagev1.CSINode]
	// listGrants reads the ReferenceGrants of a namespace. nil: like Grants.
	listGrants func(ctx context.Context, namespace string) ([]*kubeapi.ReferenceGrant, error)
	// optional has the informers of kinds that the cluster may lack, or that the role may not allow to watch.
	optional []optional

	// mu guards onTopology and onNode, which are called with changes of the topology.
	mu         sync.Mutex
	onTopology []func()
	onNode     []func(name string)
}

// New returns a view that is empty until Start.
func New(cfg Config) *View {
	v := &View{
		Claims: kube.NewInformer(cfg.Kube.PersistentVolumeClaims(metav1.NamespaceAll), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
			Name:      "PersistentVolumeClaim",
			Transform: slimClaim(cfg.Driver),
			Index:     claimIndexes(cfg.Driver, cfg.Naming),
		}),
		Volumes: kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
			Name:      "PersistentVolume",
			Transform: inCSIForm(cfg.Plugin, slimVolume(cfg.Driver, cfg.Node)),
			Index:     map[string]func(*corev1.PersistentVolume) []string{volumesByHandle: Handles(cfg.Driver)},
		}),
		Classes: kube.NewInformer(cfg.Kube.StorageClasses(), kube.InformerOptions[*storagev1.StorageClass]{Name: "StorageClass"}),
	}
	if cfg.Shape.Attachments {
		v.Attachments = kube.NewInformer(cfg.Kube.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{
			Name:      "VolumeAttachment",
			Transform: slimAttachment,
			Index:     map[string]func(*storagev1.VolumeAttachment) []string{attachmentsByVolume: AttachedVolume},
		})
	}
	if cfg.Shape.Snapshots {
		v.addSnapshots(cfg)
	}
	if cfg.Shape.Grants {
		v.addGrants(cfg)
	}
	switch {
	case cfg.Node.Alone():
		v.fixTopology(cfg.Driver, cfg.Node)
	case cfg.Shape.Topology:
		v.addTopology(cfg)
	}
	return v
}

// addSnapshots makes the informer of snapshots.
func (v *View) addSnapshots(cfg Config) {
	v.Snapshots = kube.NewInformer(cfg.Kube.VolumeSnapshots(metav1.NamespaceAll), kube.InformerOptions[*snapshotv1.VolumeSnapshot]{
		Name: "VolumeSnapshot", Transform: slimSnapshot, Resync: cfg.SnapshotSweep, AskAgain: askAgain(cfg.Node),
	})
	v.optional = append(v.optional, v.Snapshots)
}

// addGrants makes the informer of ReferenceGrants.
func (v *View) addGrants(cfg Config) {
	v.Grants = kube.NewInformer(cfg.Kube.ReferenceGrants(metav1.NamespaceAll), kube.InformerOptions[*kubeapi.ReferenceGrant]{
		Name: "ReferenceGrant", Transform: slimGrant, AskAgain: askAgain(cfg.Node),
		Index: map[string]func(*kubeapi.ReferenceGrant) []string{
			grantsByNamespace: func(grant *kubeapi.ReferenceGrant) []string { return []string{grant.Namespace} },
		},
	})
	v.optional = append(v.optional, v.Grants)
	v.listGrants = func(ctx context.Context, namespace string) ([]*kubeapi.ReferenceGrant, error) {
		ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
		list, err := cfg.Kube.ReferenceGrants(namespace).List(ctx, metav1.ListOptions{Limit: mostGrants})
		if err != nil {
			return nil, err
		}
		var grants []*kubeapi.ReferenceGrant
		for i := range list.Items {
			grants = append(grants, &list.Items[i])
		}
		if list.Continue != "" {
			return grants, fmt.Errorf("namespace %q has more than %d, and they may not be watched", namespace, mostGrants)
		}
		return grants, nil
	}
}

// askAgain returns the pause until a kind that cannot be watched is asked for again.
func askAgain(node Node) time.Duration {
	if node.Alone() {
		return wait.Jitter(askAgainOfNode, 1)
	}
	return kube.DefaultAskAgain
}

// addTopology makes the informers that feed the index.
func (v *View) addTopology(cfg Config) {
	v.Index = topology.New(cfg.Driver)
	v.nodes = kube.NewInformer(cfg.Kube.Nodes(), kube.InformerOptions[*corev1.Node]{
		Name: "Node", Transform: kube.SlimNode,
	})
	v.csiNodes = kube.NewInformer(cfg.Kube.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{
		Name: "CSINode", Transform: slimCSINode(cfg.Driver),
	})
	v.nodes.OnChange(func(before, after *corev1.Node) {
		changed := v.setNode(before, after)
		v.topologyChanged(changed, after != nil && (before == nil || !maps.Equal(before.Labels, after.Labels)), after)
	})
	v.csiNodes.OnChange(func(before, after *storagev1.CSINode) {
		changed := v.setCSINode(before, after, cfg.Driver)
		v.topologyChanged(changed, after != nil && (before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec)), after)
	})
}

// topologyChanged reports that the segments of the cluster have changed, or the topology of one node.
func (v *View) topologyChanged(segments, node bool, object metav1.Object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if segments {
		for _, call := range v.onTopology {
			call()
		}
	}
	if node {
		for _, call := range v.onNode {
			call(object.GetName())
		}
	}
}

// OnTopology has a function called whenever the segments of the cluster may have changed.
func (v *View) OnTopology(changed func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onTopology = append(v.onTopology, changed)
}

// OnNode has a function called whenever the topology of a node may have changed, which may be in a segment that others are
// in.
func (v *View) OnNode(changed func(name string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onNode = append(v.onNode, changed)
}

// OnClass has a function called whenever a StorageClass is there, or was created, changed or deleted.
func (v *View) OnClass(changed func()) {
	v.Classes.OnChange(func(_, _ *storagev1.StorageClass) { changed() })
}

// Class returns a StorageClass.
func (v *View) Class(name string) (*storagev1.StorageClass, bool) {
	return v.Classes.Get("", name)
}

// AllClasses returns all StorageClasses.
func (v *View) AllClasses() []*storagev1.StorageClass {
	return v.Classes.List()
}

// Segments returns the segments that the nodes of the driver are in: without topology the one that has them all.
func (v *View) Segments() []topology.Segment {
	if v.Index == nil {
		return []topology.Segment{{}}
	}
	return v.Index.Segments()
}

// ClaimsOfClass returns the claims of a StorageClass that are to be provisioned.
func (v *View) ClaimsOfClass(name string) []*corev1.PersistentVolumeClaim {
	return v.Claims.ByIndex(claimsByClass, name)
}

// ClaimsFrom returns the claims that are to be provisioned from a claim or snapshot.
func (v *View) ClaimsFrom(source volume.SourceRef) []*corev1.PersistentVolumeClaim {
	return v.Claims.ByIndex(claimsBySource, source.String())
}

// ClaimsFromNamespace returns the claims that are to be provisioned from a claim or snapshot in a namespace other than theirs.
func (v *View) ClaimsFromNamespace(namespace string) []*corev1.PersistentVolumeClaim {
	return v.Claims.ByIndex(claimsBySourceNamespace, namespace)
}

// GrantsIn returns the known ReferenceGrants in a namespace, and an error that says why there may be more. Where they may not be watched they are read, and unwatched is
// true: the functions of Grants.OnChange are not called for them. Grants must not be nil.
func (v *View) GrantsIn(ctx context.Context, namespace string) (grants []*kubeapi.ReferenceGrant, unwatched bool, err error) {
	err = v.Grants.Unwatched() // first: what is known then is in the list
	switch {
	case apierrors.IsForbidden(err):
		grants, err = v.listGrants(ctx, namespace)
		return grants, true, err
	case err == nil && !v.Grants.HasSynced():
		err = errors.New("the first list is not complete")
	}
	return v.Grants.ByIndex(grantsByNamespace, namespace), false, err
}

// ClaimsOfVolume returns the claim that is to get the volume of a name.
func (v *View) ClaimsOfVolume(name string) []*corev1.PersistentVolumeClaim {
	return v.Claims.ByIndex(claimsByVolume, name)
}

// VolumesOf returns the PersistentVolumes that have a volume of the driver.
func (v *View) VolumesOf(handle string) []*corev1.PersistentVolume {
	return v.Volumes.ByIndex(volumesByHandle, handle)
}

// AttachmentsOf returns the VolumeAttachments of a PersistentVolume, none when the driver attaches nothing.
func (v *View) AttachmentsOf(volume string) []*storagev1.VolumeAttachment {
	if v.Attachments == nil {
		return nil
	}
	return v.Attachments.ByIndex(attachmentsByVolume, volume)
}

// fixTopology makes an index that knows one node alone, which no event changes.
func (v *View) fixTopology(driver string, node Node) {
	v.Index = topology.New(driver)
	v.Index.SetNode(node.Name, node.Segments)
	v.Index.SetCSINode(node.Name, true, slices.Collect(maps.Keys(node.Segments)))
}

// setNode passes a Node to the index.
func (v *View) setNode(before, after *corev1.Node) (changed bool) {
	if after == nil {
		return v.Index.DeleteNode(before.Name)
	}
	return v.Index.SetNode(after.Name, after.Labels)
}

// setCSINode passes a CSINode to the index.
func (v *View) setCSINode(before, after *storagev1.CSINode, driver string) (changed bool) {
	if after == nil {
		return v.Index.DeleteCSINode(before.Name)
	}
	registered, keys := topology.Registration(after, driver)
	return v.Index.SetCSINode(after.Name, registered, keys)
}

// informer is what all informers have in common.
type informer interface {
	Name() string
	Run(ctx context.Context) error
	kube.Syncer
}

// optional is an informer of a kind that the work does not depend on.
type optional interface {
	informer
	WaitTried(ctx context.Context) error
}

// all lists the informers that the work depends on.
func (v *View) all() []informer {
	list := []informer{v.Claims, v.Volumes, v.Classes}
	if v.Attachments != nil {
		list = append(list, v.Attachments)
	}
	if v.nodes != nil {
		list = append(list, v.nodes, v.csiNodes)
	}
	return list
}

// Start runs the informers until the returned function is called, which waits for them. They outlive ctx,
// for work that is being finished still reads them.
func (v *View) Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	run := func(inf informer) {
		running.Go(func() {
			if err := inf.Run(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Informer ended")
			}
		})
	}
	for _, inf := range v.all() {
		run(inf)
	}
	for _, inf := range v.optional {
		run(inf)
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// WaitSynced waits until every cache is complete that the work depends on. For other kinds it does not wait for long: all claims that
// need none of them are served without.
func (v *View) WaitSynced(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, optionalGrace)
	defer cancel()
	for _, inf := range v.optional {
		_ = inf.WaitTried(short) // ends by itself
	}
	for _, inf := range v.all() {
		if err := inf.WaitSynced(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Synced returns an error that names the kinds whose cache is not complete, nil if there is none.
func (v *View) Synced() error {
	informers := v.all()
	all := make([]kube.Syncer, 0, len(informers))
	for _, inf := range informers {
		all = append(all, inf)
	}
	return kube.CheckSynced(all...)
}
