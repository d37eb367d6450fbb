package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster"
)

// The claims have the least size that XFS can have, and are expanded to another one. An ext4 file system that is in use can be
// expanded only with CAP_SYS_RESOURCE, which not every machine for tests has.
const (
	original = 320 << 20
	expanded = 448 << 20
)

// expansion is a claim of a volume with a file system of its own.
type expansion struct{ *story }

func newExpansion(t *testing.T) *expansion {
	t.Helper()
	dev(t)
	return newExpansionOn(t, bed)
}

func newExpansionOn(t *testing.T, cluster *Bed) *expansion {
	t.Helper()
	e := &expansion{&story{Scene: cluster.NewScene(t), t: t}}
	class := e.createClass("xfs", func(c *storagev1.StorageClass) {
		binding := storagev1.VolumeBindingImmediate
		c.VolumeBindingMode, c.AllowVolumeExpansion = &binding, new(true)
		c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	})
	claim := Claim(e.Namespace, "data", class)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(original, resource.BinarySI)
	e.askFor(claim)
	e.bound()
	return e
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
	e.retry("hold the resizer", func(ctx context.Context) error { return e.Dev.Hold(ctx, resizer) })
	e.t.Cleanup(func() {
		if err := e.Dev.Release(context.Background(), resizer); err != nil {
			e.t.Error(err)
		}
	})
}

// controller does what a user and the controller's half of an expansion do before it is the node's turn.
func (e *expansion) controller() {
	e.t.Helper()
	size := resource.NewQuantity(expanded, resource.BinarySI).String()
	e.merge("ask for more", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
	client, err := csiclient.New(csiclient.Config{Address: filepath.Join(e.Dev.dir, "run", "csi.sock")})
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	volume := e.Volume("data")
	e.retry("expand the volume", func(ctx context.Context) error {
		_, err := client.Controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: volume.Spec.CSI.VolumeHandle, CapacityRange: &csi.CapacityRange{RequiredBytes: expanded},
		})
		return err
	})
	e.enlarge(size)
}

// enlarge writes the capacity of the PersistentVolume.
func (e *expansion) enlarge(size string) {
	e.t.Helper()
	volume := e.Volume("data")
	e.retry("enlarge the PersistentVolume", func(ctx context.Context) error {
		_, err := e.Client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType,
			[]byte(`{"spec":{"capacity":{"storage":"`+size+`"}}}`), metav1.PatchOptions{})
		return err
	})
}

// pending hands the expansion over to the node: since KEP-1790 by allocatedResourceStatuses, before it by the condition alone.
func (e *expansion) pending(legacy bool) {
	e.t.Helper()
	e.controller()
	status := map[string]any{"conditions": []corev1.PersistentVolumeClaimCondition{{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
	}}}
	if !legacy {
		status["allocatedResources"] = map[string]string{"storage": resource.NewQuantity(expanded, resource.BinarySI).String()}
		status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizePending}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		e.t.Fatal(err)
	}
	e.merge("hand over to the node", string(patch), "status")
}

// merge patches the claim.
func (e *expansion) merge(what, patch string, subresource ...string) {
	e.t.Helper()
	e.retry(what, func(ctx context.Context) error {
		_, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Patch(ctx, "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	})
}

// mountedAt is where the volume is mounted for a pod.
func (e *expansion) mountedAt(pod string) string {
	e.t.Helper()
	return filepath.Join(e.Dev.NodeDirs[e.node], "pods", string(e.WaitRunning(pod).UID), "volumes", "kubernetes.io~csi", e.Volume("data").Name, "mount")
}

// fileSystem is the size in bytes of the file system that a pod sees.
func (e *expansion) fileSystem(pod string) uint64 {
	e.t.Helper()
	path := e.mountedAt(pod)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		e.t.Fatalf("file system at %s: %v", path, err)
	}
	return fs.Blocks * uint64(fs.Bsize)
}

// finished waits until the claim is as a finished expansion leaves it.
func (e *expansion) finished() {
	e.t.Helper()
	e.Wait("the claim to have the new capacity", func(ctx context.Context) (bool, error) {
		claim, err := e.Client.CoreV1().PersistentVolumeClaims(e.Namespace).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := claim.Status
		if s.Capacity.Storage().Value() != expanded || len(s.AllocatedResourceStatuses)+len(s.Conditions) > 0 {
			return false, fmt.Errorf("status is %+v", s)
		}
		return true, nil
	})
}

// large checks the file system of a pod after the expansion: the file system needs some of the volume for itself.
func (e *expansion) large(pod string, before uint64) {
	e.t.Helper()
	if now := e.fileSystem(pod); now < expanded*3/4 || now <= before {
		e.t.Errorf("the file system has %d bytes, want about %d; it had %d before", now, expanded, before)
	}
}

// waitLarge is large for a node that expands without being called.
func (e *expansion) waitLarge(pod string, before uint64) {
	e.t.Helper()
	e.Wait("the file system of pod "+pod+" to grow", func(context.Context) (bool, error) { return e.fileSystem(pod) > before, nil })
	e.large(pod, before)
}

func (e *expansion) leave() {
	e.t.Helper()
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.deleteClaim()
}

func (e *expansion) over() {
	e.t.Helper()
	e.leave()
	e.WaitNothingLeft()
}

// TestNodeExpandsMountedVolumes enlarges volumes that pods use. All that the agent gets is what a resizer of today, or an old one,
// writes into the API.
func TestNodeExpandsMountedVolumes(t *testing.T) {
	all := map[bool]*expansion{false: newPlayed(t), true: newPlayed(t)}
	before := map[bool]uint64{}
	for legacy, e := range all {
		e.createPod()
		before[legacy] = e.fileSystem("pod")
	}
	for legacy, e := range all {
		e.pending(legacy)
	}
	for legacy, e := range all {
		e.finished()
		e.large("pod", before[legacy])
		e.waitEvent("FileSystemResizeSuccessful", "Pod", "PersistentVolumeClaim")
		e.leave()
	}
	all[false].WaitNothingLeft()
}

// TestNodeExpandsVolumesAtTheirMount enlarges a volume that no pod uses: the next pod does not run before it is expanded.
func TestNodeExpandsVolumesAtTheirMount(t *testing.T) {
	for name, legacy := range map[string]bool{"Recovery": false, "Legacy": true} {
		t.Run(name, func(t *testing.T) {
			e := newPlayed(t)
			e.createPod()
			before := e.fileSystem("pod")
			e.DeletePod("pod")
			e.WaitNoPod("pod")
			e.pending(legacy)
			e.createPod()
			e.large("pod", before)
			e.finished()
			e.over()
		})
	}
}

// waitEvent waits for an event about objects of some kinds.
func (e *expansion) waitEvent(reason string, kinds ...string) {
	e.t.Helper()
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
	e.createPod()
	before := e.fileSystem("pod")
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
	e.createPod()
	if now := e.fileSystem("pod"); now != before {
		t.Errorf("the file system has %d bytes, want %d as before", now, before)
	}
	e.over()
}

// TestNodesMayNotWatchClaims is why the agent looks at the claims of mounted volumes from time to time: the authorizer lets a node
// get a claim or a PersistentVolume of its pods, but not watch it.
func TestNodesMayNotWatchClaims(t *testing.T) {
	e := newExpansion(t)
	e.createPod()
	e.WaitRunning("pod")
	config := rest.CopyConfig(e.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + e.node, Groups: []string{"system:nodes", "system:authenticated"}}
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
	e.over()
}
