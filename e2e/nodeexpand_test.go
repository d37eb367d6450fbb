package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// expansion is an expansion on the shared cluster. Its story knows the node of the volume.
type expansion struct {
	*testbed.Expansion
	story *story
}

func newExpansion(t *testing.T) *expansion {
	t.Helper()
	dev(t)
	e := testbed.NewExpansion(t, bed)
	s := &story{scene: &scene{e.Scene}}
	s.bound()
	return &expansion{Expansion: e, story: s}
}

// newPlayed is newExpansion for a test that plays the resizer.
func newPlayed(t *testing.T) *expansion {
	t.Helper()
	e := newExpansion(t)
	e.withoutResizer()
	return e
}

// withoutResizer keeps the cluster's resizer, if it has one, down until the test ends: two resizers would confuse each other.
func (e *expansion) withoutResizer() {
	const resizer = "csi-resizer"
	if !slices.ContainsFunc(e.Dev.Processes, func(p devcluster.Process) bool { return p.Name == resizer }) {
		return
	}
	e.Retry("hold the resizer", func(ctx context.Context) error { return e.Dev.Hold(ctx, resizer) })
	e.T.Cleanup(func() {
		if err := e.Dev.Release(context.Background(), resizer); err != nil {
			e.T.Error(err)
		}
	})
}

// controller does what a user and the controller's half of an expansion do before it is the node's turn.
func (e *expansion) controller() {
	e.T.Helper()
	size := resource.NewQuantity(testbed.ExpandedSize, resource.BinarySI).String()
	e.merge("ask for more", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
	client, err := csiclient.New(csiclient.Config{Address: e.Dev.Socket()})
	if err != nil {
		e.T.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	volume := e.Volume("data")
	e.Retry("expand the volume", func(ctx context.Context) error {
		_, err := client.Controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: volume.Spec.CSI.VolumeHandle, CapacityRange: &csi.CapacityRange{RequiredBytes: testbed.ExpandedSize},
		})
		return err
	})
	e.enlarge(size)
}

// enlarge writes the capacity of the PersistentVolume.
func (e *expansion) enlarge(size string) {
	e.T.Helper()
	volume := e.Volume("data")
	e.Retry("enlarge the PersistentVolume", func(ctx context.Context) error {
		_, err := e.Client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType,
			[]byte(`{"spec":{"capacity":{"storage":"`+size+`"}}}`), metav1.PatchOptions{})
		return err
	})
}

// pending hands the expansion over to the node: since KEP-1790 by allocatedResourceStatuses, before it by the condition alone.
func (e *expansion) pending(legacy bool) {
	e.T.Helper()
	e.controller()
	status := map[string]any{"conditions": []corev1.PersistentVolumeClaimCondition{{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
	}}}
	if !legacy {
		status["allocatedResources"] = map[string]string{"storage": resource.NewQuantity(testbed.ExpandedSize, resource.BinarySI).String()}
		status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizePending}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		e.T.Fatal(err)
	}
	e.merge("hand over to the node", string(patch), "status")
}

// merge patches the claim.
func (e *expansion) merge(what, patch string, subresource ...string) {
	e.T.Helper()
	e.Retry(what, func(ctx context.Context) error {
		_, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Patch(ctx, "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	})
}

// TestNodeExpandsMountedVolumes enlarges volumes that pods use. All that the agent gets is what a resizer of today, or an old one,
// writes into the API.
func TestNodeExpandsMountedVolumes(t *testing.T) {
	all := map[bool]*expansion{false: newPlayed(t), true: newPlayed(t)}
	before := map[bool]uint64{}
	for legacy, e := range all {
		e.story.createPod()
		before[legacy] = e.FileSystemSize("pod")
	}
	for legacy, e := range all {
		e.pending(legacy)
	}
	for legacy, e := range all {
		e.WaitFinished()
		e.CheckGrown("pod", before[legacy])
		e.waitEvent("FileSystemResizeSuccessful", "Pod", "PersistentVolumeClaim")
		e.Leave()
	}
	all[false].WaitNothingLeft()
}

// TestNodeExpandsVolumesAtTheirMount enlarges a volume that no pod uses: the next pod does not run before it is expanded.
func TestNodeExpandsVolumesAtTheirMount(t *testing.T) {
	for name, legacy := range map[string]bool{"Recovery": false, "Legacy": true} {
		t.Run(name, func(t *testing.T) {
			e := newPlayed(t)
			e.story.createPod()
			before := e.FileSystemSize("pod")
			e.DeletePod("pod")
			e.WaitNoPod("pod")
			e.pending(legacy)
			e.story.createPod()
			e.CheckGrown("pod", before)
			e.WaitFinished()
			e.End()
		})
	}
}

// waitEvent waits for an event about objects of some kinds.
func (e *expansion) waitEvent(reason string, kinds ...string) {
	e.T.Helper()
	e.Wait("the event "+reason, func(ctx context.Context) (bool, error) {
		events, err := e.Client.CoreV1().Events(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, kind := range kinds {
			if !slices.ContainsFunc(events.Items, func(ev corev1.Event) bool { return ev.Reason == reason && ev.InvolvedObject.Kind == kind }) {
				return false, fmt.Errorf("no event about a %s", kind)
			}
		}
		return true, nil
	})
}

// TestNodeExpansionIsInfeasible hands a size over to the node that the volume does not have: the driver refuses it, the resizer
// reads so in the claim, and the pod is not disturbed. A later pod is not kept waiting.
func TestNodeExpansionIsInfeasible(t *testing.T) {
	e := newPlayed(t)
	e.story.createPod()
	before := e.FileSystemSize("pod")
	e.merge("ask for more", `{"spec":{"resources":{"requests":{"storage":"448Mi"}}}}`)
	e.enlarge("448Mi")
	e.merge("hand over to the node", `{"status":{"allocatedResources":{"storage":"448Mi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`, "status")
	e.Wait("the expansion to be infeasible", func(ctx context.Context) (bool, error) {
		claim, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		failed := slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimNodeResizeError
		})
		return failed && claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizeInfeasible, nil
	})
	e.waitEvent("VolumeResizeFailed", "Pod", "PersistentVolumeClaim")
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.story.createPod()
	if now := e.FileSystemSize("pod"); now != before {
		t.Errorf("the file system has %d bytes, want %d as before", now, before)
	}
	e.End()
}

// TestNodesMayNotWatchClaims is why the agent looks at the claims of mounted volumes from time to time: the authorizer lets a node
// get a claim or a PersistentVolume of its pods, but not watch it.
func TestNodesMayNotWatchClaims(t *testing.T) {
	e := newExpansion(t)
	e.story.createPod()
	e.WaitRunning("pod")
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + e.story.node, Groups: []string{"system:nodes", "system:authenticated"}}
	node, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.CoreV1().PersistentVolumeClaims(e.Namespace).Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Errorf("a node may not get the claim of its pod: %v", err)
	}
	one := metav1.ListOptions{FieldSelector: "metadata.name=data"}
	if w, err := node.CoreV1().PersistentVolumeClaims(e.Namespace).Watch(t.Context(), one); !apierrors.IsForbidden(err) {
		t.Errorf("a node may watch the claim of its pod (%v, %v): the agent should", w, err)
	}
	e.End()
}
