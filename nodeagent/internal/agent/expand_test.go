package agent

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func gibibytes(n int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
}

// large is a PersistentVolume that the resizer has expanded.
func large(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.Spec.Capacity = gibibytes(2)
	return pv
}

// handedOver is a claim that waits for its node to expand the volume.
func handedOver(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	claim.Spec.Resources.Requests = gibibytes(2)
	claim.Status.Capacity, claim.Status.AllocatedResources = gibibytes(1), gibibytes(2)
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
	}
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	return claim
}

// expectExpanded waits until the claim is as a finished expansion leaves it.
func (c *cluster) expectExpanded() {
	c.t.Helper()
	c.eventually("the claim to have the new capacity", func() bool {
		claim, err := c.api.Client().PersistentVolumeClaims("ns").Get(c.t.Context(), "data", metav1.GetOptions{})
		return err == nil && claim.Status.Capacity.Storage().Value() == 2<<30 &&
			len(claim.Status.AllocatedResourceStatuses)+len(claim.Status.Conditions) == 0
	})
}

// TestOnlineExpansion: the agent finds by itself that a volume in use is to be expanded, and sends the events of a kubelet.
func TestOnlineExpansion(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.cfg.SyncFrequency = 50 * time.Millisecond
	c.driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 2 << 30})
	c.register()
	small := claim()
	small.Status.Capacity = gibibytes(1)
	c.apply(csiDriver(false), small, persistentVolume())
	c.start()
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	c.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.Internal, Times: 1})
	c.apply(large(persistentVolume()))
	status, err := json.Marshal(map[string]any{"status": handedOver(claim()).Status})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.api.Client().PersistentVolumeClaims("ns").Patch(t.Context(), "data", types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.expectExpanded()
	for _, uid := range []types.UID{"uid-a", "claim-uid"} {
		c.expectEvent("VolumeResizeFailed", uid)
		c.expectEvent("FileSystemResizeSuccessful", uid)
	}
	c.eventually("the size on the debug page", func() bool {
		d := c.agent.plugin.Volumes().Dump()
		return len(d) == 1 && len(d[0].Uses) == 1 && d[0].Uses[0].Capacity == 2<<30 && d[0].Uses[0].ExpansionError == ""
	})
	c.deletePod("a", 0)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}

// TestDriverDiesInExpansion: an answer that is lost says nothing, so the pod waits for another one.
func TestDriverDiesInExpansion(t *testing.T) {
	c := newCluster(t, csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_EXPAND_VOLUME}})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 2 << 30})
	c.register()
	c.apply(csiDriver(false), handedOver(claim()), large(persistentVolume()))
	c.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.Unavailable, After: true, Times: 2})
	c.start()
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	c.expectExpanded()
	c.expectCalls("a driver without staging", "NodePublishVolume", "NodeExpandVolume", "NodeExpandVolume", "NodeExpandVolume")
}
