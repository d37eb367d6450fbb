package demo

import (
	"fmt"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// describe says in a line what an object's state means to its user; the same state gives the same line. An empty line means
// that nothing is printed.
func describe(obj any) string {
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return describeClaim(o)
	case *corev1.PersistentVolume:
		return describeVolume(o)
	case *storagev1.VolumeAttachment:
		return describeAttachment(o)
	case *corev1.Pod:
		return describePod(o)
	case *snapshotv1.VolumeSnapshot:
		return describeSnapshot(o)
	case *corev1.Event:
		return describeEvent(o)
	}
	return ""
}

func describeClaim(c *corev1.PersistentVolumeClaim) string {
	name := "claim " + c.Name
	switch {
	case c.DeletionTimestamp != nil:
		return name + ": being deleted"
	case c.Status.Phase == corev1.ClaimBound:
		capacity := c.Status.Capacity[corev1.ResourceStorage]
		return fmt.Sprintf("%s: Bound to %s, %s%s", name, c.Spec.VolumeName, capacity.String(), describeExpansion(c))
	case c.Annotations["volume.kubernetes.io/selected-node"] != "":
		return name + ": Pending, the scheduler selected " + c.Annotations["volume.kubernetes.io/selected-node"]
	}
	return name + ": " + string(corev1.ClaimPending)
}

// describeExpansion says how far the expansion of a claim is, if there is one.
func describeExpansion(c *corev1.PersistentVolumeClaim) string {
	if requested := c.Spec.Resources.Requests.Storage(); requested.Cmp(*c.Status.Capacity.Storage()) > 0 {
		return strings.TrimSpace(fmt.Sprintf(", asks for %s %s", requested, c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]))
	}
	return ""
}

func describeVolume(v *corev1.PersistentVolume) string {
	handle := ""
	if v.Spec.CSI != nil {
		handle = ", handle " + v.Spec.CSI.VolumeHandle
	}
	return fmt.Sprintf("volume %s: %s%s%s", v.Name, v.Status.Phase, handle, where(v.Spec.NodeAffinity))
}

// where renders the topology of a volume.
func where(affinity *corev1.VolumeNodeAffinity) string {
	if affinity == nil || affinity.Required == nil {
		return ""
	}
	var terms []string
	for _, term := range affinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			terms = append(terms, e.Key+"="+strings.Join(e.Values, "|"))
		}
	}
	return ", accessible from " + strings.Join(terms, ", ")
}

func describeAttachment(a *storagev1.VolumeAttachment) string {
	volume := "an inline volume"
	if a.Spec.Source.PersistentVolumeName != nil {
		volume = *a.Spec.Source.PersistentVolumeName
	}
	state := "being attached"
	switch {
	case a.Status.DetachError != nil:
		state = "detach error: " + a.Status.DetachError.Message
	case a.DeletionTimestamp != nil:
		state = "being detached"
	case a.Status.AttachError != nil:
		state = "attach error: " + a.Status.AttachError.Message
	case a.Status.Attached:
		state = "attached"
	}
	return fmt.Sprintf("attachment of %s to %s: %s", volume, a.Spec.NodeName, state)
}

func describePod(p *corev1.Pod) string {
	name := "pod " + p.Name
	switch {
	case p.DeletionTimestamp != nil:
		return name + ": being deleted"
	case p.Spec.NodeName == "":
		return name + ": Pending"
	case p.Status.Phase == corev1.PodPending:
		return fmt.Sprintf("%s: scheduled to %s, waits for its volumes", name, p.Spec.NodeName)
	}
	return fmt.Sprintf("%s: %s on %s", name, p.Status.Phase, p.Spec.NodeName)
}

// describeEvent describes warnings only: successes show in the objects themselves.
func describeEvent(e *corev1.Event) string {
	if e.Type != corev1.EventTypeWarning {
		return ""
	}
	return fmt.Sprintf("%s %s: %s: %s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Reason, e.Message)
}

func describeSnapshot(s *snapshotv1.VolumeSnapshot) string {
	name := "snapshot " + s.Name
	switch {
	case s.DeletionTimestamp != nil:
		return name + ": being deleted"
	case s.Status != nil && s.Status.Error != nil && s.Status.Error.Message != nil:
		return name + ": error: " + *s.Status.Error.Message
	case isReady(s):
		size := ""
		if s.Status.RestoreSize != nil {
			size = ", " + s.Status.RestoreSize.String()
		}
		content := ""
		if s.Status.BoundVolumeSnapshotContentName != nil {
			content = ", content " + *s.Status.BoundVolumeSnapshotContentName
		}
		return name + ": ready" + size + content
	}
	return name + ": being taken"
}
