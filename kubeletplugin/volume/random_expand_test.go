package volume_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// addClaim makes a claim and its PersistentVolume; vol-3 is shared with other nodes.
func (w *world) addClaim(handle string) {
	claim := &corev1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = "ns", handle, types.UID("claim-"+handle)
	claim.Spec.VolumeName = "pv-" + handle
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if handle == "vol-3" {
		claim.Spec.AccessModes[0] = corev1.ReadWriteMany
	}
	claim.Status.Capacity = mebibytes(1)
	pv := &corev1.PersistentVolume{}
	pv.Name = "pv-" + handle
	pv.Spec.Capacity = mebibytes(1)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: handle, UID: claim.UID}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: handle}
	if err := w.api.Apply(claim, pv); err != nil {
		w.t.Fatal(err)
	}
}

func mebibytes(n int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(n<<20, resource.BinarySI)}
}

func (w *world) claim(handle string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	for _, obj := range w.api.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Name == handle {
			return claim
		}
	}
	w.t.Fatalf("no claim %s", handle)
	return nil
}

// grow does what a user and a resizer do before it is the node's turn, or what another node has done besides.
func (g *gambler) grow() {
	handle := fmt.Sprintf("vol-%d", 1+g.rand.IntN(len(randomVolumes)))
	if g.claim(handle).Status.AllocatedResourceStatuses != nil {
		return // one after the other
	}
	size := mebibytes(g.claim(handle).Status.Capacity.Storage().Value()>>20 + 1)
	g.write("persistentvolumes", "", "pv-"+handle, fmt.Sprintf(`{"spec":{"capacity":{"storage":%q}}}`, size.Storage()))
	g.write("persistentvolumeclaims", "ns", handle, fmt.Sprintf(`{"status":{"allocatedResources":{"storage":%q}}}`, size.Storage()))
	if handle == "vol-3" && g.rand.IntN(2) == 0 {
		g.write("persistentvolumeclaims", "ns", handle, fmt.Sprintf(`{"status":{"capacity":{"storage":%q}}}`, size.Storage()))
		return
	}
	g.handOver(handle)
}

// handOver leaves an expansion that is not done to the node.
func (w *world) handOver(handle string) {
	s := w.claim(handle).Status
	if s.AllocatedResources.Storage().Cmp(*s.Capacity.Storage()) > 0 {
		w.write("persistentvolumeclaims", "ns", handle, `{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`)
	}
}

// write patches an object. A request that fails leaves the claim as it is, and somebody comes back to it.
func (w *world) write(kind, namespace, name, patch string) {
	w.t.Helper()
	var err error
	if kind == "persistentvolumes" {
		_, err = w.api.Client().PersistentVolumes().Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	} else {
		_, err = w.api.Client().PersistentVolumeClaims(namespace).Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	}
	if err != nil && !errors.Is(err, errAway) {
		w.t.Fatalf("patch %s %s: %v", kind, name, err)
	}
}

var errAway = errors.New("the API server is away")

// breakClaims lets requests for claims fail, some of them after they have taken effect.
func (g *gambler) breakClaims() {
	g.api.Inject(kubetest.Fault{
		Verb: []string{"get", "patch"}[g.rand.IntN(2)], Resource: "persistentvolumeclaims",
		Err: errAway, After: g.rand.IntN(2) == 0, Times: 1 + g.rand.IntN(5),
	})
}

// expectExpanded checks the claims that a living pod may write to.
func (g *gambler) expectExpanded() {
	g.t.Helper()
	for _, wants := range g.alive {
		for _, p := range wants {
			if p.Claim.Name == "" || p.ReadOnly {
				continue
			}
			s := g.claim(p.Claim.Name).Status
			if len(s.AllocatedResourceStatuses)+len(s.Conditions) > 0 || s.AllocatedResources.Storage().Cmp(*s.Capacity.Storage()) > 0 {
				g.t.Errorf("claim %s of pod %s was not expanded: %+v", p.Claim.Name, p.Pod.Name, s)
			}
			for _, v := range g.m.Dump() {
				for _, u := range v.Uses {
					if u.SpecName == p.SpecName && u.Capacity != s.Capacity.Storage().Value() {
						g.t.Errorf("volume %s has %d bytes on the node, want %s", p.SpecName, u.Capacity, s.Capacity.Storage())
					}
				}
			}
		}
	}
}
