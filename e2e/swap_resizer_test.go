package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// swappedClaims is the number of claims that grow while the resizer is swapped.
	swappedClaims = 50
	// beforeSwap is the number of them that the first resizer expands.
	beforeSwap = 20
)

// resizerSwap is a driver whose volumes are expanded by kubernetes-csi's resizer and by ours. It does the whole expansion in its controller.
type resizerSwap struct {
	*story
	driver *csitest.Driver
	flags  []string
	claims []string
}

// TestSwapResizerAndBack kills kubernetes-csi's resizer in the middle of many expansions, starts ours, ends that in the middle of as many, and
// starts kubernetes-csi's again: every volume and every claim has its capacity in the end.
func TestSwapResizerAndBack(t *testing.T) {
	dev(t)
	program := testbed.UpstreamProgram(t, "csi-resizer")
	w := newResizerSwap(t)
	upstream := w.startUpstream(program)
	w.holdAfter(beforeSwap)
	w.growAll("32Mi")
	w.waitMiddle("32Mi")
	testbed.Kill(upstream)
	w.driver.Heal()
	ours := w.Run("csi-resizer", append([]string{"--kubeconfig=" + w.Dev.KubeconfigOf("csi-resizer")}, w.flags...)...)
	w.waitAll("32Mi")

	w.holdAfter(beforeSwap)
	w.growAll("48Mi")
	w.waitMiddle("48Mi")
	ours()
	w.driver.Heal()
	w.startUpstream(program)
	w.waitAll("48Mi")
	for _, volume := range w.driver.Volumes() {
		if volume.Capacity != 48<<20 {
			t.Errorf("volume %s has %d bytes, want 48Mi", volume.ID, volume.Capacity)
		}
	}
	for _, violation := range w.driver.Violations() {
		t.Errorf("against the life cycle of CSI: %s", violation)
	}
	for _, claim := range w.claims {
		w.DeleteClaim(claim)
	}
	w.Wait("the volumes to be deleted", func(context.Context) (bool, error) { return len(w.driver.Volumes()) == 0, nil })
}

// newResizerSwap has the claims bound.
func newResizerSwap(t *testing.T) *resizerSwap {
	t.Helper()
	w := &resizerSwap{story: newStory(t)}
	name := w.Namespace + ".example.com"
	w.driver = csitest.New(csitest.Options{Name: name, Node: []csi.NodeServiceCapability_RPC_Type{}})
	address := w.driver.Serve(t)
	w.flags = []string{
		"-v=5", "--csi-address=" + address, "--workers=2", "--timeout=3s", "--retry-interval-max=5s",
		"--kube-api-qps=100", "--kube-api-burst=200",
		"--leader-election", "--leader-election-namespace=" + devcluster.Namespace,
		"--leader-election-lease-duration=" + swapLease.String(),
		"--leader-election-renew-deadline=" + swapRenew.String(),
		"--leader-election-retry-period=" + swapRetry.String(),
	}
	class := testbed.Class(w.Namespace+"-swapped", name, storagev1.VolumeBindingImmediate)
	w.AddClass(class)
	w.Run("csi-provisioner", "--csi-address="+address, "--kubeconfig="+w.Dev.KubeconfigOf("csi-provisioner"))
	for i := range swappedClaims {
		w.claims = append(w.claims, fmt.Sprintf("data-%d", i))
		w.CreateClaim(w.claims[i], class.Name)
	}
	for _, claim := range w.claims {
		w.WaitBound(claim)
	}
	return w
}

// startUpstream starts kubernetes-csi's resizer, as a user with all rights: what it asks for is not to be found in the rules of deploy/.
func (w *resizerSwap) startUpstream(program string) *exec.Cmd {
	w.T.Helper()
	user := "system:serviceaccount:kube-system:" + w.Namespace
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	w.Retry("grant rights", func(ctx context.Context) error {
		_, err := w.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	w.T.Cleanup(func() {
		_ = w.Client.RbacV1().ClusterRoleBindings().Delete(context.Background(), binding.Name, metav1.DeleteOptions{})
	})
	cmd := exec.Command(program, append([]string{"--kubeconfig=" + testbed.Impersonate(w.T, w.Kubeconfig, user)}, w.flags...)...)
	w.Background(cmd)
	return cmd
}

// holdAfter has the driver expand the first n volumes that it is asked to expand, and not answer for the others.
func (w *resizerSwap) holdAfter(n int) {
	var mu sync.Mutex
	answered := map[string]bool{}
	w.driver.Inject(csitest.Fault{Method: "ControllerExpandVolume", Hang: true, Match: func(request proto.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		expand, ok := request.(*csi.ControllerExpandVolumeRequest)
		if ok && len(answered) < n {
			answered[expand.GetVolumeId()] = true
		}
		return ok && !answered[expand.GetVolumeId()]
	}})
}

func (w *resizerSwap) growAll(size string) {
	w.T.Helper()
	for _, claim := range w.claims {
		w.Grow(claim, size)
	}
}

// ungrown returns the claims that do not have the size yet, with the reason of one.
func (w *resizerSwap) ungrown(ctx context.Context, size string) (left []string, reason error) {
	for _, claim := range w.claims {
		if err := w.grown(ctx, claim, size); err != nil {
			left, reason = append(left, claim), err
		}
	}
	return left, reason
}

// waitMiddle waits until the first claims have the size, and the driver does not answer for the next ones.
func (w *resizerSwap) waitMiddle(size string) {
	w.T.Helper()
	w.Wait(fmt.Sprintf("%d claims to have %s", beforeSwap, size), func(ctx context.Context) (bool, error) {
		left, reason := w.ungrown(ctx, size)
		if len(left) != swappedClaims-beforeSwap {
			return false, errors.Join(reason, leftError(left))
		}
		return slices.ContainsFunc(w.driver.Calls(), func(c csitest.Call) bool { return c.Method == "ControllerExpandVolume" && !c.Done }), nil
	})
}

func (w *resizerSwap) waitAll(size string) {
	w.T.Helper()
	w.Wait("all claims to have "+size, func(ctx context.Context) (bool, error) {
		left, reason := w.ungrown(ctx, size)
		return len(left) == 0, errors.Join(reason, leftError(left))
	})
}

func leftError(left []string) error {
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return fmt.Errorf("%d are left: %q", len(left), left)
}
