package bench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// clusterNodes is the number of Node objects, of which each has imagesOfNode names of images.
	clusterNodes, imagesOfNode = 1000, 25
	// zoneKey is the label of the driver's segments, of which there are zones.
	zoneKey, zones = "topology.example.com/zone", 3
	// nodeIDKey is the annotation of an attachment by which the attacher of kubernetes-csi records the node ID.
	nodeIDKey = "csi.alpha.kubernetes.io/node-id"
)

// BenchmarkMemory starts kubernetes-csi's provisioner and ours in turn, or with COMPONENT=csi-attacher or csi-resizer these, in a cluster of its own with
// 1,000 nodes and many claims, and reads their memory. There are no pods: none of these programs reads them. With FOREIGN=1, 90 % of the
// claims and volumes belong to another driver: nine for each of the driver's own.
func BenchmarkMemory(b *testing.B) {
	component := cmp.Or(os.Getenv("BENCH_COMPONENT"), "csi-provisioner")
	begin, ok := map[string]func(*contest){
		"csi-provisioner": (*contest).beginClaim, "csi-attacher": (*contest).beginAttachment, "csi-resizer": (*contest).beginExpansion,
	}[component]
	if !ok {
		b.Fatalf("COMPONENT=%s: must be csi-provisioner, csi-attacher or csi-resizer", component)
	}
	both, n := programs(b, component), benchSetting(b, "N", 10_000)
	foreign := 9 * n * benchSetting(b, "FOREIGN", 0)
	// A Go program that is idle collects garbage every 2 minutes: a longer time may show less.
	quiet := time.Duration(benchSetting(b, "QUIET", 30)) * time.Second
	b.Run(fmt.Sprintf("%s/%dClaims/%dForeign", component, n, foreign), func(b *testing.B) {
		cluster := testbed.OwnCluster(b, 1)
		c := newContest(b, cluster, csitest.Options{Topology: map[string]string{zoneKey: zone(0)}, Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		}})
		// They would work on the objects for minutes, and mark the nodes as lost.
		c.hold("kube-controller-manager", "kube-scheduler")
		c.populate(n, foreign)
		var seen [2]memory
		for b.Loop() {
			for i, p := range both {
				c.remember(p, begin, quiet, &seen[i])
			}
		}
		compare(b, seen[0].figures(), seen[1].figures())
	})
}

// memory is that of one program in MiB: at its peak, and when it was quiet, then without the pages of its file, too, which the
// system may drop and has once for all instances.
type memory struct {
	peak, settled, settledAnonymous []float64
}

// remember reads the memory of one program when it has begun to work, with its caches synced, and when it has been quiet for a while.
func (c *contest) remember(p program, begin func(*contest), quiet time.Duration, seen *memory) {
	c.b.Helper()
	cmd := c.start(p, "a")
	c.warmed++
	begin(c)
	settle := time.NewTimer(quiet)
	defer settle.Stop()
	select {
	case <-settle.C:
	case <-c.b.Context().Done():
	}
	seen.peak = append(seen.peak, procMiB(c.b, cmd.Process.Pid, "VmHWM"))
	seen.settled = append(seen.settled, procMiB(c.b, cmd.Process.Pid, "VmRSS"))
	seen.settledAnonymous = append(seen.settledAnonymous, procMiB(c.b, cmd.Process.Pid, "RssAnon"))
	testbed.Kill(cmd)
	c.deleteLeases()
}

// beginClaim waits for the CreateVolume for a claim.
func (c *contest) beginClaim() {
	c.b.Helper()
	claim := testbed.Claim(c.warm.Namespace, fmt.Sprintf("probe-%d", c.warmed), c.class)
	// No kube-controller-manager runs that would ask for a volume.
	claim.Annotations = map[string]string{measure.StorageProvisioner: c.name}
	c.warm.AddClaim(claim)
	c.called(c.warm, claim.Name)
}

// beginAttachment waits for the ControllerPublishVolume for a volume on one more node.
func (c *contest) beginAttachment() {
	c.b.Helper()
	c.Retry("attach a volume", func(ctx context.Context) error {
		return testbed.IgnoreExists(c.createAttachment(ctx, "own-0", nodeName(clusterNodes-c.warmed)))
	})
	c.Wait("ControllerPublishVolume", func(context.Context) (bool, error) {
		return slices.ContainsFunc(c.driver.Calls(), func(call csitest.Call) bool { return call.Method == "ControllerPublishVolume" }), nil
	})
}

// beginExpansion waits for the ControllerExpandVolume for a volume.
func (c *contest) beginExpansion() {
	c.b.Helper()
	name := fmt.Sprintf("own-%d", c.warmed)
	c.driver.AddVolume(csitest.Volume{ID: "vol-pvc-" + name, Capacity: 16 << 20})
	c.Retry("ask for a larger volume", func(ctx context.Context) error { return c.request(ctx, name, 32) })
	c.Wait("ControllerExpandVolume", func(context.Context) (bool, error) {
		return slices.ContainsFunc(c.driver.Calls(), func(call csitest.Call) bool { return call.Method == "ControllerExpandVolume" }), nil
	})
}

func (m memory) figures() []figure {
	return []figure{{"peak-MiB", slices.Max(m.peak)}, {"settled-MiB", slices.Max(m.settled)}, {"settled-anonymous-MiB", slices.Max(m.settledAnonymous)}}
}

// procMiB returns an amount of /proc/PID/status.
func procMiB(b *testing.B, pid int, name string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	value, _, _ := strings.Cut(rest, "kB\n")
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil {
		b.Fatalf("%s in /proc/%d/status: %v", name, pid, err)
	}
	return n / 1024
}

// populate creates nodes, and bound claims with their volumes. Only those of the driver have VolumeAttachments.
func (c *contest) populate(own, foreign int) {
	c.b.Helper()
	began := time.Now()
	err := errors.Join(
		each(c.b.Context(), clusterNodes, c.createNode),
		each(c.b.Context(), own, func(ctx context.Context, i int) error {
			name := fmt.Sprintf("own-%d", i)
			if err := c.createPair(ctx, name, c.name, c.class); err != nil {
				return err
			}
			return c.attach(ctx, name, nodeName(i%clusterNodes))
		}),
		each(c.b.Context(), foreign, func(ctx context.Context, i int) error {
			return c.createPair(ctx, fmt.Sprintf("foreign-%d", i), "foreign.example.com", "foreign")
		}),
	)
	if err != nil {
		c.b.Fatal(err)
	}
	fmt.Printf("created %d nodes, %d claims and attached volumes of the driver, %d of another driver in %s\n", clusterNodes, own, foreign, time.Since(began).Round(time.Second))
}

func nodeName(i int) string { return fmt.Sprintf("worker-%d.example.com", i) }

func zone(i int) string { return fmt.Sprintf("zone-%d", i%zones) }

// createNode creates a node as a kubelet registers it, with the driver on it.
func (c *contest) createNode(ctx context.Context, i int) error {
	name, now := nodeName(i), metav1.Now()
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"),
		corev1.ResourcePods: resource.MustParse("250"), corev1.ResourceEphemeralStorage: resource.MustParse("200Gi"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			zoneKey: zone(i), corev1.LabelTopologyZone: zone(i), corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
			corev1.LabelArchStable: "amd64", corev1.LabelInstanceTypeStable: "large",
		}},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources, Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}},
	}
	for _, condition := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: condition, Status: corev1.ConditionTrue, Reason: "KubeletHasReported", Message: "kubelet has reported this condition", LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	for image := range imagesOfNode {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: 100 << 20, Names: []string{
			fmt.Sprintf("images.example.com/team/program-%d@sha256:%064x", image, image), fmt.Sprintf("images.example.com/team/program-%d:v1.0.0", image),
		}})
	}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: c.name, NodeID: name, TopologyKeys: []string{zoneKey}}, {Name: "foreign.example.com", NodeID: name}},
	}}
	_, err1 := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	_, err2 := c.Client.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{})
	return errors.Join(err1, err2)
}

// createPair creates a claim and a volume that are bound to each other.
func (c *contest) createPair(ctx context.Context, name, driver, class string) error {
	claims, volumes := c.Client.CoreV1().PersistentVolumeClaims(c.warm.Namespace), c.Client.CoreV1().PersistentVolumes()
	claim := testbed.Claim(c.warm.Namespace, name, class)
	claim.Spec.VolumeName = "pvc-" + name
	claim.Annotations = map[string]string{measure.StorageProvisioner: driver, "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests}
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return err
	}
	volume, err := volumes.Create(ctx, boundVolume(claim, driver), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	volume.Status.Phase = corev1.VolumeBound
	_, err = volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{})
	return err
}

// boundVolume returns the volume of a claim as provisioners make it.
func boundVolume(claim *corev1.PersistentVolumeClaim, driver string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName, Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"}, Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":                            driver,
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
		}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: *claim.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "vol-" + claim.Spec.VolumeName, FSType: "ext4",
				VolumeAttributes: map[string]string{"name": claim.Name, "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-1234-" + driver},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{zone(0)}}},
			}}}},
		},
	}
}

// attach creates the attachment of a claim's volume, as it is when the volume is attached.
func (c *contest) attach(ctx context.Context, claim, node string) error {
	if err := c.createAttachment(ctx, claim, node); err != nil {
		return err
	}
	status := []byte(`{"status":{"attached":true}}`)
	_, err := c.Client.StorageV1().VolumeAttachments().Patch(ctx, attachmentName(claim, node), types.MergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}

func attachmentName(claim, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(claim+" "+node)))
}

func (c *contest) createAttachment(ctx context.Context, claim, node string) error {
	volume := "pvc-" + claim
	_, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: attachmentName(claim, node), Finalizers: []string{"external-attacher/" + strings.ReplaceAll(c.name, ".", "-")}, Annotations: map[string]string{nodeIDKey: node},
		},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: c.name, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, metav1.CreateOptions{})
	return err
}
