package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	driverLabel  = "csi.storage.k8s.io/drivername"
	managerLabel = "csi.storage.k8s.io/managed-by"
	manager      = "external-provisioner"
	// noCapacity is the scheduler's message about nodes without enough capacity for a volume.
	noCapacity = "did not have enough free storage"
)

// published is the capacity that is published for a class in one segment.
type published struct {
	Capacity, Largest string
	Manager           string
	Owner             string
}

// publishedOf returns the CSIStorageCapacity objects of a driver and a class, by segment; "" has all nodes.
func (s *scene) publishedOf(ctx context.Context, driver, class string) (map[string]published, error) {
	list, err := s.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: driverLabel + "=" + driver})
	if err != nil {
		return nil, err
	}
	found := map[string]published{}
	for _, o := range list.Items {
		if o.StorageClassName != class {
			continue
		}
		place := labels.Set(o.NodeTopology.MatchLabels).String()
		if _, twice := found[place]; twice {
			return nil, fmt.Errorf("class %s has two objects at %q", class, place)
		}
		t := published{Capacity: o.Capacity.String(), Manager: o.Labels[managerLabel], Owner: owners(o.OwnerReferences)}
		if o.MaximumVolumeSize != nil {
			t.Largest = o.MaximumVolumeSize.String()
		}
		found[place] = t
	}
	return found, nil
}

// owners names owners: "Deployment/driver".
func owners(refs []metav1.OwnerReference) string {
	var names []string
	for _, ref := range refs {
		names = append(names, ref.Kind+"/"+ref.Name)
	}
	return strings.Join(names, ",")
}

// waitPublished waits until the published capacities of a class are the wanted ones.
func (s *scene) waitPublished(driver, class string, want map[string]published) {
	s.T.Helper()
	s.Wait("the published capacity of class "+class, func(ctx context.Context) (bool, error) {
		got, err := s.publishedOf(ctx, driver, class)
		if err != nil {
			return false, err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return false, fmt.Errorf("published for class %s (-want +got):\n%s", class, diff)
		}
		return true, nil
	})
}

// waitNodeCapacities waits until a capacity of a class is published for each node.
func (s *scene) waitNodeCapacities(class string) {
	s.T.Helper()
	s.Wait("the published capacity of class "+class, func(ctx context.Context) (bool, error) {
		got, err := s.publishedOf(ctx, s.Driver, class)
		return len(got) == len(s.Dev.Nodes), err
	})
}

// TestCapacityOfEachNode looks at the objects of the driver that is installed, in whatever form: one for each node and class with late binding,
// for as long as there is the class, owned by the workload of its publisher.
func TestCapacityOfEachNode(t *testing.T) {
	beside(t)
	s := newScene(t)
	p := s.publisher()
	places := map[string]published{}
	for _, node := range s.driverNodes() {
		places[topologyKey+"="+node] = published{Owner: p.owner, Manager: p.managerAt(node)}
	}
	s.Wait("an object for each node", func(ctx context.Context) (bool, error) {
		got, err := s.publishedOf(ctx, s.Driver, s.LateClass())
		if err != nil {
			return false, err
		}
		for place, t := range got {
			if size, err := resource.ParseQuantity(t.Capacity); err != nil || size.Sign() <= 0 || t.Largest == "" {
				return false, fmt.Errorf("published for %s: %+v, %w", place, t, err)
			}
			got[place] = published{Owner: t.Owner, Manager: t.Manager}
		}
		if diff := cmp.Diff(places, got); diff != "" {
			return false, fmt.Errorf("published (-want +got):\n%s", diff)
		}
		return true, nil
	})
	if got, err := s.publishedOf(t.Context(), s.Driver, s.ImmediateClass()); err != nil || len(got) > 0 {
		t.Errorf("a class with immediate binding has published capacities %v, %v", got, err)
	}
	s.Retry("delete the class", func(ctx context.Context) error {
		return testbed.IgnoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, s.LateClass(), metav1.DeleteOptions{}))
	})
	s.waitPublished(s.Driver, s.LateClass(), map[string]published{})
}

// publisher is the provisioner that publishes the capacity of the installed driver.
type publisher struct {
	// owner is the workload of the provisioner, "" where it is a process.
	owner string
	// onEach is true where each node publishes its own capacity.
	onEach bool
}

// managerAt is the label of the objects about a node.
func (p publisher) managerAt(node string) string {
	if p.onEach {
		return manager + "-" + node
	}
	return manager
}

// publisher finds out in which form the driver is installed.
func (s *scene) publisher() (p publisher) {
	s.T.Helper()
	if s.Dev != nil {
		return p
	}
	s.Retry("find the provisioner", func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=csi-hostpath"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "provisioner" })
			if i < 0 {
				continue
			}
			p.onEach = slices.Contains(pod.Spec.Containers[i].Args, "--node-deployment")
			p.owner, err = s.workloadOf(ctx, &pod)
			return err
		}
		return fmt.Errorf("none of %d pods has a provisioner", len(pods.Items))
	})
	return p
}

// workloadOf is what a user deletes to be rid of a pod.
func (s *scene) workloadOf(ctx context.Context, pod *corev1.Pod) (string, error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return "", fmt.Errorf("pod %s has no controller", pod.Name)
	}
	if ref.Kind != "ReplicaSet" {
		return ref.Kind + "/" + ref.Name, nil
	}
	set, err := s.Client.AppsV1().ReplicaSets(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return owners(set.OwnerReferences), nil
}

// TestPodWaitsForCapacity fills a pool: a pod whose volume does not fit has no node, and the scheduler says why. Once another volume is deleted,
// there is enough capacity.
func TestPodWaitsForCapacity(t *testing.T) {
	beside(t)
	r := newPools(t, map[string]int64{"small": 1 << 30})
	late, filler := r.class("late", storagev1.VolumeBindingWaitForFirstConsumer, ""), r.class("filler", storagev1.VolumeBindingImmediate, "")
	r.AddClaim(sized(testbed.Claim(r.Namespace, "filler", filler), "900Mi"))
	r.WaitBound("filler")
	r.waitPublished(r.driver, late, map[string]published{"": {Capacity: "124Mi", Largest: "124Mi", Manager: manager}})
	r.AddClaim(sized(testbed.Claim(r.Namespace, "data", late), "500Mi"))
	r.CreatePod("data", testbed.FromClaim("data"))
	r.waitNoCapacity("data")
	r.DeleteClaim("filler")
	r.waitScheduled("data")
	r.WaitBound("data")
	r.waitPublished(r.driver, late, map[string]published{"": {Capacity: "524Mi", Largest: "524Mi", Manager: manager}})
	r.DeletePod("data")
	r.DeleteClaim("data")
	r.WaitNothingLeft()
	r.waitPublished(r.driver, late, map[string]published{"": {Capacity: "1Gi", Largest: "1Gi", Manager: manager}})
}

// TestPoolsHaveCapacitiesOfTheirOwn: the published capacity of a class is that of the pool which its parameters choose.
func TestPoolsHaveCapacitiesOfTheirOwn(t *testing.T) {
	beside(t)
	r := newPools(t, map[string]int64{"fast": 1 << 30, "slow": 3 << 30})
	for pool, want := range map[string]published{
		"fast": {Capacity: "1Gi", Largest: "1Gi", Manager: manager},
		"slow": {Capacity: "3Gi", Largest: "3Gi", Manager: manager},
		"":     {Capacity: "4Gi", Largest: "3Gi", Manager: manager}, // a volume lies in one pool
	} {
		name := "on" + pool
		class := r.class(name, storagev1.VolumeBindingWaitForFirstConsumer, pool)
		r.waitPublished(r.driver, class, map[string]published{"": want})
		r.AddClaim(sized(testbed.Claim(r.Namespace, name, class), "2Gi"))
	}
	r.CreatePod("fast", testbed.FromClaim("onfast"))
	r.CreatePod("slow", testbed.FromClaim("onslow"))
	r.waitNoCapacity("fast")
	r.waitScheduled("slow")
	r.WaitBound("onslow")
	for _, pod := range []string{"fast", "slow"} {
		r.DeletePod(pod)
	}
	for _, claim := range []string{"on", "onfast", "onslow"} {
		r.DeleteClaim(claim)
	}
	r.WaitNothingLeft()
}

// TestCapacityGoesWithItsOwner: when the workload of a provisioner is deleted, the garbage collector deletes its CSIStorageCapacity objects.
func TestCapacityGoesWithItsOwner(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.createWorkload(s.Namespace, "driver")
	pod := s.podOf(s.Namespace, "driver")
	r := s.newPools(map[string]int64{"pool": 1 << 30}, pod)
	classes := map[string]map[string]published{}
	for _, name := range []string{"one", "two"} {
		class := r.class(name, storagev1.VolumeBindingWaitForFirstConsumer, "")
		classes[class] = map[string]published{"": {Capacity: "1Gi", Largest: "1Gi", Manager: manager, Owner: "Deployment/driver"}}
	}
	for class, want := range classes {
		r.waitPublished(r.driver, class, want)
	}
	r.end() // or it would write again what is deleted
	s.deleteWorkload(s.Namespace, "driver")
	for class := range maps.Keys(classes) {
		r.waitPublished(r.driver, class, map[string]published{})
	}
}

// sized makes a claim ask for so much.
func sized(claim *corev1.PersistentVolumeClaim, size string) *corev1.PersistentVolumeClaim {
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	return claim
}

// waitNoCapacity waits until the scheduler has found no node with enough capacity for a pod.
func (s *scene) waitNoCapacity(pod string) {
	s.T.Helper()
	s.waitPodScheduled(pod, corev1.ConditionFalse, noCapacity)
}

// waitScheduled waits until the scheduler has found a node for a pod.
func (s *scene) waitScheduled(pod string) {
	s.T.Helper()
	s.waitPodScheduled(pod, corev1.ConditionTrue, "")
}

func (s *scene) waitPodScheduled(name string, status corev1.ConditionStatus, message string) {
	s.T.Helper()
	s.Wait(fmt.Sprintf("pod %s to be scheduled: %s %s", name, status, message), func(ctx context.Context) (bool, error) {
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && (c.Status != status || !strings.Contains(c.Message, message)) {
				return false, fmt.Errorf("it is %s: %s", c.Status, c.Message)
			}
			if c.Type == corev1.PodScheduled {
				return true, nil
			}
		}
		return false, nil
	})
}
