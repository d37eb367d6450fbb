package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/devcluster/apply"
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
spec: {volumeSnapshotClassName: %[1]s, source: {persistentVolumeClaimName: %[3]s}}
`
)

// withoutPair is the flag of a development cluster in which a test runs these two itself.
const withoutPair = "--without=csi-snapshotter,snapshot-controller"

// TestSnapshotAndRestore takes a snapshot of a volume of the reference driver, makes a volume of it, which has the former content, and deletes
// both: with our csi-snapshotter and snapshot-controller, and with each of them beside the other half of kubernetes-csi.
func TestSnapshotAndRestore(t *testing.T) {
	dev(t)
	cluster := ownCluster(t, 1, withoutPair)
	const upstream = "Upstream"
	for _, pair := range [][2]string{{"Ours", "Ours"}, {"Ours", upstream}, {upstream, "Ours"}} {
		t.Run(pair[0]+"Controller"+pair[1]+"Snapshotter", func(t *testing.T) {
			s := &story{Scene: cluster.NewScene(t), t: t}
			start := func(whose, name string, args ...string) {
				args = append([]string{"--kubeconfig=" + cluster.kubeconfig}, args...)
				if whose == upstream {
					s.runForeign(upstreamProgram(t, name), args...)
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
	s.addSnapshotClass("")
	taken := s.take("monday", "data")
	s.snapshotReady(taken)
	writeText(s.t, file, "after")

	s.restore("copy", "monday")
	s.WaitBound("copy")
	s.CreatePod("reader", FromClaim("copy"))
	s.checkText("pod", "data", "after")
	s.checkText("reader", "copy", "before")

	s.delete(taken)
	s.waitNoSnapshots()
	for _, pod := range []string{"pod", "reader"} {
		s.DeletePod(pod)
		s.WaitNoPod(pod)
	}
	s.DeleteClaim("data")
	s.DeleteClaim("copy")
	s.WaitNothingLeft()
}

// addSnapshotClass makes the VolumeSnapshotClass of the scene, with parameters in YAML. It is removed with the scene.
func (s *story) addSnapshotClass(parameters string) {
	s.t.Helper()
	s.addObject(fmt.Sprintf(snapshotClass, s.Namespace, s.Driver) + parameters)
}

// addObject makes an object outside of namespaces, which is removed with the scene.
func (s *story) addObject(manifest string) {
	s.t.Helper()
	object := s.decode(manifest)[0]
	s.write(object)
	s.t.Cleanup(func() {
		err := poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := s.NewWriter(s.t).Delete(ctx, object)
			return err == nil, err
		})
		if err != nil {
			s.t.Error(err)
		}
	})
}

// take asks for a snapshot of a claim, with the class of the scene.
func (s *story) take(name, claim string) *unstructured.Unstructured {
	s.t.Helper()
	object := s.decode(fmt.Sprintf(dynamicSnapshot, s.Namespace, name, claim))[0]
	s.write(object)
	return object
}

// restore asks for a volume that is made of a snapshot.
func (s *story) restore(claim, snapshot string) {
	s.t.Helper()
	copied := Claim(s.Namespace, claim, s.ImmediateClass())
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: snapshot}
	s.create(copied)
}

// checkText reads the file of a claim where a pod sees it.
func (s *story) checkText(pod, claim, want string) {
	s.t.Helper()
	if got, err := os.ReadFile(filepath.Join(s.mountedFor(pod, claim), "file")); err != nil || string(got) != want {
		s.t.Errorf("claim %s: %q, %v, want %q", claim, got, err, want)
	}
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

// delete asks for the end of an object.
func (s *story) delete(object *unstructured.Unstructured) {
	s.t.Helper()
	s.retry("delete "+apply.Name(object), func(ctx context.Context) error { return s.NewWriter(s.t).Delete(ctx, object) })
}

// waitNoSnapshots waits until the scene has no snapshot, no group, no content of either, and no claim that is kept for the sake of one.
func (s *story) waitNoSnapshots() {
	s.t.Helper()
	s.Wait("all snapshots and their contents to be gone", func(ctx context.Context) (bool, error) {
		left, err := s.leftOfSnapshots(ctx)
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left: %q", left))
		}
		return err == nil, err
	})
}

func (s *story) leftOfSnapshots(ctx context.Context) ([]string, error) {
	left, err := s.snapshotsIn(ctx, s.Namespace)
	if err != nil {
		return nil, err
	}
	claims, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range claims.Items {
		if slices.Contains(c.Finalizers, snapshotapi.FinalizerClaim) {
			left = append(left, fmt.Sprintf("finalizers %q of claim %s", c.Finalizers, c.Name))
		}
	}
	return left, nil
}

// snapshotsIn names the snapshots and groups in a namespace, and their contents; no namespace: in all. A cluster without the kinds has none.
func (b *Bed) snapshotsIn(ctx context.Context, namespace string) (left []string, err error) {
	client, err := dynamic.NewForConfig(b.config)
	if err != nil {
		return nil, err
	}
	for _, kind := range []struct{ group, resource, ref string }{
		{snapshotapi.Group, "volumesnapshots", ""}, {snapshotapi.Group, "volumesnapshotcontents", "volumeSnapshotRef"},
		{snapshotapi.GroupSnapshotGroup, "volumegroupsnapshots", ""}, {snapshotapi.GroupSnapshotGroup, "volumegroupsnapshotcontents", "volumeGroupSnapshotRef"},
	} {
		list, err := client.Resource(schema.GroupVersionResource{Group: kind.group, Version: "v1", Resource: kind.resource}).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			in := o.GetNamespace()
			if in == "" {
				in, _, _ = unstructured.NestedString(o.Object, "spec", kind.ref, "namespace")
			}
			if namespace == "" || in == namespace {
				left = append(left, fmt.Sprintf("%s of %s, finalizers %q", apply.Name(&o), in, o.GetFinalizers()))
			}
		}
	}
	return left, nil
}
