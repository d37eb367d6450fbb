package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// finalizerProvisioner is csi-provisioner's on a VolumeSnapshot, as long as it makes a volume of it.
const finalizerProvisioner = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"

// bindGrace is how long a new content may have no status before its owner is shown as bound to it.
const bindGrace = time.Second

// view collects what the caches have about an owner.
func (p *pairs) view(o *owner) view {
	v := view{kind: p.kind, owner: o, sourceVolumeMode: p.cfg.SourceVolumeMode, groupVersion: p.groupVersion()}
	name := o.contentName()
	if c := p.findContent(name); c != nil {
		v.content, v.grace, v.node = c, p.graceOf(c), p.nodeOf(c)
		_, v.contentDeleted = p.deleted.Load(c.GetUID())
	} else {
		_, v.contentGone = p.gone.Load(name)
		v.unanswered = p.creating.rest(o.GetUID())
	}
	if v.content == nil && o.dynamic && o.GetDeletionTimestamp() == nil {
		v.sources, v.selectorErr = p.sourcesOf(o)
		if o.class != nil {
			v.named = p.findClass(*o.class)
		} else {
			v.classes = p.allClasses()
		}
		v.node = p.nodeOfSources(v.sources)
	}
	p.complete(&v)
	return v
}

// contentName returns the name of the owner's content, whether it exists or not.
func (o *owner) contentName() string {
	if o.existing != nil {
		return *o.existing
	}
	if name := o.bound(); name != "" {
		return name
	}
	if o.group != nil {
		return snapshotapi.GroupContentName(o.GetUID())
	}
	if suffix, ok := strings.CutPrefix(o.GetName(), "snapshot-"); ok && ownerGroup(o) != nil {
		return "snapcontent-" + suffix // a member, whose two names have the same hash
	}
	return snapshotapi.ContentName(o.GetUID())
}

// graceOf returns how much of bindGrace is left of a content that this instance has created.
func (p *pairs) graceOf(c *content) time.Duration {
	if at, ok := p.created.Load(c.GetUID()); ok {
		if at, ok := at.(time.Time); ok && c.status == nil {
			return bindGrace - time.Since(at)
		}
		p.created.Delete(c.GetUID())
	}
	return 0
}

// completeSnapshot adds the group that a snapshot is a member of, and what it is being restored to.
func (c *Controller) completeSnapshot(v *view) {
	c.groupOf(v)
	if v.owner.GetDeletionTimestamp() != nil {
		v.inUse = c.useOf(v.kind, v.owner.snapshot)
	}
}

// useOf says what is being made of a snapshot: a claim that is not bound yet, or a volume that csi-provisioner makes, also of a claim that is gone. Empty: nothing.
func (c *Controller) useOf(k *kind, s *snapshotv1.VolumeSnapshot) string {
	first := ""
	for _, claim := range c.claims.ByIndex(indexRestored, keyOf(s)) {
		if first == "" || keyOf(claim) < first {
			first = keyOf(claim)
		}
	}
	switch {
	case first != "":
		return fmt.Sprintf("%s: %s when claim %s is bound or deleted", k.held, k.released, first)
	case slices.Contains(s.Finalizers, finalizerProvisioner):
		return fmt.Sprintf("%s: %s when csi-provisioner has answered, and removes the finalizer %s", k.held, k.released, finalizerProvisioner)
	}
	return ""
}

// claimOfSnapshot returns the claim that a snapshot is to be taken of.
func (c *Controller) claimOfSnapshot(o *owner) ([]source, error) {
	name := *o.snapshot.Spec.Source.PersistentVolumeClaimName
	claim, pv := c.claimOf(o.GetNamespace(), name)
	return []source{{name, claim, pv}}, nil
}

// claimOf returns a claim and its volume, nil for what does not exist.
func (c *Controller) claimOf(namespace, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim, ok := c.claims.Get(namespace, name)
	if !ok {
		return nil, nil
	}
	if pv, ok := c.pvs.Get("", claim.Spec.VolumeName); ok && claim.Spec.VolumeName != "" {
		return claim, pv
	}
	return claim, nil
}

// inputs identifies what an owner, and the contents that refer to its name, are decided by, without what the controller writes into the owner.
func (p *pairs) inputs(key string) any {
	namespace, name, _ := strings.Cut(key, "/")
	var parts []string
	if o := p.findOwner(namespace, name); o != nil {
		parts = p.view(o).inputs()
	}
	return strings.Join(append(parts, versions(p.contentsOf(key))...), "\n")
}

// inputs identifies what plan decides about.
func (v view) inputs() []string {
	parts := []string{
		string(v.owner.GetUID()), fmt.Sprint(v.owner.GetDeletionTimestamp() != nil, v.owner.GetFinalizers()), ptr.Deref(v.owner.class, ""), v.inUse, v.node,
		fmt.Sprint(v.groupUnknown, v.groupUnread, v.groupExists, v.groupDeleting),
	}
	if v.content != nil {
		parts = append(parts, version(v.content))
	}
	if v.named != nil {
		parts = append(parts, version(v.named))
	}
	parts = append(parts, versions(v.classes)...)
	for _, s := range v.sources {
		if s.claim != nil {
			parts = append(parts, string(s.claim.UID), s.claim.Spec.VolumeName, string(s.claim.Status.Phase))
		}
		if s.volume != nil {
			parts = append(parts, string(s.volume.UID), fmt.Sprint(s.volume.Spec.ClaimRef))
		}
	}
	for _, m := range v.members {
		parts = append(parts, fmt.Sprint(m.snapshot != nil))
		if m.content != nil {
			parts = append(parts, version(m.content))
		}
	}
	return parts
}

// versions identifies the states of objects, whatever their order.
func versions[T metav1.Object](objects []T) []string {
	parts := make([]string, 0, len(objects))
	for _, obj := range objects {
		parts = append(parts, version(obj))
	}
	slices.Sort(parts)
	return parts
}

// version identifies the state of an object.
func version(obj metav1.Object) string { return string(obj.GetUID()) + "/" + obj.GetResourceVersion() }
