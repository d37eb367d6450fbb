package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hcloudDriver   = "csi.hetzner.cloud"
	hcloudTopology = hcloudDriver + "/location"
	hcloudServer   = int64(42)
	hcloudClaims   = 20
)

// hcloudTest is the driver of a vendor, its cloud, and a node of it.
type hcloudTest struct {
	*story
	cloud        *hcloudMock
	socket, node string
}

// TestHcloud has our provisioner and attacher serve the driver of Hetzner's cloud, while the cloud refuses requests and loses answers, and the
// provisioner is killed: each claim gets a volume, no volume is left in the cloud.
func TestHcloud(t *testing.T) {
	dev(t)
	dir := unpackUpstream(t, "hcloud-csi-driver")
	s := &story{Scene: bed.NewScene(t), t: t}
	h := &hcloudTest{story: s, cloud: newHcloudMock(t, hcloudServer), socket: filepath.Join(t.TempDir(), "csi.sock"), node: s.Namespace + "-node"}
	h.addNode()
	h.addClass(Class(h.ImmediateClass()+"-hcloud", hcloudDriver, storagev1.VolumeBindingImmediate))
	h.addClass(Class(h.LateClass()+"-hcloud", hcloudDriver, storagev1.VolumeBindingWaitForFirstConsumer))

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed of what goes wrong: %d", seed)
	h.cloud.failures(rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // not a secret
	driver := exec.Command(filepath.Join(dir, "hcloud-csi-driver"), "-controller")
	driver.Env = append(os.Environ(), "CSI_ENDPOINT=unix://"+h.socket, "HCLOUD_ENDPOINT="+h.cloud.url, "HCLOUD_TOKEN="+strings.Repeat("a", 64),
		fmt.Sprint("HCLOUD_SERVER_ID=", hcloudServer), "ENABLE_METRICS=false")
	h.background(driver)
	h.background(h.sidecar("csi-attacher"))
	provisioner := h.sidecar("csi-provisioner")
	h.background(provisioner)

	for n := range hcloudClaims {
		h.claim(n)
	}
	h.Wait("the cloud to have some of the volumes", func(context.Context) (bool, error) {
		volumes, _ := h.cloud.state()
		return len(volumes) >= hcloudClaims/4, nil
	})
	if err := provisioner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	h.DeleteClaim(claimName(0)) // whatever has become of it
	h.background(h.sidecar("csi-provisioner"))
	volumes := h.checkVolumes()

	attached := volumes[0]
	h.attach(attached)
	for n := 1; n < hcloudClaims; n++ {
		h.DeleteClaim(claimName(n))
	}
	h.Wait("the cloud to have no volume", func(context.Context) (bool, error) {
		left, faults := h.cloud.state()
		if len(left) > 0 {
			return false, fmt.Errorf("left: %v", left)
		}
		t.Logf("what went wrong: %v", faults)
		return true, nil
	})
	h.Wait("the PersistentVolumes to be gone", func(ctx context.Context) (bool, error) {
		list, err := h.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(list.Items, func(pv corev1.PersistentVolume) bool { return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == hcloudDriver }), err
	})
}

// failures has the cloud refuse a part of the requests that change something, and lose a part of its answers to them.
func (m *hcloudMock) failures(random *rand.Rand) {
	m.fault = func(method, _ string) string {
		faults := []string{hcloudLost, hcloudLost, hcloudLimited, hcloudLocked, hcloudDown}
		if n := random.IntN(12); method != "GET" && n < len(faults) {
			return faults[n]
		}
		return ""
	}
}

// sidecar returns a sidecar of ours for the driver.
func (h *hcloudTest) sidecar(name string) *exec.Cmd {
	args := []string{"run", name, "--csi-address=" + h.socket, "--kubeconfig=" + h.Dev.kubeconfig(name), "--v=4", "--retry-interval-max=5s"}
	if name == "csi-provisioner" {
		args = append(args, "--feature-gates=Topology=true")
	}
	return exec.Command(h.Dev.program, args...)
}

// addNode adds a node of the cloud, of which only its objects exist.
func (h *hcloudTest) addNode() {
	h.t.Helper()
	h.retry("create node "+h.node, func(ctx context.Context) error {
		_, err := h.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: h.node, Labels: map[string]string{hcloudTopology: hcloudLocation}}, Spec: corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		return ignoreExists(err)
	})
	h.retry("register the driver on "+h.node, func(ctx context.Context) error {
		_, err := h.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: h.node}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: hcloudDriver, NodeID: fmt.Sprint(hcloudServer), TopologyKeys: []string{hcloudTopology}}},
		}}, metav1.CreateOptions{})
		return ignoreExists(err)
	})
	h.t.Cleanup(func() {
		_ = h.Client.CoreV1().Nodes().Delete(context.Background(), h.node, metav1.DeleteOptions{})
		_ = h.Client.StorageV1().CSINodes().Delete(context.Background(), h.node, metav1.DeleteOptions{})
	})
}

// claim asks for a volume, half of them for the node, as the scheduler does.
func (h *hcloudTest) claim(n int) {
	h.t.Helper()
	claim := Claim(h.Namespace, claimName(n), h.ImmediateClass()+"-hcloud")
	if n%2 == 1 {
		*claim.Spec.StorageClassName = h.LateClass() + "-hcloud"
		claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": h.node}
	}
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("10Gi")
	h.askFor(claim)
}

// checkVolumes waits for the volumes of all claims but the first, which is deleted, and returns the names of their PersistentVolumes.
func (h *hcloudTest) checkVolumes() (names []string) {
	h.t.Helper()
	want := map[string]int64{}
	for n := 1; n < hcloudClaims; n++ {
		h.WaitBound(claimName(n))
		pv := h.Volume(claimName(n))
		names = append(names, pv.Name)
		want[pv.Name] = 0
		location := []corev1.NodeSelectorRequirement{{Key: hcloudTopology, Operator: corev1.NodeSelectorOpIn, Values: []string{hcloudLocation}}}
		if diff := cmp.Diff([]corev1.NodeSelectorTerm{{MatchExpressions: location}}, pv.Spec.NodeAffinity.Required.NodeSelectorTerms); diff != "" {
			h.t.Errorf("volume %s is accessible from other nodes than those of its location (-want +got):\n%s", pv.Name, diff)
		}
	}
	// The claim that was deleted while there was no provisioner: its creation may have failed for the provisioner, and not for the cloud.
	h.t.Logf("volumes that a claim without a provisioner has left: %q", h.cloud.removeLost(want))
	h.Wait("the cloud to have the volumes of the claims and no other", func(context.Context) (bool, error) {
		volumes, _ := h.cloud.state()
		if diff := cmp.Diff(want, volumes); diff != "" {
			return false, fmt.Errorf("-want +got:\n%s", diff)
		}
		return true, nil
	})
	return names
}

// attach has a volume attached to the node, and detached.
func (h *hcloudTest) attach(volume string) {
	h.t.Helper()
	client, name := h.Client.StorageV1().VolumeAttachments(), h.node
	h.retry("attach "+volume, func(ctx context.Context) error {
		_, err := client.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: hcloudDriver, NodeName: h.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		}}, metav1.CreateOptions{})
		return ignoreExists(err)
	})
	h.waitAttached(volume)
	if volumes, _ := h.cloud.state(); volumes[volume] != hcloudServer {
		h.t.Errorf("volume %s is attached to server %d, want %d", volume, volumes[volume], hcloudServer)
	}
	h.retry("detach "+volume, func(ctx context.Context) error {
		return ignoreNotFound(client.Delete(ctx, name, metav1.DeleteOptions{}))
	})
	h.Wait("volume "+volume+" to be detached", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	if volumes, _ := h.cloud.state(); volumes[volume] != 0 {
		h.t.Errorf("volume %s is still attached to server %d", volume, volumes[volume])
	}
}
