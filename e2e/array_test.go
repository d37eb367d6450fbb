package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/e2e/testbed"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

const (
	arrayDriver   = "attached-block.example.com"
	arrayZone     = "topology." + arrayDriver + "/zone"
	arrayRack     = "topology." + arrayDriver + "/rack"
	arrayPassword = "swordfish"
	arrayClaims   = 20
)

// arrayTest is the driver of a storage array, the array, and a node, of which only the objects exist.
type arrayTest struct {
	*story
	array        *faultyArray
	socket, node string
}

// TestFaultyArray has our provisioner and attacher serve examples/attached-block, while the array refuses requests and loses answers, and the
// provisioner is killed: each claim gets a volume, no volume is left in the array.
func TestFaultyArray(t *testing.T) {
	dev(t)
	s := newStory(t)
	a := &arrayTest{story: s, socket: filepath.Join(t.TempDir(), "csi.sock"), node: s.Namespace + "-node"}
	a.array = newFaultyArray(t, a.node, rand.New(rand.NewPCG(seeds.One(t), 0))) //nolint:gosec // not a secret
	a.addNode()
	a.AddClass(testbed.Class(a.ImmediateClass()+"-array", arrayDriver, storagev1.VolumeBindingImmediate))
	a.AddClass(testbed.Class(a.LateClass()+"-array", arrayDriver, storagev1.VolumeBindingWaitForFirstConsumer))
	a.Background(a.driver())
	a.Background(a.sidecar("csi-attacher"))
	provisioner := a.sidecar("csi-provisioner")
	a.Background(provisioner)

	for n := range arrayClaims {
		a.claim(n)
	}
	a.Wait("the array to have some of the volumes", func(context.Context) (bool, error) {
		return len(a.array.volumes(t)) >= arrayClaims/4, nil
	})
	if err := provisioner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.DeleteClaim(claimName(0)) // whatever has become of it
	a.Background(a.sidecar("csi-provisioner"))
	volumes := a.checkVolumes()

	a.attach(volumes[0])
	for n := 1; n < arrayClaims; n++ {
		a.DeleteClaim(claimName(n))
	}
	a.Wait("the array to have no volume", func(context.Context) (bool, error) {
		if left := a.array.volumes(t); len(left) > 0 {
			return false, fmt.Errorf("left: %v", left)
		}
		return true, nil
	})
	a.Wait("the PersistentVolumes to be gone", func(ctx context.Context) (bool, error) {
		list, err := a.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(list.Items, func(pv corev1.PersistentVolume) bool { return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == arrayDriver }), err
	})
	if faults := a.array.seen(); len(faults) == 0 {
		t.Error("the array had no fault")
	} else {
		t.Logf("faults: %v", faults)
	}
}

// driver returns the driver of the array.
func (a *arrayTest) driver() *exec.Cmd {
	a.T.Helper()
	dir := a.T.TempDir()
	program, password := filepath.Join(dir, "attached-block"), filepath.Join(dir, "password")
	testbed.Build(a.T, program, "examples/attached-block", ".")
	if err := os.WriteFile(password, []byte(arrayPassword), 0o600); err != nil {
		a.T.Fatal(err)
	}
	return exec.Command(program, "--endpoint="+a.socket, "--nodeid="+a.node, "--statedir="+filepath.Join(dir, "state"),
		"--array="+a.array.url, "--password-file="+password, "--topology="+arrayZone+"=a", "--topology="+arrayRack+"=1")
}

// sidecar returns a sidecar of ours for the driver.
func (a *arrayTest) sidecar(name string) *exec.Cmd {
	args := []string{"run", name, "--csi-address=" + a.socket, "--kubeconfig=" + a.Dev.KubeconfigOf(name), "--v=4", "--retry-interval-max=5s"}
	if name == "csi-provisioner" {
		args = append(args, "--feature-gates=Topology=true")
	}
	return exec.Command(a.Dev.Program, args...)
}

// addNode adds a node that reaches the array, and registers the driver on it.
func (a *arrayTest) addNode() {
	a.T.Helper()
	a.Retry("create node "+a.node, func(ctx context.Context) error {
		_, err := a.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: a.node, Labels: map[string]string{arrayZone: "a", arrayRack: "1"}}, Spec: corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	a.Retry("register the driver on "+a.node, func(ctx context.Context) error {
		_, err := a.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: a.node}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: arrayDriver, NodeID: a.node, TopologyKeys: []string{arrayZone, arrayRack}}},
		}}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	a.T.Cleanup(func() {
		_ = a.Client.CoreV1().Nodes().Delete(context.Background(), a.node, metav1.DeleteOptions{})
		_ = a.Client.StorageV1().CSINodes().Delete(context.Background(), a.node, metav1.DeleteOptions{})
	})
}

// claim asks for a volume, half of them for the node, as the scheduler does.
func (a *arrayTest) claim(n int) {
	a.T.Helper()
	claim := testbed.Claim(a.Namespace, claimName(n), a.ImmediateClass()+"-array")
	if n%2 == 1 {
		*claim.Spec.StorageClassName = a.LateClass() + "-array"
		claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": a.node}
	}
	a.AddClaim(claim)
}

// checkVolumes waits for the volumes of all claims but the first, which is deleted, and returns the names of their PersistentVolumes.
func (a *arrayTest) checkVolumes() (names []string) {
	a.T.Helper()
	want := map[string][]string{}
	for n := 1; n < arrayClaims; n++ {
		a.WaitBound(claimName(n))
		pv := a.Volume(claimName(n))
		names = append(names, pv.Name)
		want[pv.Name] = nil
		place := map[string]string{}
		for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				place[e.Key] = e.Values[0]
			}
		}
		if diff := cmp.Diff(map[string]string{arrayZone: "a", arrayRack: "1"}, place); diff != "" {
			a.T.Errorf("volume %s is accessible from other nodes than those of its pool (-want +got):\n%s", pv.Name, diff)
		}
	}
	a.Wait("the array to have the volumes of the claims and no other", func(context.Context) (bool, error) {
		if diff := cmp.Diff(want, a.array.volumes(a.T)); diff != "" {
			return false, fmt.Errorf("-want +got:\n%s", diff)
		}
		return true, nil
	})
	return names
}

// attach has a volume attached to the node, and detached.
func (a *arrayTest) attach(volume string) {
	a.T.Helper()
	client, name := a.Client.StorageV1().VolumeAttachments(), a.node
	a.Retry("attach "+volume, func(ctx context.Context) error {
		_, err := client.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: arrayDriver, NodeName: a.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		}}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	a.WaitAttached(volume)
	if hosts := a.array.volumes(a.T)[volume]; !slices.Equal(hosts, []string{a.node}) {
		a.T.Errorf("volume %s is exported to %q, want %q", volume, hosts, a.node)
	}
	a.Retry("detach "+volume, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(client.Delete(ctx, name, metav1.DeleteOptions{}))
	})
	a.Wait("volume "+volume+" to be detached", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
	})
	if hosts := a.array.volumes(a.T)[volume]; len(hosts) != 0 {
		a.T.Errorf("volume %s is still exported to %q", volume, hosts)
	}
}

// faultyArray is a mock array that refuses a part of the requests that change something, and loses a part of its answers to them.
type faultyArray struct {
	// url is where the array has faults; client asks it where it has none.
	url    string
	client array.Client

	mu     sync.Mutex
	random *rand.Rand
	// faults counts the faults by their name.
	faults map[string]int
}

// newFaultyArray starts an array that may export volumes to a node.
func newFaultyArray(t *testing.T, node string, random *rand.Rand) *faultyArray {
	t.Helper()
	opened, err := array.Open(t.Context(), array.Config{
		Dir: t.TempDir(), Pools: []array.Pool{{Place: array.Place{Pool: "a1", Zone: "a", Rack: "1"}, Size: 100 << 30}},
		Hosts: []string{node}, HostLimit: arrayClaims, Passwords: map[string]string{"csi": arrayPassword}, Loop: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &faultyArray{random: random, faults: map[string]int{}}
	faulty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(opened, w, r) }))
	direct := httptest.NewServer(opened)
	t.Cleanup(func() { faulty.Close(); direct.Close() })
	f.url, f.client = faulty.URL, array.Client{Address: direct.URL, User: "csi", Password: arrayPassword}
	return f
}

// serve serves a request, unless it has a fault.
func (f *faultyArray) serve(array http.Handler, w http.ResponseWriter, r *http.Request) {
	switch fault := f.fault(r.URL.Path); fault {
	case 0:
		array.ServeHTTP(w, r)
	case http.StatusOK: // The array serves the request, and its answer is lost.
		array.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	default:
		http.Error(w, http.StatusText(fault), fault)
	}
}

// fault is the status with which a request is refused, 200 for a lost answer, or 0.
func (f *faultyArray) fault(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	// An array that is full (429, 507) would have the claim rescheduled, and no pod here lets the scheduler choose a node again.
	faults := []int{http.StatusOK, http.StatusOK, http.StatusLocked, http.StatusServiceUnavailable}
	n := f.random.IntN(12)
	if !slices.Contains([]string{"/create", "/delete", "/export", "/unexport"}, call) || n >= len(faults) {
		return 0
	}
	f.faults[call+" "+http.StatusText(faults[n])]++
	return faults[n]
}

// seen returns how often each fault happened.
func (f *faultyArray) seen() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.faults)
}

// volumes returns the hosts to which each volume is exported, by the volume's name.
func (f *faultyArray) volumes(t testing.TB) map[string][]string {
	t.Helper()
	luns, err := f.client.List(t.Context(), array.Volumes, "")
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string][]string{}
	for _, l := range luns {
		hosts[l.Name] = slices.Sorted(maps.Keys(l.Hosts))
	}
	return hosts
}
