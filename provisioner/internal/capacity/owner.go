package capacity

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
)

// FindOwner returns a reference to who is to own the objects: the pod at level 0, its controller at level 1, the controller of
// that at level 2 and so on; nil at a negative level. When the owner is deleted, the garbage collector deletes the objects.
func FindOwner(ctx context.Context, client kubeapi.Client, namespace, pod string, level int) (*metav1.OwnerReference, error) {
	if level < 0 {
		return nil, nil //nolint:nilnil // no level means no owner, which is not an error
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	start, err := client.Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the owner of capacities: get pod %s/%s: %w", namespace, pod, err)
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: start.Name, UID: start.UID}
	holder := metav1.Object(start)
	for step := 1; step <= level; step++ {
		ref := metav1.GetControllerOf(holder)
		if ref == nil {
			return nil, fmt.Errorf("find the owner of capacities: %s %s/%s has no controller, %d more owner references were asked for", owner.Kind, namespace, owner.Name, level-step+1)
		}
		owner = metav1.OwnerReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID}
		if step == level {
			break // what is owned is not read: no permission for it is needed
		}
		if holder, err = client.Owner(ctx, namespace, owner); err != nil {
			return nil, fmt.Errorf("find the owner of capacities: get %s %s/%s: %w", owner.Kind, namespace, owner.Name, err)
		}
	}
	return &owner, nil
}
