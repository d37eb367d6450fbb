package source

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// This file decides whether a source is fit for a claim.

// access decides whether claims of a namespace may use a source in another one.
type access struct {
	// enabled says that sources in other namespaces are allowed at all.
	enabled bool
	// grants are the ReferenceGrants in the namespace of the source, and unwatched says that their changes are not noticed; unknown says why not all of them are known.
	grants    []*kubeapi.ReferenceGrant
	unwatched bool
	unknown   error
}

// check says why claims of a namespace may not use a source.
func (a access) check(namespace string, ref volume.SourceRef) error {
	switch {
	case !a.enabled:
		return volume.BlockedError{Err: fmt.Errorf("data source in namespace %q: must be in the claim's own namespace %q, unless the provisioner runs with --feature-gates=CrossNamespaceVolumeDataSource=true",
			ref.Namespace, namespace)}
	case slices.ContainsFunc(a.grants, func(grant *kubeapi.ReferenceGrant) bool { return grantAllows(grant.Spec, namespace, ref) }):
		return nil
	case snapshotapi.IsAbsent(a.unknown):
		return fmt.Errorf("use %s as source: this cluster has no ReferenceGrants, the CustomResourceDefinition of %s is not installed: %w", ref, kubeapi.GatewayGroup, a.unknown)
	case a.unknown != nil:
		return fmt.Errorf("use %s as source: ReferenceGrants cannot be read: %w", ref, a.unknown)
	}
	err := fmt.Errorf("use %s as source: no ReferenceGrant in namespace %q allows PersistentVolumeClaims of namespace %q to use it", ref, ref.Namespace, namespace)
	if a.unwatched {
		return err // repetition finds one that comes later
	}
	return volume.BlockedError{Err: err}
}

// grantAllows reports whether a ReferenceGrant in the namespace of a source allows claims of a namespace to use it.
func grantAllows(grant kubeapi.ReferenceGrantSpec, namespace string, ref volume.SourceRef) bool {
	group := ""
	if ref.Kind == view.KindSnapshot {
		group = snapshotv1.GroupName
	}
	from := kubeapi.ReferenceGrantFrom{Kind: view.KindClaim, Namespace: namespace}
	return slices.Contains(grant.From, from) && slices.ContainsFunc(grant.To, func(to kubeapi.ReferenceGrantTo) bool {
		return to.Group == group && to.Kind == ref.Kind && (to.Name == "" || to.Name == ref.Name)
	})
}

// origin is a source as the server has it: a claim with its volume, or a snapshot with its content. Either may lack the latter.
type origin struct {
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
	snapshot *snapshotv1.VolumeSnapshot
	content  *snapshotv1.VolumeSnapshotContent
}

// object returns the object that the claim names.
func (o origin) object() metav1.Object {
	if o.claim != nil {
		return o.claim
	}
	return o.snapshot
}

// finalizer returns the name of the finalizer that keeps the object.
func (o origin) finalizer() string {
	if o.claim != nil {
		return view.FinalizerClone
	}
	return view.FinalizerRestore
}

// kept reports whether the finalizer is on the object.
func (o origin) kept() bool {
	return slices.Contains(o.object().GetFinalizers(), o.finalizer())
}

// isFor reports whether a driver made what is behind the object. What has nothing behind it is everybody's.
func (o origin) isFor(driver string) bool {
	switch {
	case o.volume != nil:
		return o.volume.Spec.CSI != nil && o.volume.Spec.CSI.Driver == driver
	case o.content != nil:
		return o.content.Spec.Driver == driver
	}
	return true
}

// holder returns the label of the node that is in charge of a snapshot, its name unless that is too long; empty if that is none in particular.
func (o origin) holder() string {
	if o.content == nil {
		return ""
	}
	return o.content.Labels[snapshotapi.LabelManagedBy]
}

// accessible returns from where a volume can be made of a snapshot; none: from everywhere, as far as is known.
func (o origin) accessible() ([]topology.Segment, error) {
	if o.content == nil {
		return nil, nil
	}
	places, err := snapshotapi.AccessibleTopology(o.content.Annotations)
	if err != nil {
		return nil, err
	}
	segments := make([]topology.Segment, 0, len(places))
	for _, place := range places {
		segment, err := topology.FromTopology(&csi.Topology{Segments: place})
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", snapshotapi.AnnAccessibleTopology, err)
		}
		segments = append(segments, segment)
	}
	return segments, nil
}

// source returns the content source for CreateVolume. The origin must be valid.
func (o origin) source() *csi.VolumeContentSource {
	if o.claim != nil {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: o.volume.Spec.CSI.VolumeHandle},
		}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: *o.content.Status.SnapshotHandle},
	}}
}

// check decides whether a claim can be served from its source.
type check struct {
	// driver is the name of our driver.
	driver string
	// claim is the claim.
	claim *corev1.PersistentVolumeClaim
	// begun says that the volume may have been asked for before, when the source was not being deleted yet.
	begun bool
	// convert allows every snapshot to be restored in another volume mode.
	convert bool
	// node is the node that the instance provisions for.
	node view.Node
}

// canUse reports whether what is behind a source can be used on a node. An annotation that cannot be read is checkPlace's to report.
func canUse(n view.Node, o origin) bool {
	switch {
	case o.volume != nil:
		return n.Reaches(o.volume)
	case o.content != nil:
		accessible, err := o.accessible()
		return !n.Alone() || mayHold(n, o.holder()) && (err != nil || isWithin(n, accessible))
	}
	return true
}

// mayHold reports whether a node has what is on the node of a label, or on none in particular if that is empty.
func mayHold(n view.Node, holder string) bool {
	return holder == "" || holder == snapshotapi.NodeLabel(n.Name)
}

// isWithin reports whether a node is in one of the places, or there are none.
func isWithin(n view.Node, accessible []topology.Segment) bool {
	return len(accessible) == 0 || slices.ContainsFunc(accessible, func(s topology.Segment) bool { return s.Matches(n.Segments) })
}

// ElsewhereError is returned for a source that is not to be had on the own node.
type ElsewhereError struct {
	why string
	// Holder is the label of the node that has it, empty if that is not known.
	Holder string
}

// Error implements error.
func (e ElsewhereError) Error() string {
	return e.why
}

// check says why a volume cannot be made from the origin now.
func (w check) check(o origin) error {
	switch {
	case o.object().GetDeletionTimestamp() != nil && (!w.begun || !o.kept()):
		return errors.New("it is being deleted")
	case o.claim != nil:
		return w.checkClaim(o.claim, o.volume)
	}
	return w.checkSnapshot(o.snapshot, o.content)
}

// checkClaim looks at the claim and the volume that are to be cloned.
func (w check) checkClaim(source *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	switch {
	case source.Status.Phase != corev1.ClaimBound || source.Spec.VolumeName == "":
		return fmt.Errorf("it is not bound, its phase is %q", source.Status.Phase)
	case pv == nil:
		return fmt.Errorf("its PersistentVolume %q does not exist", source.Spec.VolumeName)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != source.UID || pv.Status.Phase != corev1.VolumeBound:
		return fmt.Errorf("its PersistentVolume %q is not bound to it", pv.Name)
	}
	size := source.Spec.Resources.Requests[corev1.ResourceStorage]
	if err := w.fits(size.Value()); err != nil {
		return err
	}
	return w.checkVolume(pv)
}

// checkVolume looks at driver, mode and place of the volume that is to be cloned.
func (w check) checkVolume(pv *corev1.PersistentVolume) error {
	asked, is := modeOf(w.claim.Spec.VolumeMode), modeOf(pv.Spec.VolumeMode)
	switch {
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != w.driver:
		return fmt.Errorf("its PersistentVolume %q is not of CSI driver %q", pv.Name, w.driver)
	case asked != is:
		return fmt.Errorf("the claim asks for volume mode %s, its source has %s", asked, is)
	case !w.node.Reaches(pv):
		return ElsewhereError{why: fmt.Sprintf("its PersistentVolume %q cannot be accessed from node %q", pv.Name, w.node.Name)}
	}
	return nil
}

// fits reports whether the claim is as large as its source, in bytes.
func (w check) fits(source int64) error {
	asked, err := volume.RequestedBytes(w.claim)
	if err != nil {
		return volume.BlockedError{Err: err}
	}
	if asked < source {
		return fmt.Errorf("the claim requests %s, must request at least the %s of its source", size(asked), size(source))
	}
	return nil
}

// size writes a number of bytes as users do.
func size(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

// because returns what the snapshot's own status says against it, "" if that is nothing.
func because(snapshot *snapshotv1.VolumeSnapshot) string {
	if s := snapshot.Status; s != nil && s.Error != nil && s.Error.Message != nil {
		return ": " + *s.Error.Message
	}
	return ""
}

// checkSnapshot looks at the snapshot that is to be restored, and at its content.
func (w check) checkSnapshot(snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	switch {
	case view.ContentName(snapshot) == "":
		return errors.New("it is not bound to a VolumeSnapshotContent" + because(snapshot))
	case content == nil:
		return fmt.Errorf("its VolumeSnapshotContent %q does not exist", view.ContentName(snapshot))
	case !isOf(content.Spec.VolumeSnapshotRef, snapshot):
		return fmt.Errorf("its VolumeSnapshotContent %q is not bound to it", content.Name)
	case !view.Ready(snapshot):
		return errors.New("it is not ready to use" + because(snapshot))
	}
	if size := snapshot.Status.RestoreSize; size != nil {
		if err := w.fits(size.Value()); err != nil {
			return err
		}
	}
	return w.checkContent(content)
}

// isOf reports whether a reference is to a snapshot.
func isOf(ref corev1.ObjectReference, snapshot *snapshotv1.VolumeSnapshot) bool {
	return ref.UID == snapshot.UID && ref.Namespace == snapshot.Namespace && ref.Name == snapshot.Name
}

// checkContent looks at driver, volume mode and place of a snapshot.
func (w check) checkContent(content *snapshotv1.VolumeSnapshotContent) error {
	asked, was := modeOf(w.claim.Spec.VolumeMode), content.Spec.SourceVolumeMode
	allowed, _ := strconv.ParseBool(content.Annotations[snapshotapi.AnnAllowVolumeModeChange])
	switch {
	case content.Spec.Driver != w.driver:
		return fmt.Errorf("its VolumeSnapshotContent %q is of CSI driver %q, must be of %q", content.Name, content.Spec.Driver, w.driver)
	case content.Status == nil || content.Status.SnapshotHandle == nil || *content.Status.SnapshotHandle == "":
		return fmt.Errorf("its VolumeSnapshotContent %q has no handle", content.Name)
	case was != nil && asked != *was && !allowed && !w.convert:
		return fmt.Errorf("the claim asks for volume mode %s, the snapshot is of a volume of mode %s, and its VolumeSnapshotContent %q has no annotation %s: \"true\"",
			asked, *was, content.Name, snapshotapi.AnnAllowVolumeModeChange)
	}
	return w.checkPlace(origin{content: content})
}

// checkPlace looks at from where a snapshot is accessible.
func (w check) checkPlace(o origin) error {
	accessible, err := o.accessible()
	switch {
	case err != nil:
		return fmt.Errorf("its VolumeSnapshotContent %q: %w", o.content.Name, err)
	case canUse(w.node, o):
		return nil
	case !mayHold(w.node, o.holder()):
		return ElsewhereError{why: fmt.Sprintf("it is on node %q, and cannot be accessed from node %q", o.holder(), w.node.Name), Holder: o.holder()}
	}
	return ElsewhereError{why: fmt.Sprintf("it is accessible from %v only, and not from node %q", accessible, w.node.Name)}
}

// modeOf returns a volume mode, whose default is Filesystem.
func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}
