package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	snapshotClass = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
`
	dynamicSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[2]s, namespace: %[1]s}
spec: {volumeSnapshotClassName: %[1]s, source: {persistentVolumeClaimName: data}}
`
)

// TestSnapshotAndRestore takes a snapshot of a volume with the reference driver, csi-snapshotter and snapshot-controller, makes a volume of it, which
// has the former content, and deletes both.
func TestSnapshotAndRestore(t *testing.T) {
	dev(t)
	cluster := ownCluster(t, 1)
	s := &story{Scene: cluster.NewScene(t), t: t}
	s.installSnapshots()
	s.run("snapshot-controller", "--kubeconfig="+cluster.kubeconfig)
	s.run("csi-snapshotter", "--kubeconfig="+cluster.kubeconfig, "--csi-address="+filepath.Join(s.Dev.dir, "run", "csi.sock"))

	s.createClaim()
	s.bound()
	s.createPod()
	file := filepath.Join(s.mountedFor("pod", "data"), "file")
	writeText(t, file, "before")
	s.write(s.decode(fmt.Sprintf(snapshotClass, s.Namespace, s.Driver))...)
	taken := s.decode(fmt.Sprintf(dynamicSnapshot, s.Namespace, "monday"))[0]
	s.write(taken)
	s.snapshotReady(taken)
	writeText(t, file, "after")

	copied := Claim(s.Namespace, "copy", s.ImmediateClass())
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "monday"}
	s.create(copied)
	s.WaitBound("copy")
	s.CreatePod("reader", FromClaim("copy"))
	for claim, want := range map[string]string{"data": "after", "copy": "before"} {
		pod := map[string]string{"data": "pod", "copy": "reader"}[claim]
		if got, err := os.ReadFile(filepath.Join(s.mountedFor(pod, claim), "file")); err != nil || string(got) != want {
			t.Errorf("claim %s: %q, %v, want %q", claim, got, err, want)
		}
	}

	s.deleteSnapshot(taken)
	for _, pod := range []string{"pod", "reader"} {
		s.DeletePod(pod)
		s.WaitNoPod(pod)
	}
	s.DeleteClaim("data")
	s.DeleteClaim("copy")
	s.WaitNothingLeft()
}

// installSnapshots installs the kinds of snapshots, those of groups included.
func (s *story) installSnapshots() {
	s.t.Helper()
	files, err := filepath.Glob("../deploy/crds/snapshot/*.storage.k8s.io_*.yaml")
	if err != nil || len(files) == 0 {
		s.t.Fatalf("no definitions: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(s.decode(string(data))...)
	}
}

// mountedFor is where the volume of a claim is mounted for a pod that runs.
func (s *story) mountedFor(pod, claim string) string {
	s.t.Helper()
	p := s.WaitRunning(pod)
	return filepath.Join(s.Dev.NodeDirs[p.Spec.NodeName], "pods", string(p.UID), "volumes", "kubernetes.io~csi", s.Volume(claim).Name, "mount")
}

func writeText(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// snapshotReady waits until a snapshot can be restored.
func (s *story) snapshotReady(object *unstructured.Unstructured) {
	s.t.Helper()
	s.Wait("snapshot "+object.GetName()+" to be ready", func(context.Context) (bool, error) {
		status := s.read(object).Object["status"]
		ready, _, err := unstructured.NestedBool(map[string]any{"status": status}, "status", "readyToUse")
		if err == nil && !ready {
			err = fmt.Errorf("status is %v", status)
		}
		return ready, err
	})
}

// deleteSnapshot deletes a snapshot, and waits until neither it nor a content is left.
func (s *story) deleteSnapshot(object *unstructured.Unstructured) {
	s.t.Helper()
	content := s.decode(fmt.Sprintf("apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {name: snapcontent-%s}\n", s.read(object).GetUID()))[0]
	s.read(content)
	s.retry("delete the snapshot", func(ctx context.Context) error { return s.NewWriter(s.t).Delete(ctx, object) })
	s.Wait("the snapshot and its content to be gone", func(ctx context.Context) (bool, error) {
		for _, o := range []*unstructured.Unstructured{object, content} {
			resource, err := s.NewWriter(s.t).Resource(o)
			if err != nil {
				return false, err
			}
			if _, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return false, fmt.Errorf("%s %s is there: %w", o.GetKind(), o.GetName(), err)
			}
		}
		return true, nil
	})
}
