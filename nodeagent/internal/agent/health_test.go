package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// healthConn is a connection to a driver that reports the health of its volumes and of its storage (CSI v1.13).
type healthConn struct {
	grpc.ClientConnInterface
	hang bool // calls about the storage do not end before their deadline

	mu                sync.Mutex
	sick              bool
	volumes, storages int // calls
}

// Invoke implements grpc.ClientConnInterface.
func (h *healthConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	switch r := reply.(type) {
	case *csi.NodeGetCapabilitiesResponse:
		err := h.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
		for _, c := range []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH} {
			r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
		}
		return err
	case *csi.NodeGetVolumeHealthResponse:
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.volumes++; h.sick {
			r.VolumeHealth = &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{
				Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "PathLost", Message: fmt.Sprintf("%d calls", h.volumes),
			}}}
		}
		return nil
	case *csi.NodeGetStorageHealthResponse:
		if h.hang {
			<-ctx.Done()
			return ctx.Err()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.storages++; h.sick {
			r.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{{
				Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "NoRoute", Message: fmt.Sprintf("%d calls", h.storages),
			}}
		}
		return nil
	}
	return h.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (h *healthConn) set(sick bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sick = sick
}

// calls returns the numbers of calls about volumes and about the storage.
func (h *healthConn) calls() (volumes, storages int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes, h.storages
}

// asked waits until the driver was asked some more times about everything that the gate lets it be asked about.
func (c *cluster) asked(h *healthConn) {
	c.t.Helper()
	volumes, storages := h.calls()
	c.eventually("more calls about health", func() bool {
		v, s := h.calls()
		return v >= volumes+3 && (s >= storages+3 || !c.cfg.VolumeHealth)
	})
}

// healthy starts an agent with a driver that reports health and a pod with a volume of it.
func healthy(t *testing.T, gate bool) (*cluster, *healthConn) {
	t.Helper()
	c := newCluster(t, csitest.Options{})
	conn := &healthConn{ClientConnInterface: c.driver.Conn()}
	c.cfg.Drivers = []Driver{{Name: driverName, Conn: conn}}
	c.cfg.VolumeHealth, c.cfg.StatsPeriod = gate, 5*time.Millisecond
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.apply(csiDriver(false), claim(), persistentVolume(), podWith("a", claimSource()))
	c.start()
	c.eventually("the pod to run", c.running("a"))
	return c, conn
}

// podHealthIs reports whether the status of the pod has one entry with these conditions, as status, space and reason.
func (c *cluster) podHealthIs(want ...string) func() bool {
	return func() bool {
		all := c.pod("a").Status.VolumeHealth
		var got []string
		for _, h := range all {
			for _, condition := range h.HealthConditions {
				got = append(got, string(condition.Status)+" "+condition.Reason)
			}
		}
		return len(all) == 1 && all[0].Name == "vol" && !all[0].LastTransitionTime.IsZero() && slices.Equal(got, want)
	}
}

func (c *cluster) storageHealth() []storagev1.StorageHealth {
	n, err := c.api.Client().CSINodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return n.Status.StorageHealth
}

// healthWrites counts the writes to the status of pods and of the CSINode.
func (c *cluster) healthWrites() (pods, csiNodes int) {
	for _, w := range c.api.Writes() {
		switch w.Resource + "/" + w.Subresource {
		case "pods/status":
			pods++
		case "csinodes/status":
			csiNodes++
		}
	}
	return pods, csiNodes
}

func (c *cluster) expectHealthWrites(reason string, wantPods, wantCSINodes int) {
	c.t.Helper()
	if pods, csiNodes := c.healthWrites(); pods != wantPods || csiNodes != wantCSINodes {
		c.t.Errorf("%s: %d writes of the pod and %d of the CSINode, want %d and %d", reason, pods, csiNodes, wantPods, wantCSINodes)
	}
	c.api.ResetWrites()
}

// TestVolumeHealth: problems appear in the status of the pod and of the CSINode, are written once though the driver words them differently each time, and go away.
func TestVolumeHealth(t *testing.T) {
	c, conn := healthy(t, true)
	c.asked(conn)
	c.api.ResetWrites()
	c.asked(conn)
	c.expectHealthWrites("all is well", 0, 0)
	conn.set(true)
	c.eventually("the problem of the volume", c.podHealthIs("Degraded PathLost"))
	c.eventually("the problem of the storage", func() bool { return len(c.storageHealth()) == 1 })
	want := []storagev1.StorageHealth{{Name: driverName, HealthConditions: []storagev1.StorageHealthCondition{{Status: storagev1.StorageUnreachable, Reason: "NoRoute"}}}}
	got := c.storageHealth()
	got[0].HealthConditions[0].Message = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("storage health, -want +got:\n%s", diff)
	}
	c.asked(conn)
	c.expectHealthWrites("problems that stay", 1, 1)
	conn.set(false)
	c.eventually("the problem of the volume to be over", c.podHealthIs())
	c.eventually("the problem of the storage to be over", func() bool { return len(c.storageHealth()) == 0 })
	c.asked(conn)
	c.expectHealthWrites("problems that are over", 1, 1)
	for _, obj := range c.api.Objects("events") {
		if e, ok := obj.(*corev1.Event); ok && strings.HasPrefix(e.Reason, "VolumeCondition") {
			t.Errorf("event %s, which Kubernetes 1.37 has no more", e.Reason)
		}
	}
}

// TestVolumeHealthGateOff: nothing is asked about the storage, and nothing is written.
func TestVolumeHealthGateOff(t *testing.T) {
	c, conn := healthy(t, false)
	c.api.ResetWrites()
	conn.set(true)
	c.expectEvent("VolumeConditionAbnormal", "uid-a")
	c.asked(conn)
	c.expectHealthWrites("the gate is off", 0, 0)
	if _, storages := conn.calls(); storages > 0 || len(c.storageHealth()) > 0 || len(c.pod("a").Status.VolumeHealth) > 0 {
		t.Errorf("%d calls about the storage, CSINode has %v, pod has %v", storages, c.storageHealth(), c.pod("a").Status.VolumeHealth)
	}
}

// TestHungStorageHealth: a driver that does not answer keeps no other one from being asked.
func TestHungStorageHealth(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	reg := prometheus.NewRegistry()
	c.cfg.Registerer, c.cfg.VolumeHealth, c.cfg.StatsPeriod, c.cfg.CSITimeout = reg, true, 5*time.Millisecond, patient
	other := csitest.New(csitest.Options{Name: "other.example"})
	conn := &healthConn{ClientConnInterface: other.Conn(), sick: true}
	c.cfg.Drivers = []Driver{
		{Name: driverName, Conn: &healthConn{ClientConnInterface: c.driver.Conn(), hang: true}}, {Name: "other.example", Conn: conn},
	}
	c.start()
	c.eventually("the problem of the other driver", func() bool { return len(c.storageHealth()) == 1 })
	c.eventually("more calls", func() bool { _, n := conn.calls(); return n > 10 })
	want := `# HELP csi_node_storage_health_status 1 for each problem that a driver reports of its storage.
# TYPE csi_node_storage_health_status gauge
csi_node_storage_health_status{driver_name="other.example",reason="NoRoute",status="StorageUnreachable"} 1
`
	c.eventually("the metric", func() bool { // which is empty for a moment at each answer
		return testutil.GatherAndCompare(reg, strings.NewReader(want), "csi_node_storage_health_status") == nil
	})
	conn.set(false)
	c.eventually("the metric to be gone", func() bool {
		n, err := testutil.GatherAndCount(reg, "csi_node_storage_health_status")
		return err == nil && n == 0
	})
}

// TestConditionsForTheAPI: the API server refuses a whole status because of one condition that breaks its rules, so such a condition is changed or left out.
func TestConditionsForTheAPI(t *testing.T) {
	long := strings.Repeat("a", maxMessage-1) + "é"
	storage := storageConditions([]*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
		{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "no word", Message: long},
		{Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "NoRoute", VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		}},
		{Reason: "OfNoCategory"}, {Status: 99, Reason: "OfALaterVersion"},
	})
	block, many := corev1.PersistentVolumeBlock, corev1.ReadWriteMany
	if diff := cmp.Diff([]storagev1.StorageHealthCondition{
		{Status: storagev1.StorageDegraded, Reason: "StorageDegraded", Message: long[:maxMessage-1]},
		{Status: storagev1.StorageUnreachable, Reason: "NoRoute", VolumeMode: &block, AccessMode: &many},
	}, storage); diff != "" {
		t.Errorf("storage, -want +got:\n%s", diff)
	}
	volumes := volumeConditions([]volume.Condition{
		{Status: corev1.VolumeHealthDataLoss}, {Status: corev1.VolumeHealthDegraded, Reason: strings.Repeat("A", maxReason+1)},
		{Status: corev1.VolumeHealthDegraded, Reason: "Degraded", Message: "again"}, {Message: "a VolumeCondition of CSI v1.12"},
		{Status: corev1.VolumeHealthInaccessible, Reason: "PathLost", Message: "text"},
	})
	if diff := cmp.Diff([]corev1.VolumeHealthCondition{
		{Status: corev1.VolumeHealthDataLoss, Reason: "DataLoss"}, {Status: corev1.VolumeHealthDegraded, Reason: "Degraded"},
		{Status: corev1.VolumeHealthInaccessible, Reason: "PathLost", Message: "text"},
	}, volumes); diff != "" {
		t.Errorf("volumes, -want +got:\n%s", diff)
	}
	var many17 []volume.Condition
	for i := range maxConditions + 1 {
		many17 = append(many17, volume.Condition{Status: corev1.VolumeHealthDegraded, Reason: fmt.Sprintf("R%d", i)})
	}
	if n := len(volumeConditions(many17)); n != maxConditions {
		t.Errorf("%d conditions, want %d", n, maxConditions)
	}
}

// TestModes is how the access mode of a capability reads in Kubernetes.
func TestModes(t *testing.T) {
	for mode, want := range map[csi.VolumeCapability_AccessMode_Mode]corev1.PersistentVolumeAccessMode{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        corev1.ReadWriteOnce,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   corev1.ReadWriteOnce,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  corev1.ReadWriteOnce,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: corev1.ReadWriteOncePod,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    corev1.ReadOnlyMany,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  corev1.ReadWriteMany,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   corev1.ReadWriteMany,
	} {
		access, form := modes(&csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}, AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		})
		if access == nil || *access != want || form == nil || *form != corev1.PersistentVolumeFilesystem {
			t.Errorf("%s: got %v and %v, want %s of a file system", mode, access, form, want)
		}
	}
	if access, form := modes(nil); access != nil || form != nil {
		t.Errorf("without a capability: got %v and %v", access, form)
	}
}
