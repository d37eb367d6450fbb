package testbed

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OriginalSize is the size of the volumes that are expanded, in bytes, the least that XFS can have, and ExpandedSize that which they get. An ext4 file system
// that is in use can be expanded only with CAP_SYS_RESOURCE, which not every machine for tests has.
const (
	OriginalSize = 320 << 20
	ExpandedSize = 448 << 20
)

// Expansion is a scene with the claim "data" of a volume with an XFS file system, which is expanded.
type Expansion struct{ *Scene }

// NewExpansion creates a scene with a claim, and waits until it is bound.
func NewExpansion(t testing.TB, cluster *Bed) *Expansion {
	t.Helper()
	e := &Expansion{cluster.NewScene(t)}
	class := Class(e.Namespace+"-xfs", e.Driver, storagev1.VolumeBindingImmediate)
	class.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	e.AddClass(class)
	claim := Claim(e.Namespace, "data", class.Name)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(OriginalSize, resource.BinarySI)
	e.AddClaim(claim)
	e.WaitBound("data")
	return e
}

// Request lets the claim request ExpandedSize.
func (e *Expansion) Request() {
	e.Grow("data", resource.NewQuantity(ExpandedSize, resource.BinarySI).String())
}

// WaitReached waits until the claim is in a state of its expansion.
func (e *Expansion) WaitReached(state corev1.ClaimResourceStatus) {
	e.T.Helper()
	e.Wait("the expansion to reach "+string(state), func(ctx context.Context) (bool, error) {
		claim, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != state {
			return false, fmt.Errorf("status is %+v", claim.Status)
		}
		return true, nil
	})
}

// FileSystemSize returns the size in bytes of the file system that a pod sees.
func (e *Expansion) FileSystemSize(pod string) uint64 {
	e.T.Helper()
	path := e.MountPath(pod, "data")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		e.T.Fatalf("file system at %s: %v", path, err)
	}
	return fs.Blocks * uint64(fs.Bsize)
}

// WaitFinished waits until the claim is as a finished expansion leaves it.
func (e *Expansion) WaitFinished() {
	e.T.Helper()
	e.Wait("the claim to have the new capacity", func(ctx context.Context) (bool, error) {
		claim, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := claim.Status
		if s.Capacity.Storage().Value() != ExpandedSize || len(s.AllocatedResourceStatuses) > 0 || IsChanging(claim) {
			return false, fmt.Errorf("status is %+v", s)
		}
		return true, nil
	})
}

// IsChanging reports whether a condition says that something is being done to a claim, or has failed. Unused, which Kubernetes adds since 1.37, does not.
func IsChanging(claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type != corev1.PersistentVolumeClaimUnused
	})
}

// CheckGrown checks that the file system that a pod sees is larger than before the expansion, and has at least three quarters of ExpandedSize: it needs some of
// the volume for itself.
func (e *Expansion) CheckGrown(pod string, before uint64) {
	e.T.Helper()
	if now := e.FileSystemSize(pod); now < ExpandedSize*3/4 || now <= before {
		e.T.Errorf("the file system has %d bytes, want about %d; it had %d before", now, ExpandedSize, before)
	}
}

// Leave deletes the pod "pod", waits until it is gone, and deletes the claim.
func (e *Expansion) Leave() {
	e.T.Helper()
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.DeleteClaim("data")
}

// End is Leave, and waits until nothing is left.
func (e *Expansion) End() {
	e.T.Helper()
	e.Leave()
	e.WaitNothingLeft()
}
