package expand

import (
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// Answer is what the end of a NodeExpandVolume call means.
type Answer int

const (
	// Done: the volume has the size.
	Done Answer = iota
	// Uncertain: the call may still run, so it is only repeated.
	Uncertain
	// InUse: the driver does not expand a volume that is in use. It is not called again until the volume is mounted again.
	InUse
	// Infeasible: this expansion cannot succeed however often it is repeated.
	Infeasible
	// Failed: the expansion has failed, and may succeed when it is repeated.
	Failed
)

// Classify returns what the error of NodeExpandVolume means (CSI v1.13, "NodeExpandVolume Errors"). A lack of resources
// counts as no answer, as it does for the kubelet.
func Classify(err error) Answer {
	switch class := outcome.Of(err); {
	case class == outcome.Done:
		return Done
	case class.MayStillRun() || class == outcome.Exhausted:
		return Uncertain
	case class == outcome.Infeasible || outcome.Code(err) == codes.NotFound:
		return Infeasible
	case outcome.Code(err) == codes.FailedPrecondition:
		return InUse
	default:
		return Failed
	}
}

// GivenUp reports whether a failed expansion becomes infeasible, because the claim has come to ask for another size since an
// earlier failure: the resizer then continues with that size.
func GivenUp(claim *corev1.PersistentVolumeClaim, size resource.Quantity) bool {
	asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return asked.Cmp(size) != 0 && hasCondition(claim, corev1.PersistentVolumeClaimNodeResizeError)
}
