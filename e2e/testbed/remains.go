package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WaitNothingLeft waits until the scene's pods and claims and everything that belonged to them are gone: volumes,
// attachments, and on a development cluster directories, records and mounts.
func (s *Scene) WaitNothingLeft() {
	s.T.Helper()
	var left []string
	defer func() {
		if s.T.Failed() {
			s.T.Logf("left: %q", left)
		}
	}()
	s.Wait("nothing to be left", func(ctx context.Context) (bool, error) {
		var err error
		left, err = s.leftovers(ctx)
		return len(left) == 0, err
	})
}

// leftovers names what is there of the scene, and what is of no scene.
func (s *Scene) leftovers(ctx context.Context) ([]string, error) {
	pods, err1 := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	claims, err2 := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	rest, err3 := s.Remains(ctx, s.Namespace)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var left []string
	for _, p := range pods.Items {
		left = append(left, "pod "+p.Name)
	}
	for _, c := range claims.Items {
		left = append(left, "claim "+c.Name)
	}
	return append(left, rest...), nil
}

// Remains lists the remains of volumes outside of namespaces and, on a development cluster, on the disks, where tests look alone. Volumes
// of claims in other namespaces than this one are left out; "": no volumes are left out.
func (b *Bed) Remains(ctx context.Context, namespace string) ([]string, error) {
	left, err := b.RemainsInAPI(ctx, namespace)
	if err != nil || b.Dev == nil {
		return left, err
	}
	onDisk, err := b.Dev.leftovers()
	return append(left, onDisk...), err
}

// WaitNothingRemains waits until no volume, attachment or snapshot is left in the cluster, nor anything of one on the disks of a development cluster. It is for the
// end of all tests, as those that run at the same time each look after their own. After Patience it returns an error that names what is left.
func (b *Bed) WaitNothingRemains(ctx context.Context) error { return b.waitNone(ctx, b.Remains) }

// WaitNothingRemainsInAPI is WaitNothingRemains without the disks.
func (b *Bed) WaitNothingRemainsInAPI(ctx context.Context) error {
	return b.waitNone(ctx, b.RemainsInAPI)
}

func (b *Bed) waitNone(ctx context.Context, remains func(ctx context.Context, namespace string) ([]string, error)) error {
	var left []string
	err := Poll(ctx, func(ctx context.Context) (done bool, err error) {
		now, err1 := remains(ctx, "")
		snapshots, err2 := b.snapshotsIn(ctx, "")
		now, err = append(now, snapshots...), errors.Join(err1, err2)
		if err == nil {
			left = now
		}
		return len(now) == 0, err
	})
	if err != nil {
		return fmt.Errorf("left: %q: %w", left, err)
	}
	return nil
}

// RemainsInAPI is Remains without the disks.
func (b *Bed) RemainsInAPI(ctx context.Context, namespace string) ([]string, error) {
	nodes, err1 := b.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	attachments, err2 := b.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	volumes, err3 := b.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{}) // the last: what belongs to one is seen to
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return ownRemains(namespace, volumes.Items, attachments.Items, nodes.Items), nil
}

// ownRemains leaves out the volumes of claims in other namespaces, their attachments, and their use: that is for those to look at who made
// the claims, maybe at this moment. What belongs to no volume that is there is everybody's.
func ownRemains(namespace string, volumes []corev1.PersistentVolume, attachments []storagev1.VolumeAttachment, nodes []corev1.Node) (left []string) {
	others := map[string]bool{}
	for _, v := range volumes {
		if claim := v.Spec.ClaimRef; namespace == "" || claim == nil || claim.Namespace == namespace {
			left = append(left, "volume "+v.Name)
			continue
		}
		others[v.Name] = true
		if v.Spec.CSI != nil {
			others["kubernetes.io/csi/"+v.Spec.CSI.Driver+"^"+v.Spec.CSI.VolumeHandle] = true
		}
	}
	for _, a := range attachments {
		if v := a.Spec.Source.PersistentVolumeName; v == nil || !others[*v] {
			left = append(left, "attachment "+a.Name)
		}
	}
	for _, n := range nodes {
		for _, v := range n.Status.VolumesInUse {
			if !others[string(v)] {
				left = append(left, "in use on "+n.Name+": "+string(v))
			}
		}
	}
	return left
}

// leftovers names the files, directories and mounts of volumes on the disks of the cluster.
func (d *Dev) leftovers() ([]string, error) {
	var left []string
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.dir))
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		left = append(left, "mount "+m.Mountpoint)
	}
	for _, node := range d.NodeDirs {
		for _, dir := range []string{filepath.Join(node, "pods"), filepath.Join(node, "plugins", "kubernetes.io")} {
			found, err := below(dir, volumePath)
			if err != nil {
				return nil, err
			}
			left = append(left, found...)
		}
	}
	ofTheDriver := []string{".spare", "driver", "lock", "controller.lock", "controller.sock"}
	state, err := below(d.StateDir, func(path string) bool { return !slices.Contains(ofTheDriver, filepath.Base(path)) })
	return append(left, state...), err
}

// volumePath reports whether a path below a node's directories belongs to one volume: what is above it may stay.
func volumePath(path string) bool {
	base := filepath.Base(path)
	return base == "vol_data.json" || base == "globalmount" || base == "mount" || strings.Contains(path, "/pods/")
}

// below lists files and empty directories below dir: what a volume leaves when it leaves something.
func below(dir string, match func(path string) bool) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !d.IsDir() && match(path) {
			found = append(found, path)
		}
		return nil
	})
	return found, err
}

// Target returns the path at which a pod of a node sees a volume. specName is the name of the PersistentVolume, or that of the volume in the pod.
func (d *Dev) Target(node, podUID, specName string) string {
	return filepath.Join(d.NodeDirs[node], "pods", podUID, "volumes", "kubernetes.io~csi", specName, "mount")
}
