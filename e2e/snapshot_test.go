package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
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

// TestSnapshotAndRestore takes a snapshot of a volume of the reference driver, makes a volume of it, which has the former content, and deletes
// both: with our csi-snapshotter and snapshot-controller, and with each of them beside the other half of kubernetes-csi.
func TestSnapshotAndRestore(t *testing.T) {
	dev(t)
	cluster := ownCluster(t, 1)
	const upstream = "Upstream"
	for _, pair := range [][2]string{{"Ours", "Ours"}, {"Ours", upstream}, {upstream, "Ours"}} {
		t.Run(pair[0]+"Controller"+pair[1]+"Snapshotter", func(t *testing.T) {
			s := &story{Scene: cluster.NewScene(t), t: t}
			s.installSnapshots()
			start := func(whose, name string, args ...string) {
				args = append([]string{"--kubeconfig=" + cluster.kubeconfig}, args...)
				if whose == upstream {
					s.runForeign(filepath.Join(unpackUpstream(t, name), name), args...)
				} else {
					s.run(name, args...)
				}
			}
			start(pair[0], "snapshot-controller")
			start(pair[1], "csi-snapshotter", "--csi-address="+filepath.Join(s.Dev.dir, "run", "csi.sock"))
			s.snapshotAndRestore()
		})
	}
}

// snapshotAndRestore is the life of one snapshot.
func (s *story) snapshotAndRestore() {
	s.t.Helper()
	s.createClaim()
	s.bound()
	s.createPod()
	file := filepath.Join(s.mountedFor("pod", "data"), "file")
	writeText(s.t, file, "before")
	class := s.decode(fmt.Sprintf(snapshotClass, s.Namespace, s.Driver))
	s.write(class...)
	taken := s.decode(fmt.Sprintf(dynamicSnapshot, s.Namespace, "monday"))[0]
	s.write(taken)
	s.snapshotReady(taken)
	writeText(s.t, file, "after")

	copied := Claim(s.Namespace, "copy", s.ImmediateClass())
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "monday"}
	s.create(copied)
	s.WaitBound("copy")
	s.CreatePod("reader", FromClaim("copy"))
	for _, at := range []struct{ pod, claim, want string }{{"pod", "data", "after"}, {"reader", "copy", "before"}} {
		if got, err := os.ReadFile(filepath.Join(s.mountedFor(at.pod, at.claim), "file")); err != nil || string(got) != at.want {
			s.t.Errorf("claim %s: %q, %v, want %q", at.claim, got, err, at.want)
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
	s.retry("delete the class", func(ctx context.Context) error { return s.NewWriter(s.t).Delete(ctx, class...) })
}

// runForeign runs a program of others until the test ends.
func (s *story) runForeign(path string, args ...string) {
	s.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		end(cmd)
		if s.t.Failed() {
			s.t.Logf("the log of %s: %s", filepath.Base(path), log.String())
		}
	})
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
