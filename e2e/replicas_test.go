package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	controllerSelector = "csi.longshore.dev/controller"
	// deployedClass is the class of deploy/ that binds immediately.
	deployedClass = "csi-hostpath-immediate"
)

// replicas is a controller side of several pods, each with provisioner, attacher, resizer and driver.
type replicas struct {
	*scene
	deployment *appsv1.Deployment
}

// findReplicas skips a test where the controller side is something else.
func findReplicas(t *testing.T, s *scene) *replicas {
	t.Helper()
	var found []appsv1.Deployment
	s.Retry("list controllers", func(ctx context.Context) error {
		list, err := s.Client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
		if err == nil {
			found = list.Items
		}
		return err
	})
	for i := range found {
		if n := found[i].Spec.Replicas; n != nil && *n >= 2 {
			return &replicas{scene: s, deployment: &found[i]}
		}
	}
	t.Skip("needs a controller side of 2 replicas or more: a Deployment labelled " + controllerSelector + ", as deploy/overlays/deployment-replicas has")
	return nil
}

// leader is the pod whose provisioner works, which is to be another one than former.
func (r *replicas) leader(former string) (pod string) {
	r.T.Helper()
	lease := strings.ReplaceAll(r.Driver, ".", "-")
	r.Wait(fmt.Sprintf("a leader in lease %s other than %q", lease, former), func(ctx context.Context) (bool, error) {
		l, err := r.Client.CoordinationV1().Leases(r.deployment.Namespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return false, err
		}
		pod = *l.Spec.HolderIdentity
		return pod != "" && pod != former, nil
	})
	return pod
}

// ready waits until all replicas are, and names them.
func (r *replicas) ready() (pods []corev1.Pod) {
	r.T.Helper()
	r.Wait("all replicas of "+r.deployment.Name+" to be ready", func(ctx context.Context) (bool, error) {
		list, err := r.Client.CoreV1().Pods(r.deployment.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
		if err != nil {
			return false, err
		}
		pods = pods[:0]
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil && podReady(&p) {
				pods = append(pods, p)
			}
		}
		return len(pods) == int(*r.deployment.Spec.Replicas), nil
	})
	return pods
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// directory asks the driver of a pod which volumes it has: handle by name.
func (r *replicas) directory(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	var raw []byte
	err := forward(r.Bed, pod, driverPort(pod), func(address string) (err error) {
		raw, err = get(ctx, "http://"+address+"/debug/state")
		return err
	})
	if err != nil {
		return nil, err
	}
	var state struct {
		Driver struct {
			Volumes []struct{ ID, Name string }
		}
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		return nil, fmt.Errorf("read the state of %s: %w", pod.Name, err)
	}
	volumes := map[string]string{}
	for _, v := range state.Driver.Volumes {
		if volumes[v.Name] != "" {
			return nil, fmt.Errorf("%s has two volumes named %s", pod.Name, v.Name)
		}
		volumes[v.Name] = v.ID
	}
	return volumes, nil
}

// driverPort is the port on which the driver of a pod serves its state.
func driverPort(pod *corev1.Pod) int {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == "driver" {
				return int(p.ContainerPort)
			}
		}
	}
	return 0
}

// TestLeaderKilledWhileClaimsWait kills the pod in which the provisioner works while many claims are pending: another takes
// over, every claim gets one volume, and the driver, whichever is asked, has as many.
func TestLeaderKilledWhileClaimsWait(t *testing.T) {
	whileClaimsWait(t, func(r *replicas, leader string) (claims []string) {
		for i := range 50 {
			claims = append(claims, fmt.Sprintf("data-%d", i))
		}
		var group sync.WaitGroup
		for _, name := range claims {
			group.Go(func() { r.CreateClaim(name, deployedClass) })
		}
		group.Wait()
		r.Retry("kill "+leader, func(ctx context.Context) error {
			zero := int64(0)
			return testbed.IgnoreNotFound(r.Client.CoreV1().Pods(r.deployment.Namespace).Delete(ctx, leader, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
		})
		t.Logf("%s killed while %d of %d claims were pending", leader, r.pending(), len(claims))
		return claims
	})
}

// TestRollingSwapWhileClaimsWait replaces all replicas one after the other, as a new image does. All the while several claims
// are pending, and as soon as one is bound, there is the next.
func TestRollingSwapWhileClaimsWait(t *testing.T) {
	whileClaimsWait(t, func(r *replicas, _ string) (claims []string) {
		r.roll()
		done := make(chan struct{})
		var group sync.WaitGroup
		lists := make([][]string, 5)
		for i := range lists {
			group.Go(func() { lists[i] = r.oneAfterTheOther(fmt.Sprintf("data-%d", i), done) })
		}
		r.waitRolled()
		close(done)
		group.Wait()
		claims = slices.Concat(lists...)
		t.Logf("%d claims were bound while the replicas were replaced", len(claims))
		return claims
	})
}

// oneAfterTheOther makes a claim and waits until it is bound, again and again until done is closed.
func (r *replicas) oneAfterTheOther(prefix string, done <-chan struct{}) (claims []string) {
	for {
		select {
		case <-done:
			return claims
		default:
		}
		name := fmt.Sprintf("%s-%d", prefix, len(claims))
		claims = append(claims, name)
		r.CreateClaim(name, deployedClass)
		r.WaitBound(name)
	}
}

// whileClaimsWait disturbs the controller side while claims are pending. Afterwards each must have exactly one volume, in the
// API and with the driver, and another pod must lead.
func whileClaimsWait(t *testing.T, disturb func(r *replicas, leader string) (claims []string)) {
	t.Helper()
	if os.Getenv(testbed.KubeconfigEnv) == "" {
		t.Skip("needs pods that can be killed, in a cluster named by " + testbed.KubeconfigEnv)
	}
	s := newScene(t)
	r := findReplicas(t, s)
	before := map[string]string{}
	for _, pod := range r.ready() {
		s.Retry("ask the driver for its volumes", func(ctx context.Context) (err error) {
			before, err = r.directory(ctx, &pod)
			return err
		})
	}
	leader := r.leader("")
	claims := disturb(r, leader)
	if t.Failed() {
		return
	}
	names := map[string]string{}
	for _, claim := range claims {
		s.WaitBound(claim)
		names["pvc-"+string(s.Claim(claim).UID)] = claim
	}
	r.waitRolled()
	r.leader(leader) // a pod that ends leads until it is done
	handles := r.checkVolumes(names)
	for _, pod := range r.ready() {
		r.checkDirectory(&pod, before, handles)
	}
	for _, claim := range claims {
		s.DeleteClaim(claim)
	}
	for _, pod := range r.ready() {
		s.Wait("the volumes to be gone from the driver's directory", func(ctx context.Context) (bool, error) {
			volumes, err := r.directory(ctx, &pod)
			for name := range volumes {
				if handles[name] != "" {
					return false, err
				}
			}
			return err == nil, err
		})
	}
}

// roll has all replicas replaced, one after the other.
func (r *replicas) roll() {
	r.T.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"e2e.longshore.dev/rolled-by":%q}}}}}`, r.Namespace)
	r.Retry("roll "+r.deployment.Name, func(ctx context.Context) error {
		_, err := r.Client.AppsV1().Deployments(r.deployment.Namespace).Patch(ctx, r.deployment.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// waitRolled waits until the replicas are as many as there should be, all of the same make.
func (r *replicas) waitRolled() {
	r.T.Helper()
	r.Wait("the replicas of "+r.deployment.Name+" to be replaced", func(ctx context.Context) (bool, error) {
		d, err := r.Client.AppsV1().Deployments(r.deployment.Namespace).Get(ctx, r.deployment.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		want, now := *r.deployment.Spec.Replicas, d.Status
		return now.ObservedGeneration >= d.Generation && now.UpdatedReplicas == want && now.AvailableReplicas == want && now.Replicas == want, nil
	})
}

// pending counts the claims of the scene that are not bound.
func (r *replicas) pending() (n int) {
	r.T.Helper()
	r.Retry("list claims", func(ctx context.Context) error {
		list, err := r.Client.CoreV1().PersistentVolumeClaims(r.Namespace).List(ctx, metav1.ListOptions{})
		n = 0
		for _, c := range list.Items {
			if c.Status.Phase != corev1.ClaimBound {
				n++
			}
		}
		return err
	})
	return n
}

// checkVolumes compares the volumes of the scene with the claims, which are given by the names that their volumes must have.
// It returns the handles by these names.
func (r *replicas) checkVolumes(claims map[string]string) map[string]string {
	r.T.Helper()
	handles := map[string]string{}
	r.Retry("list volumes", func(ctx context.Context) error {
		list, err := r.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		clear(handles)
		for _, v := range list.Items {
			if ref := v.Spec.ClaimRef; ref == nil || ref.Namespace != r.Namespace {
				continue
			}
			if claims[v.Name] != v.Spec.ClaimRef.Name || v.Status.Phase != corev1.VolumeBound {
				r.T.Errorf("volume %s is %s, for claim %s; want it bound, for claim %q", v.Name, v.Status.Phase, v.Spec.ClaimRef.Name, claims[v.Name])
			}
			handles[v.Name] = v.Spec.CSI.VolumeHandle
		}
		return nil
	})
	if len(handles) != len(claims) {
		r.T.Errorf("%d volumes for %d claims", len(handles), len(claims))
	}
	return handles
}

// checkDirectory wants exactly the volumes of the scene in the driver's directory, besides those that were there before.
func (r *replicas) checkDirectory(pod *corev1.Pod, before, handles map[string]string) {
	r.T.Helper()
	var volumes map[string]string
	r.Retry("ask the driver for its volumes", func(ctx context.Context) (err error) {
		volumes, err = r.directory(ctx, pod)
		return err
	})
	found := 0
	for name, id := range volumes {
		switch {
		case handles[name] != "" && handles[name] == id:
			found++
		case before[name] == "":
			r.T.Errorf("%s has volume %s named %s, which no claim of this test has", pod.Name, id, name)
		}
	}
	if found != len(handles) {
		r.T.Errorf("%s has %d volumes of this test, want %d", pod.Name, found, len(handles))
	}
}
