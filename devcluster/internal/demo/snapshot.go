package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// findSnapshots finds out whether the cluster has the kinds of snapshots, and notes the reason if the act cannot be shown.
func (s *show) findSnapshots(ctx context.Context) error {
	if s.NoSnapshots != "" {
		return nil
	}
	_, err := s.snapshots.VolumeSnapshots(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if snapshotapi.IsAbsent(err) {
		s.NoSnapshots = "the cluster has no VolumeSnapshots (deploy/crds/apply installs them)"
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for VolumeSnapshots: %w", err)
	}
	return nil
}

// snapshot is the fifth act: a snapshot is taken of a volume in use, which is changed then.
func (s *show) snapshot(ctx context.Context) error {
	const title = "5. A snapshot of a volume in use"
	if s.NoSnapshots != "" {
		s.narrator.title("%s: left out, as %s", title, s.NoSnapshots)
		return nil
	}
	if err := s.begin(ctx, title, "5-snapshot.yaml"); err != nil {
		return err
	}
	if err := s.waitReady(ctx, "backup"); err != nil {
		return err
	}
	path, err := s.hello(ctx, "writer", "data")
	if err != nil || path == "" {
		return err
	}
	if s.taken, err = read(path); err != nil {
		return err
	}
	const changed = "changed after the snapshot"
	if err := os.WriteFile(path, []byte(changed+"\n"), 0o644); err != nil {
		return fmt.Errorf("write through the pod's target path: %w", err)
	}
	s.narrator.title("claim data had when the snapshot was taken   %s\nand has now, still in use                    %s", s.taken, changed)
	return nil
}

// restore is the sixth act: the snapshot becomes a volume of its own, with the former contents.
func (s *show) restore(ctx context.Context) error {
	if s.NoSnapshots != "" {
		return nil
	}
	if err := s.begin(ctx, "6. A claim that is made of the snapshot", "6-restore.yaml"); err != nil {
		return err
	}
	path, err := s.hello(ctx, "reader", "restored")
	if err != nil || path == "" {
		return err
	}
	restored, err := read(path)
	if err != nil {
		return err
	}
	if restored != s.taken {
		return fmt.Errorf("claim restored has %q in %s, want %q, which claim data had when the snapshot was taken", restored, path, s.taken)
	}
	origin, err := s.hello(ctx, "writer", "data")
	if err != nil {
		return err
	}
	now, err := read(origin)
	if err != nil {
		return err
	}
	s.narrator.title("claim restored has   %s\nclaim data has       %s", restored, now)
	return nil
}

// hello waits until a pod of the examples runs, and returns the path of the file that it has in its claim; "" if the nodes are elsewhere.
func (s *show) hello(ctx context.Context, pod, name string) (string, error) {
	running, err := s.waitRunning(ctx, pod)
	if err != nil || s.NodeDir == nil {
		return "", err // the disks of the nodes are not ours to look at
	}
	claim, err := s.getClaim(ctx, name)
	if err != nil {
		return "", err
	}
	return filepath.Join(s.target(running, claim.Spec.VolumeName), "hello"), nil
}

// read returns the line in a file.
func read(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read through the pod's target path: %w", err)
	}
	return strings.TrimSuffix(string(data), "\n"), nil
}

// waitReady waits until a snapshot can be restored.
func (s *show) waitReady(ctx context.Context, name string) error {
	return s.wait(ctx, "snapshot "+name+" to be ready", func(ctx context.Context) (string, error) {
		snapshot, err := s.snapshots.VolumeSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || isReady(snapshot) {
			return "", err
		}
		return describeSnapshot(snapshot), nil
	})
}

func isReady(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// leftSnapshots names the snapshots and their contents that are still there.
func (s *show) leftSnapshots(ctx context.Context) (names []string, err error) {
	if s.NoSnapshots != "" {
		return nil, nil
	}
	snapshots, err := s.snapshots.VolumeSnapshots(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for snapshots that are left: %w", err)
	}
	contents, err := s.snapshots.VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for contents of snapshots that are left: %w", err)
	}
	for _, o := range snapshots.Items {
		names = append(names, "snapshot "+o.Name)
	}
	for _, c := range contents.Items {
		if c.Spec.VolumeSnapshotRef.Namespace == namespace {
			names = append(names, "content "+c.Name)
		}
	}
	return names, nil
}
