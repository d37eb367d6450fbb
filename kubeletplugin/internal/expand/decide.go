package expand

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NotRequired is the annotation by which a resizer says that no node has to expand the volume.
const NotRequired = "volume.kubernetes.io/node-expansion-not-required"

// Mode is the way in which a volume is expanded on its node.
type Mode int

const (
	// None: there is nothing to expand, or it is not this node's turn.
	None Mode = iota
	// Recovery: the resizer keeps the progress in status.allocatedResourceStatuses, and so does the node (KEP-1790).
	Recovery
	// Legacy: the resizer is older, and the claim only has less capacity than its PersistentVolume.
	Legacy
	// Elsewhere: another node has expanded a ReadWriteMany volume and its claim is done; the file system as this node sees
	// it follows.
	Elsewhere
)

// Known is what this process knows of the volume as it is mounted on this node.
type Known struct {
	// Bytes is the capacity of the claim at the last look at it, or the size after the last expansion; 0: there was none.
	Bytes int64
	// Recovered is true for a volume that an earlier process may have mounted, until the first look at the claim.
	Recovered bool
}

// Plan is the expansion to do.
type Plan struct {
	Mode Mode
	// Size is what the volume is expanded to.
	Size resource.Quantity
}

// Pending reports whether the claim alone gives reason to expand the volume here, so that the PersistentVolume has to be
// read. pvBytes is the capacity of the PersistentVolume when it was last read.
func Pending(claim *corev1.PersistentVolumeClaim, pvBytes int64, known Known) bool {
	switch progress(claim) {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	case "":
		return follows(claim, known) || legacy(claim) &&
			(hasCondition(claim, corev1.PersistentVolumeClaimFileSystemResizePending) || capacity(claim).Value() < pvBytes)
	default: // it is the controller's turn, or the expansion is infeasible
		return false
	}
}

// Decide returns what to do about a claim that is pending.
func Decide(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, known Known) Plan {
	want, have := pv.Spec.Capacity[corev1.ResourceStorage], capacity(claim)
	allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if !ok {
		allocated = want
	}
	grown := have.Cmp(want) < 0
	switch progress(claim) {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if grown {
			return Plan{Recovery, allocated}
		}
	case "":
		if follows(claim, known) {
			return Plan{Elsewhere, *have}
		}
		if grown && legacy(claim) {
			return Plan{Legacy, want}
		}
	default: // as in Pending
	}
	return Plan{}
}

// legacy reports whether an old resizer, or none, cares for the claim.
func legacy(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.AllocatedResources == nil && !capacity(claim).IsZero()
}

// follows reports whether a claim that is done is larger than this node knows. After a restart the node does not know the
// size: it follows once if the claim was ever expanded.
func follows(claim *corev1.PersistentVolumeClaim, known Known) bool {
	have := capacity(claim)
	allocated, expanded := claim.Status.AllocatedResources[corev1.ResourceStorage]
	_, notRequired := claim.Annotations[NotRequired]
	if notRequired || have.Cmp(allocated) < 0 || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) {
		return false
	}
	return known.Bytes > 0 && have.Value() > known.Bytes || known.Recovered && expanded
}

func progress(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

func capacity(claim *corev1.PersistentVolumeClaim) *resource.Quantity {
	q := claim.Status.Capacity[corev1.ResourceStorage]
	return &q
}

func hasCondition(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}
