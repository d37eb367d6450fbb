// Package nodeobj makes and keeps the Node object of the agent: labels, capacity, addresses and
// conditions, so that the scheduler places pods and the node controllers leave them alone.
//
// It writes neither volumesInUse (package inuse decides that) nor volumesAttached (the
// attach/detach controller's), nor what drivers report about topology (package nodeinfo).
package nodeobj

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ManagedAnnotation makes the attach/detach controller attach volumes for the node.
	ManagedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	// KubeletVersion is reported as the version of the kubelet, by which others judge what the
	// node can do.
	KubeletVersion = "v1.37.2+longshore"
)

// Template is what the agent says about its node.
type Template struct {
	// Name is the name of the node.
	Name string
	// IP is the internal address of the node.
	IP string
	// CPU, Memory and Storage are the capacity for the scheduler: processors and bytes.
	CPU, Memory, Storage int64
	// Unmanaged says that no controller attaches the volumes of the node: the Node does not get ManagedAnnotation, and loses it.
	Unmanaged bool
	// MaxPods is the number of pods that fit on the node.
	MaxPods int64
}

// labels are the labels that the agent owns.
func (t *Template) labels() map[string]string {
	return map[string]string{corev1.LabelHostname: t.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH}
}

func (t *Template) annotations() map[string]string {
	if t.Unmanaged {
		return nil
	}
	return map[string]string{ManagedAnnotation: "true"}
}

// annotationPatch sets the annotations, or removes the one that an earlier agent or a kubelet has set.
func (t *Template) annotationPatch() map[string]any {
	if t.Unmanaged {
		return map[string]any{ManagedAnnotation: nil}
	}
	return map[string]any{ManagedAnnotation: "true"}
}

func (t *Template) capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(t.CPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(t.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(t.Storage, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(t.MaxPods, resource.DecimalSI),
	}
}

func (t *Template) addresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: t.IP},
		{Type: corev1.NodeHostName, Address: t.Name},
	}
}

// bootID is the boot ID of the kernel, which a kubelet reports, too. With another one, a kubelet that takes over the node would report a reboot.
var bootID = sync.OnceValue(func() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
})

func (t *Template) info() corev1.NodeSystemInfo {
	return corev1.NodeSystemInfo{
		MachineID: t.Name, SystemUUID: t.Name, BootID: cmp.Or(bootID(), t.Name),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, OSImage: "Longshore node agent",
		KernelVersion: "none", ContainerRuntimeVersion: "none://0",
		KubeletVersion: KubeletVersion,
	}
}

// Object is the Node to create.
func (t *Template) Object(conditions []corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: t.Name, Labels: t.labels(), Annotations: t.annotations()},
		Status: corev1.NodeStatus{
			Capacity: t.capacity(), Allocatable: t.capacity(), Conditions: conditions,
			Addresses: t.addresses(), NodeInfo: t.info(),
		},
	}
}

// Conditions computes the conditions; notReady is why the node is not ready, nil if it is. A
// condition whose status is the one in old keeps its transition time. Ready comes last, because
// its readers take the others as known by then.
func Conditions(old []corev1.NodeCondition, notReady error, now metav1.Time) []corev1.NodeCondition {
	all := []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "memory is not limited"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "disk space is not limited"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "there are no processes"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "node agent is ready for volumes"},
	}
	if notReady != nil {
		ready := &all[len(all)-1]
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", notReady.Error()
	}
	for i := range all {
		all[i].LastHeartbeatTime, all[i].LastTransitionTime = now, now
		for _, o := range old {
			if o.Type == all[i].Type && o.Status == all[i].Status {
				all[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	return all
}

// StatusPatch is a strategic merge patch for the status subresource that sets all that the agent
// owns in an existing Node. Addresses are replaced as a whole: merged by type, as their patch
// strategy has it, two of one type would become one.
func (t *Template) StatusPatch(conditions []corev1.NodeCondition) ([]byte, error) {
	own := t.addresses()
	addresses := make([]any, 1, 1+len(own))
	addresses[0] = map[string]string{"$patch": "replace"}
	for _, a := range own {
		addresses = append(addresses, a)
	}
	return encode(map[string]any{
		"metadata": map[string]any{"labels": t.labels(), "annotations": t.annotationPatch()},
		"status": map[string]any{
			"capacity": t.capacity(), "allocatable": t.capacity(), "conditions": conditions,
			"addresses": addresses, "nodeInfo": t.info(),
		},
	})
}

// InUsePatch is a strategic merge patch for the status subresource that replaces volumesInUse.
func InUsePatch(names []string) ([]byte, error) {
	if names == nil {
		names = []string{}
	}
	return encode(map[string]any{"status": map[string]any{"volumesInUse": names}})
}

// Validate reports everything that is wrong with the template.
func (t *Template) Validate() error {
	var errs []error
	if t.Name == "" {
		errs = append(errs, errors.New("node name is empty"))
	}
	if t.IP == "" {
		errs = append(errs, errors.New("node address is empty"))
	}
	if t.MaxPods <= 0 {
		errs = append(errs, fmt.Errorf("number of pods %d is not positive", t.MaxPods))
	}
	return errors.Join(errs...)
}

func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode node patch: %w", err)
	}
	return data, nil
}
