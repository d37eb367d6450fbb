package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	provisionerFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	topologyKey          = "topology.hostpath.csi/node"
)

func TestClaimBecomesAMountedDirectory(t *testing.T) {
	beside(t)
	for name, class := range map[string]func(*scene) string{
		"Immediate":   (*scene).ImmediateClass,
		"LateBinding": (*scene).LateClass,
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			s := newScene(t)
			s.CreateClaim("data", class(s))
			if name == "Immediate" {
				s.WaitBound("data")
			}
			s.CreatePod("writer", testbed.FromClaim("data"))
			pod := s.WaitRunning("writer")
			s.WaitBound("data")
			volume := s.Volume("data")
			checkVolume(t, s, volume, pod.Spec.NodeName)
			checkAttached(t, s, volume.Name, pod.Spec.NodeName)
			if bed.Dev != nil {
				checkBytes(t, pod, volume.Name, volume.Spec.CSI.VolumeHandle)
			}
			s.DeletePod("writer")
			s.WaitNoPod("writer")
			s.DeleteClaim("data")
			s.WaitNothingLeft()
		})
	}
}

// checkVolume compares the fields of the PersistentVolume that others rely on.
func checkVolume(t *testing.T, s *scene, v *corev1.PersistentVolume, node string) {
	t.Helper()
	claim := s.Claim("data")
	if want := "pvc-" + string(claim.UID); v.Name != want {
		t.Errorf("volume name %q, want %q", v.Name, want)
	}
	if got := v.Annotations["pv.kubernetes.io/provisioned-by"]; got != bed.Driver {
		t.Errorf("provisioned by %q", got)
	}
	if !slices.Contains(v.Finalizers, provisionerFinalizer) {
		t.Errorf("finalizers %q lack %q", v.Finalizers, provisionerFinalizer)
	}
	if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		t.Errorf("claim %v, policy %s", v.Spec.ClaimRef, v.Spec.PersistentVolumeReclaimPolicy)
	}
	checkNode(t, v, node)
}

// checkNode wants a volume that only one node can use.
func checkNode(t *testing.T, v *corev1.PersistentVolume, node string) {
	t.Helper()
	want := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: topologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	if diff := cmp.Diff(want, v.Spec.NodeAffinity); diff != "" {
		t.Errorf("node affinity of %s (-want +got):\n%s", v.Name, diff)
	}
}

// checkAttached wants a volume attached to one node if the driver attaches at all, and to none if it does not.
func checkAttached(t *testing.T, s *scene, volume, node string) {
	t.Helper()
	want := 0
	var attachments []storagev1.VolumeAttachment
	s.Retry("read the attachments of "+volume, func(ctx context.Context) error {
		driver, err := s.Client.StorageV1().CSIDrivers().Get(ctx, s.Driver, metav1.GetOptions{})
		if err == nil && *driver.Spec.AttachRequired {
			want = 1
		}
		var err2 error
		attachments, err2 = s.Attachments(ctx, volume)
		return errors.Join(err, err2)
	})
	if len(attachments) != want {
		t.Fatalf("attachments %v; want %d", attachments, want)
	}
	if want == 0 {
		return
	}
	if a := attachments[0]; !a.Status.Attached || a.Spec.NodeName != node || a.Spec.Attacher != bed.Driver {
		t.Errorf("attachment %+v", a)
	}
}

// checkBytes writes through the pod's path and reads in the driver's directory.
func checkBytes(t *testing.T, pod *corev1.Pod, specName, handle string) {
	t.Helper()
	target := bed.Dev.Target(pod.Spec.NodeName, string(pod.UID), specName)
	if err := os.WriteFile(filepath.Join(target, "hello"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := written(bed.Dev, handle, "hello"); err != nil || got != "hello" {
		t.Errorf("the driver's directory holds %q, %v", got, err)
	}
}

func TestInlineVolumeLivesWithItsPod(t *testing.T) {
	beside(t)
	s := newScene(t)
	for _, name := range []string{"first", "second"} { // two pods, one definition, two volumes
		s.CreatePod(name, testbed.Inline(bed.Driver))
	}
	pods := []*corev1.Pod{s.WaitRunning("first"), s.WaitRunning("second")}
	s.Wait("no attachment to be there, but of claims elsewhere", func(ctx context.Context) (bool, error) {
		remains, err := bed.Remains(ctx, s.Namespace)
		return !slices.ContainsFunc(remains, func(name string) bool { return strings.HasPrefix(name, "attachment ") }), err
	})
	if bed.Dev != nil {
		for _, pod := range pods {
			if err := os.WriteFile(filepath.Join(bed.Dev.Target(pod.Spec.NodeName, string(pod.UID), "data"), "hello"), []byte(pod.Name), 0o600); err != nil {
				t.Error(err)
			}
		}
		for _, pod := range pods {
			data, err := os.ReadFile(filepath.Join(bed.Dev.Target(pod.Spec.NodeName, string(pod.UID), "data"), "hello"))
			if err != nil || string(data) != pod.Name {
				t.Errorf("pod %s sees %q, %v", pod.Name, data, err)
			}
		}
	}
	s.DeletePod("first")
	s.DeletePod("second")
	s.WaitNothingLeft()
}

func TestReadOnlyClaimRefusesWrites(t *testing.T) {
	dev(t)
	s := newScene(t)
	s.CreateClaim("data", s.LateClass())
	source := testbed.FromClaim("data")
	source.PersistentVolumeClaim.ReadOnly = true
	s.CreatePod("reader", source)
	pod := s.WaitRunning("reader")
	target := bed.Dev.Target(pod.Spec.NodeName, string(pod.UID), s.Claim("data").Spec.VolumeName)
	if err := os.WriteFile(filepath.Join(target, "hello"), nil, 0o600); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a write to a read-only volume: %v", err)
	}
	s.DeletePod("reader")
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

func TestTwoPodsShareAClaimOnOneNode(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.CreateClaim("data", s.LateClass())
	s.CreatePod("first", testbed.FromClaim("data"))
	first := s.WaitRunning("first")
	s.CreatePod("second", testbed.FromClaim("data"))
	if second := s.WaitRunning("second"); second.Spec.NodeName != first.Spec.NodeName {
		t.Errorf("the volume is on %s, the second pod on %s", first.Spec.NodeName, second.Spec.NodeName)
	}
	s.DeletePod("first")
	s.WaitNoPod("first")
	if bed.Dev != nil { // the other pod still has its mount
		second := s.WaitRunning("second")
		checkBytes(t, second, s.Volume("data").Name, s.Volume("data").Spec.CSI.VolumeHandle)
	}
	s.DeletePod("second")
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

func TestRetainedVolumeStaysUntilItIsDeleted(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.CreateClaim("data", s.ImmediateClass())
	s.WaitBound("data")
	volume := s.Volume("data")
	s.setPolicy(volume.Name, corev1.PersistentVolumeReclaimRetain)
	s.Wait("the honouring finalizer to go", func(ctx context.Context) (bool, error) {
		v, err := bed.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		return err == nil && !slices.Contains(v.Finalizers, provisionerFinalizer), err
	})
	s.DeleteClaim("data")
	s.Wait("the volume to be released", func(ctx context.Context) (bool, error) {
		v, err := bed.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		return err == nil && v.Status.Phase == corev1.VolumeReleased, err
	})
	// Going back to Delete makes the provisioner remove it, data and all.
	s.setPolicy(volume.Name, corev1.PersistentVolumeReclaimDelete)
	s.WaitNothingLeft()
}

func (s *scene) setPolicy(volume string, policy corev1.PersistentVolumeReclaimPolicy) {
	s.T.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
	s.Retry(fmt.Sprintf("set the policy %s of %s", policy, volume), func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func TestVolumeDeletedBeforeItsClaim(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.CreateClaim("data", s.ImmediateClass())
	s.WaitBound("data")
	name := s.Volume("data").Name
	s.Retry("delete volume "+name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(bed.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}))
	})
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

func TestClaimsSpreadOverTheTopology(t *testing.T) {
	beside(t)
	s := newScene(t)
	// Names of a StatefulSet's claims; bound at once, so the provisioner alone decides where they go.
	segments := map[string]bool{}
	for _, name := range []string{"data-web-0", "data-web-1", "data-web-2"} {
		s.CreateClaim(name, s.ImmediateClass())
		s.WaitBound(name)
		affinity := s.Volume(name).Spec.NodeAffinity
		if affinity == nil {
			t.Fatalf("volume of %s is accessible from everywhere", name)
		}
		segments[affinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]] = true
	}
	if bed.Dev != nil && len(segments) != nodes {
		t.Errorf("3 claims lie in %v", segments)
	}
	for _, name := range []string{"data-web-0", "data-web-1", "data-web-2"} {
		s.DeleteClaim(name)
	}
	s.WaitNothingLeft()
}

// written reads a file in the driver's directory of a volume.
func written(d *testbed.Dev, handle, file string) (string, error) {
	path := filepath.Join(d.StateDir, "volumes", handle, file)
	data, err := os.ReadFile(path)
	return string(data), err
}
