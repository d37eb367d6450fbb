package controller

import (
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// newContent is a content to create.
type newContent struct {
	name    string
	meta    metav1.ObjectMeta
	ref     corev1.ObjectReference
	driver  string
	policy  snapshotv1.DeletionPolicy
	class   string
	volumes []string
	// mode is that of the one volume of a snapshot, nil where it is not recorded.
	mode *corev1.PersistentVolumeMode
}

// newContent makes the content of a snapshot of claims, with its class.
func (v view) newContent() (*class, *newContent, error) {
	o := v.owner
	if err := v.checkSources(); err != nil {
		return nil, nil, err
	}
	class, err := v.chooseClass(v.sources[0].volume.Spec.CSI.Driver)
	if err != nil {
		return nil, nil, err
	}
	name := v.contentName(o.GetUID())
	c := &newContent{
		name: name, meta: metav1.ObjectMeta{Name: name, Finalizers: []string{v.contentFinalizer}}, driver: class.driver, policy: class.policy, class: class.GetName(),
		ref: corev1.ObjectReference{
			Kind: v.ownerKind, APIVersion: v.apiVersion, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		},
	}
	for _, s := range v.sources {
		if driver := s.volume.Spec.CSI.Driver; driver != class.driver {
			return nil, nil, problemf(ReasonValidation, "%s %q is for driver %q, claim %s has a volume of driver %q: choose a class of that driver",
				v.classKind, class.GetName(), class.driver, keyOf(s.claim), driver)
		}
		c.volumes = append(c.volumes, s.volume.Spec.CSI.VolumeHandle)
	}
	secret, err := snapshotapi.ClassSecret(v.secret, class.parameters, name, o.GetNamespace(), o.GetName())
	if err != nil {
		return nil, nil, problemf(ReasonContentCreationFailed, "Failed to find the secret of %s %q: %v", v.classKind, class.GetName(), err)
	}
	if secret != nil {
		c.meta.Annotations = map[string]string{v.secretName: secret.Name, v.secretNamespace: secret.Namespace}
	}
	if v.node != "" {
		c.meta.Labels = map[string]string{snapshotapi.LabelManagedBy: v.node}
	}
	if v.sourceVolumeMode {
		c.mode = v.sources[0].volume.Spec.VolumeMode
	}
	return class, c, nil
}

func encodeSnapshotContent(c *newContent) *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{ObjectMeta: c.meta, Spec: snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: c.ref, Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &c.volumes[0]}, Driver: c.driver, DeletionPolicy: c.policy,
		VolumeSnapshotClassName: className(c.class), SourceVolumeMode: c.mode,
	}}
}

func encodeGroupContent(c *newContent) *groupv1.VolumeGroupSnapshotContent {
	return &groupv1.VolumeGroupSnapshotContent{ObjectMeta: c.meta, Spec: groupv1.VolumeGroupSnapshotContentSpec{
		VolumeGroupSnapshotRef: c.ref, Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: c.volumes}, Driver: c.driver, DeletionPolicy: c.policy,
		VolumeGroupSnapshotClassName: &c.class,
	}}
}

// className is nil for the content of a member, which has no class.
func className(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

// checkSources returns why no snapshot can be taken of the claims now.
func (v view) checkSources() error {
	switch {
	case v.selectorErr != nil:
		return problemf(ReasonValidation, "selector: %v", v.selectorErr)
	case len(v.sources) == 0:
		return problemf(ReasonContentCreationFailed, "the selector matches no PersistentVolumeClaim of namespace %s", v.owner.GetNamespace())
	}
	for _, s := range v.sources {
		if err := s.check(v.owner.GetNamespace()); err != nil {
			return err
		}
		// Another finalizer keeps the claim of a group, and its volume, as long as a pod uses it: an application that is being taken down is backed up, too.
		if v.owner.snapshot != nil && s.claim.DeletionTimestamp != nil && !isProtected(s.claim) {
			return problemf(ReasonContentCreationFailed, "PersistentVolumeClaim %s is being deleted: no snapshot is taken of it", keyOf(s.claim))
		}
	}
	return nil
}

// check returns why no snapshot can be taken of a claim now.
func (s source) check(namespace string) error {
	key := namespace + "/" + s.name
	switch {
	case s.claim == nil:
		return problemf(ReasonClaimMissing, "PersistentVolumeClaim %s does not exist", key)
	case s.claim.Status.Phase != corev1.ClaimBound || s.claim.Spec.VolumeName == "":
		return problemf(ReasonContentCreationFailed, "PersistentVolumeClaim %s is not yet bound to a PersistentVolume: no snapshot is taken until it is", key)
	case s.volume == nil:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q of claim %s does not exist", s.claim.Spec.VolumeName, key)
	}
	ref := s.volume.Spec.ClaimRef
	switch {
	case ref == nil || ref.Namespace != s.claim.Namespace || ref.Name != s.claim.Name || ref.UID != s.claim.UID:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q is not bound to claim %s", s.volume.Name, key)
	case s.volume.Spec.CSI == nil:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q of claim %s is not one of a CSI driver", s.volume.Name, key)
	}
	return nil
}

// chooseClass returns the class that the owner names, or else the default one of the volumes' driver.
func (v view) chooseClass(driver string) (*class, error) {
	if name := v.owner.class; name != nil {
		if v.named == nil {
			return nil, problemf(ReasonClassFailed, "%s %q does not exist", v.classKind, *name)
		}
		return v.named, nil
	}
	var names []string
	var chosen *class
	for _, c := range v.classes {
		if c.driver == driver && c.GetAnnotations()[v.defaultClass] == "true" {
			chosen, names = c, append(names, fmt.Sprintf("%q", c.GetName()))
		}
	}
	switch len(names) { // in the words of the external-snapshotter: Kubernetes' storage suite looks for them
	case 0:
		return nil, problemf(ReasonDefaultClassFailed, "cannot find default %s class for driver %q: name a class, or mark one as the default", v.what, driver)
	case 1:
		return chosen, nil
	}
	slices.Sort(names)
	return nil, problemf(ReasonDefaultClassFailed, "%d default snapshot classes were found: %s of driver %q; keep one default %s class", len(names), strings.Join(names, ", "), driver, v.what)
}
