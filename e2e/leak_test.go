package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
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
	s.t.Helper()
	var left []string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("left: %q", left)
		}
	}()
	s.Wait("nothing to be left", func(ctx context.Context) (bool, error) {
		var err error
		left, err = s.Leftovers(ctx)
		return len(left) == 0, err
	})
}

// Leftovers names what is there of the scene, and what is of no scene.
func (s *Scene) Leftovers(ctx context.Context) ([]string, error) {
	pods, err1 := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	claims, err2 := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	rest, err3 := s.remains(ctx, s.Namespace)
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

// remains names what there is of volumes outside of namespaces and, on a development cluster, on the disks, where tests look alone. Volumes
// of claims in other namespaces than this one are left out; no namespace at all: nothing is.
func (b *Bed) remains(ctx context.Context, namespace string) ([]string, error) {
	left, err := b.remainsInAPI(ctx, namespace)
	if err != nil || b.Dev == nil {
		return left, err
	}
	onDisk, err := b.Dev.Leftovers()
	return append(left, onDisk...), err
}

// remainsInAPI is remains without the disks.
func (b *Bed) remainsInAPI(ctx context.Context, namespace string) ([]string, error) {
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

// Leftovers names the files, directories and mounts of volumes on the disks of the cluster.
func (d *Dev) Leftovers() ([]string, error) {
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
			found, err := below(dir, func(path string) bool { return volumePath(path) })
			if err != nil {
				return nil, err
			}
			left = append(left, found...)
		}
	}
	ofTheDriver := []string{"lock", "controller.lock", "controller.sock"}
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

// Written reads what lies in the driver's directory of a volume.
func (d *Dev) Written(handle, file string) (string, error) {
	path := filepath.Join(d.StateDir, "volumes", handle, file)
	data, err := os.ReadFile(path)
	return string(data), err
}

// Target is the path at which a pod sees a volume.
func (d *Dev) Target(node, podUID, specName string) string {
	return filepath.Join(d.NodeDirs[node], "pods", podUID, "volumes", "kubernetes.io~csi", specName, "mount")
}
