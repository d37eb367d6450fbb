package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
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

// Leftovers names what is there of the scene, and of all scenes what has no namespace: tests that look run alone.
func (s *Scene) Leftovers(ctx context.Context) ([]string, error) {
	pods, err1 := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	claims, err2 := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	volumes, err3 := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	attachments, err4 := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	nodes, err5 := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	var left []string
	for _, p := range pods.Items {
		left = append(left, "pod "+p.Name)
	}
	for _, c := range claims.Items {
		left = append(left, "claim "+c.Name)
	}
	for _, v := range volumes.Items {
		left = append(left, "volume "+v.Name)
	}
	for _, a := range attachments.Items {
		left = append(left, "attachment "+a.Name)
	}
	for _, n := range nodes.Items {
		for _, v := range n.Status.VolumesInUse {
			left = append(left, "in use on "+n.Name+": "+string(v))
		}
	}
	if s.Dev == nil {
		return left, nil
	}
	onDisk, err := s.Dev.Leftovers()
	return append(left, onDisk...), err
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
	state, err := below(d.StateDir, func(path string) bool { return !strings.HasSuffix(path, "/lock") && !strings.HasSuffix(path, ".lock") })
	return append(left, state...), err
}

// volumePath says whether a path below a node's directories belongs to one volume: what is above it may stay.
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
