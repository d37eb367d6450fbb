package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// AddSnapshotClass creates the VolumeSnapshotClass of the scene, which has the name of the namespace, and further fields in YAML. It is removed with the scene.
func (s *Scene) AddSnapshotClass(parameters string) {
	s.T.Helper()
	s.AddObject(fmt.Sprintf(snapshotClass, s.Namespace, s.Driver) + parameters)
}

// TakeSnapshot creates a VolumeSnapshot of a claim, with the class of the scene, and returns it as it was sent.
func (s *Scene) TakeSnapshot(name, claim string) *unstructured.Unstructured {
	s.T.Helper()
	object := Decode(s.T, fmt.Sprintf(dynamicSnapshot, s.Namespace, name, claim))[0]
	s.Write(object)
	return object
}

// RestoreSnapshot creates a claim for a volume that is made of a snapshot.
func (s *Scene) RestoreSnapshot(claim, snapshot string) {
	s.T.Helper()
	copied := Claim(s.Namespace, claim, s.ImmediateClass())
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: snapshot}
	s.AddClaim(copied)
}

// CheckText compares the text of the file "file" in the volume of a claim with what is wanted, where a pod sees it.
func (s *Scene) CheckText(pod, claim, want string) {
	s.T.Helper()
	if got, err := os.ReadFile(filepath.Join(s.MountPath(pod, claim), "file")); err != nil || string(got) != want {
		s.T.Errorf("claim %s: %q, %v, want %q", claim, got, err, want)
	}
}

// MountPath waits until a pod runs, and returns the path at which the volume of a claim is mounted for it.
func (s *Scene) MountPath(pod, claim string) string {
	s.T.Helper()
	p := s.WaitRunning(pod)
	return s.Dev.Target(p.Spec.NodeName, string(p.UID), s.Volume(claim).Name)
}

// WriteText writes a file.
func WriteText(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// WaitSnapshotReady waits until a snapshot can be restored.
func (s *Scene) WaitSnapshotReady(object *unstructured.Unstructured) {
	s.T.Helper()
	s.Wait("snapshot "+object.GetName()+" to be ready", func(context.Context) (bool, error) {
		status := s.Read(object).Object["status"]
		ready, _, err := unstructured.NestedBool(map[string]any{"status": status}, "status", "readyToUse")
		if err == nil && !ready {
			err = fmt.Errorf("status is %v", status)
		}
		return ready, err
	})
}

// WaitNoSnapshots waits until the scene has no snapshot, no group, no content of either, and no claim that is kept for the sake of one.
func (s *Scene) WaitNoSnapshots() {
	s.T.Helper()
	s.Wait("all snapshots and their contents to be gone", func(ctx context.Context) (bool, error) {
		left, err := s.leftOfSnapshots(ctx)
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left: %q", left))
		}
		return err == nil, err
	})
}

func (s *Scene) leftOfSnapshots(ctx context.Context) ([]string, error) {
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
	client, err := dynamic.NewForConfig(b.Config)
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
