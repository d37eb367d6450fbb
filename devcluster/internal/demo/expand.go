package demo

import (
	"context"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mkfs makes the file systems of the fourth act. (An ext4 file system in use can be expanded only with CAP_SYS_RESOURCE.)
const mkfs = "mkfs.xfs"

// expand is the fourth act: a volume grows while a pod uses it.
func (s *show) expand(ctx context.Context) error {
	if _, err := exec.LookPath(mkfs); err != nil && s.NodeDir != nil {
		s.narrator.title("4. A volume that grows while a pod uses it: left out, as the nodes here have no %s (package xfsprogs)", mkfs)
		return nil
	}
	if err := s.begin(ctx, "4. A volume that grows while a pod uses it", "4-expand.yaml"); err != nil {
		return err
	}
	pod, err := s.waitRunning(ctx, "user")
	if err != nil {
		return err
	}
	claim, err := s.getClaim(ctx, "grows")
	if err != nil {
		return err
	}
	before, err := s.fileSystemSize(pod, claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	size := resource.MustParse("448Mi")
	s.narrator.title("The claim asks for %s.", size.String())
	patch := fmt.Appendf(nil, `{"spec": {"resources": {"requests": {"storage": %q}}}}`, size.String())
	if _, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("ask for %s: %w", size.String(), err)
	}
	err = s.wait(ctx, "claim grows to have "+size.String(), func(ctx context.Context) (string, error) {
		claim, err := s.getClaim(ctx, "grows")
		if err != nil || claim.Status.Capacity.Storage().Cmp(size) >= 0 {
			return "", err
		}
		return describeClaim(claim), nil
	})
	if err != nil {
		return err
	}
	return s.showGrowth(pod, claim.Spec.VolumeName, before)
}

// showGrowth tells the size of the file system before and after its expansion.
func (s *show) showGrowth(pod *corev1.Pod, specName string, before uint64) error {
	after, err := s.fileSystemSize(pod, specName)
	if err != nil || s.NodeDir == nil {
		return err // the disks of the nodes are not ours to look at
	}
	if after <= before {
		return fmt.Errorf("the file system of pod %s had %d bytes before its expansion, and has %d", pod.Name, before, after)
	}
	s.narrator.title("the file system that the pod sees had   %.1f MiB\nand has now, still mounted               %.1f MiB", mebibytes(before), mebibytes(after))
	return nil
}

// fileSystemSize is the size in bytes of the file system that a pod sees, 0 if the nodes are elsewhere.
func (s *show) fileSystemSize(pod *corev1.Pod, specName string) (uint64, error) {
	if s.NodeDir == nil {
		return 0, nil
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(s.target(pod, specName), &stat); err != nil {
		return 0, fmt.Errorf("size of the file system in %s: %w", s.target(pod, specName), err)
	}
	return stat.Blocks * uint64(stat.Bsize), nil //nolint:gosec // the size of a block is not negative
}

func mebibytes(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
