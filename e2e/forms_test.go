package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// nodeSelector finds the pods of deploy/ with the driver of a node.
const nodeSelector = "app.kubernetes.io/name=csi-hostpath-node"

// TestVolumesOnEveryNode has pods with volumes of every kind on every node at a time. It holds in whatever form the driver was
// deployed: attached or not, with one controller for all nodes or one for each.
func TestVolumesOnEveryNode(t *testing.T) {
	beside(t)
	s := newScene(t)
	late := map[string]string{} // node by claim
	var inlines []string
	for i, node := range s.driverNodes() {
		claim := fmt.Sprintf("late-%d", i)
		s.CreateClaim(claim, s.LateClass())
		s.CreatePodOn(node, claim, testbed.FromClaim(claim))
		if inline := fmt.Sprintf("inline-%d", i); s.allowsInline() {
			s.CreatePodOn(node, inline, testbed.Inline(bed.Driver))
			inlines = append(inlines, inline)
		}
		late[claim] = node
	}
	s.CreateClaim("immediate", s.ImmediateClass())
	s.CreatePod("immediate", testbed.FromClaim("immediate"))
	late["immediate"] = s.WaitRunning("immediate").Spec.NodeName
	var pods []string
	handles := map[string][]string{} // by node
	for claim, node := range late {
		s.WaitRunning(claim)
		v := s.Volume(claim)
		handles[node] = append(handles[node], v.Spec.CSI.VolumeHandle)
		checkNode(t, v, node)
		checkAttached(t, s, v.Name, node)
		pods = append(pods, claim)
	}
	for _, inline := range inlines {
		s.WaitRunning(inline)
		pods = append(pods, inline)
	}
	s.checkOwnVolumes(handles)
	for _, pod := range pods {
		s.DeletePod(pod)
	}
	for claim := range late {
		s.DeleteClaim(claim)
	}
	s.WaitNothingLeft()
	s.checkOwnVolumes(nil)
}

// allowsInline reports whether pods may have inline volumes of the driver.
func (s *scene) allowsInline() (allowed bool) {
	s.T.Helper()
	s.Retry("get CSIDriver "+s.Driver, func(ctx context.Context) error {
		driver, err := s.Client.StorageV1().CSIDrivers().Get(ctx, s.Driver, metav1.GetOptions{})
		allowed = err == nil && slices.Contains(driver.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
		return err
	})
	return allowed
}

// driverNodes are the nodes whose kubelet knows the driver.
func (s *scene) driverNodes() (names []string) {
	s.T.Helper()
	s.Retry("list nodes with the driver", func(ctx context.Context) error {
		nodes, err := s.Client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		names = names[:0]
		for _, n := range nodes.Items {
			if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == s.Driver }) {
				names = append(names, n.Name)
			}
		}
		return nil
	})
	if len(names) == 0 {
		s.T.Fatalf("no node has the driver %s", s.Driver)
	}
	return names
}

// checkOwnVolumes wants each driver that has a node's volumes for itself (--mode=all) to have these, and of the scene no others. Where the
// nodes share a directory there is nothing to ask: what is left of it, WaitNothingLeft and the sizes of the directories tell.
func (s *scene) checkOwnVolumes(want map[string][]string) {
	s.T.Helper()
	if s.Dev != nil {
		return // the drivers of a development cluster share a directory
	}
	var pods *corev1.PodList
	s.Retry("list the drivers of the nodes", func(ctx context.Context) (err error) {
		pods, err = s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: nodeSelector})
		return err
	})
	for _, pod := range pods.Items {
		if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Args, "--mode=all") }) {
			continue
		}
		node := pod.Spec.NodeName
		s.Wait("the driver of "+node+" to have the volumes of this node alone", func(ctx context.Context) (bool, error) {
			ids, err := s.ownVolumes(ctx, &pod)
			if err != nil {
				return false, err
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(want[node])), ids); diff != "" {
				return false, fmt.Errorf("volumes that the driver of %s has (-want +got):\n%s", node, diff)
			}
			s.T.Logf("the driver of %s has volumes of its own: %q", node, ids)
			return true, nil
		})
	}
}

// ownVolumes asks the driver of a pod for its volumes, without those that are made for claims elsewhere, or were.
func (s *scene) ownVolumes(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	all, err1 := (&replicas{scene: s}).directory(ctx, pod)
	claims, err2 := s.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	volumes, err3 := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	for _, c := range claims.Items {
		if c.Namespace != s.Namespace {
			delete(all, "pvc-"+string(c.UID))
		}
	}
	for _, v := range volumes.Items {
		if claim := v.Spec.ClaimRef; claim != nil && claim.Namespace != s.Namespace {
			delete(all, v.Name)
		}
	}
	return slices.Sorted(maps.Values(all)), nil
}
