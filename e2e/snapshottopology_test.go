package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestSnapshotTopology restores a snapshot that is on one node into a claim of a pod that would rather run on another one: the volume comes to be where
// the snapshot is, and the pod follows it.
func TestSnapshotTopology(t *testing.T) {
	dev(t)
	beside(t)
	s := newStory(t)
	const home, away = "node-1", "node-2"
	s.CreateClaim("data", s.LateClass())
	s.CreatePodOn(home, "pod", testbed.FromClaim("data"))
	testbed.WriteText(t, filepath.Join(s.MountPath("pod", "data"), "file"), "before")

	s.AddSnapshotClass("")
	taken := s.TakeSnapshot("monday", "data")
	s.WaitSnapshotReady(taken)
	name, _, err := unstructured.NestedString(s.Read(taken).Object, "status", "boundVolumeSnapshotContentName")
	if err != nil || name == "" {
		t.Fatalf("the snapshot is bound to %q, %v", name, err)
	}
	content := testbed.Decode(s.T, fmt.Sprintf("apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {name: %s}\n", name))[0]
	if got, want := s.Read(content).GetAnnotations()[snapshotapi.AnnAccessibleTopology], fmt.Sprintf(`[{%q:%q}]`, topologyKey, home); got != want {
		t.Errorf("the snapshot is accessible from %s, want %s", got, want)
	}

	restored := testbed.Claim(s.Namespace, "restored", s.LateClass())
	restored.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new(snapshotapi.Group), Kind: snapshotapi.KindVolumeSnapshot, Name: "monday"}
	s.AddClaim(restored)
	reader := testbed.Pod(s.Namespace, "reader", testbed.FromClaim("restored"))
	reader.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100,
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{away}},
		}},
	}}}}
	s.AddPod(reader)
	if got := s.WaitRunning("reader").Spec.NodeName; got != home {
		t.Errorf("the pod runs on %s, want %s, where its volume can be", got, home)
	}
	checkNode(t, s.Volume("restored"), home)
	s.CheckText("reader", "restored", "before")

	s.Delete(taken)
	s.WaitNoSnapshots()
	for _, pod := range []string{"pod", "reader"} {
		s.DeletePod(pod)
		s.WaitNoPod(pod)
	}
	s.DeleteClaim("data")
	s.DeleteClaim("restored")
	s.WaitNothingLeft()
}
